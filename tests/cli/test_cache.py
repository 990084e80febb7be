"""What duodec keeps is shown and cleared; nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.command_line import Cli


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ours"
    for name, num_bytes in (("models/a.gguf", 5000), ("profiles/b.json", 10), ("servers/1", 3)):
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(num_bytes))
    (folder / "linked").symlink_to(tmp_path)
    monkeypatch.setenv("DUODEC_CACHE", str(folder))
    return folder


def test_it_is_listed_by_what_it_is(cli: Cli, kept: Path) -> None:
    _, out, err = cli("cache")
    assert "models that were fetched" in out
    assert "measured costs" in out
    assert "servers" not in out + err
    assert f"in {kept}" in err
    record = json.loads(cli("cache", "--json")[1])
    assert [(one["name"], one["num_bytes"]) for one in record["kept"]] == [
        ("models", 5000),
        ("profiles", 10),
    ]


def test_one_thing_is_cleared_or_all(cli: Cli, kept: Path) -> None:
    assert cli("cache", "clear", "profiles", "--yes")[0] == 0
    assert sorted(path.name for path in kept.iterdir()) == ["linked", "models", "servers"]
    status, out, err = cli("cache", "clear", "nothing", "--yes")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "choose from: models" in err
    assert cli("cache", "clear", "--yes")[0] == 0
    assert sorted(path.name for path in kept.iterdir()) == ["linked", "servers"]
    assert "nothing is kept" in cli("cache", "clear")[2]


def test_it_asks_first(cli: Cli, kept: Path) -> None:
    status, _, err = cli("cache", "clear", stdin="n\n")
    assert status == 1
    assert err.endswith("nothing was removed\n")
    assert (kept / "models" / "a.gguf").exists()
    assert cli("cache", "clear", stdin="y\n")[0] == 0
    assert not (kept / "models").exists()


def test_a_newcomer_asks_for_help_by_a_word(cli: Cli) -> None:
    assert cli("help") == cli("--help")
    assert cli("help", "run") == cli("run", "--help")
    assert cli("help", "cache", "clear") == cli("cache", "clear", "--help")
    assert cli("help", "nothing")[0] == 2
