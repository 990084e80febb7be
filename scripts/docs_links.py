"""Show links that leave docs/ as the paths that they name: a hook of mkdocs."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """``[text](../SECURITY.md)`` becomes ``text (`SECURITY.md`)``: the site has no such page."""
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", markdown)
