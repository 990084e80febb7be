"""Find a pip that works, and name the command that installs a missing library for this duodec."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import distribution as distribution_named
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def install_command(*packages: str) -> str:
    """Return the command that installs packages into this environment, with pip or uv, whichever it
    has."""
    wanted = shlex.join(packages)
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip install --python {python} {wanted}"
    return f"{python} -m pip install {wanted}"


def needs_command(distribution: str) -> str:
    """Return the command for the requirements of one of our distributions, without duodec's own,
    which need not be on an index."""
    try:
        listed = requires(distribution) or []
    except PackageNotFoundError:  # it runs from its sources
        listed = []
    needs = (one for one in listed if "extra ==" not in one and not one.startswith("duodec"))
    packages = [one.partition(";")[0].strip() for one in needs]
    return install_command(*(packages or [distribution]))


def satellite_command(distribution: str) -> str:
    """Return the command that installs one of our other distributions from where this duodec came:
    a folder, a repository, or an index."""
    source = _source()
    url, folder = str(source.get("url", "")), f"packages/{distribution}"
    if "vcs_info" in source:
        version = source["vcs_info"]
        where = f"{version['vcs']}+{url}@{version['commit_id']}#subdirectory={folder}"
        return install_command(f"{distribution} @ {where}")
    if "dir_info" in source:
        root = Path(unquote(urlsplit(url).path))
    else:  # it runs from its sources, or came from an index
        root = Path(__file__).resolve().parents[3]
    place = root / folder
    return install_command(str(place) if place.is_dir() else distribution)


def _source() -> Mapping[str, Any]:
    """Return what the installer noted of where duodec came from (PEP 610), if it did."""
    try:
        noted: Mapping[str, Any] = json.loads(
            distribution_named("duodec").read_text("direct_url.json") or "{}"
        )
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return noted


class PipMissing(Exception):
    """Raised if there is no pip, and none can be made; says what to do."""


@contextmanager
def pip_command() -> Iterator[list[str]]:
    """Yield a command that runs pip for this environment. An environment of uv or pipx has no pip
    of its own; then pip runs in an environment made for it, and works on this one. Raises
    PipMissing."""
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
