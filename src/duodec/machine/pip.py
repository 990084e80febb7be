"""Find a pip that works on this environment."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class PipMissing(Exception):
    """There is no pip, and none can be made; says what to do."""


@contextmanager
def pip_command() -> Iterator[list[str]]:
    """A command that runs pip for this environment. One of uv or pipx has none of its own: pip
    runs in an environment made for that, and works on this one. Raises PipMissing."""
    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip"]
        return
    with tempfile.TemporaryDirectory(prefix="duodec-pip-") as folder:
        made = subprocess.run(
            [sys.executable, "-m", "venv", folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if made.returncode:
            release = "python{}.{}".format(*sys.version_info[:2])
            raise PipMissing(
                f"this environment has no pip, and {release} cannot make one; apt install "
                f"{release}-venv (Debian, Ubuntu), or put pip into it: uv pip install pip"
            )
        yield [str(Path(folder) / "bin" / "python"), "-m", "pip", "--python", sys.executable]
