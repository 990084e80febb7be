"""A file is written whole, or what was there stays, and a full disk is called that."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from fakes.disks import full_beyond

from duodec.machine.files import is_full, replacing


def test_what_a_library_makes_of_a_full_disk_is_an_error_of_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"before")
    with (
        full_beyond(100_000),
        pytest.raises(OSError, match="File too large") as caught,
        replacing(path) as part,
        part.open("wb") as file,
    ):
        np.zeros(1_000_000).tofile(file)  # whose own error has no number
    assert caught.value.errno == errno.EFBIG
    assert is_full(caught.value)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def _write_half(part: Path, error: Exception) -> None:
    part.write_bytes(b"half")
    raise error


@pytest.mark.parametrize("error", [RuntimeError("of another kind"), OSError("without a number")])
def test_other_errors_are_what_they_are(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)) as caught, replacing(tmp_path / "x") as part:
        _write_half(part, error)
    assert caught.value is error
    assert not list(tmp_path.iterdir())
