"""Say how a missing library is installed next to this copy of duodec, however that was."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec


def install_command(*packages: str) -> str:
    """The command that installs packages into this environment, by pip or uv, whichever it has."""
    wanted = shlex.join(packages)
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip install --python {python} {wanted}"
    return f"{python} -m pip install {wanted}"


def extra_command(extra: str) -> str:
    """The same for what one of our extras, such as ``torch``, consists of: duodec itself need not
    be on an index for that."""
    try:
        listed = requires("duodec") or []
    except PackageNotFoundError:  # it runs from its sources
        listed = []
    marked = re.compile(rf"extra == ['\"]{extra}['\"]")
    packages = [one.partition(";")[0].strip() for one in listed if marked.search(one)]
    return install_command(*(packages or [extra]))
