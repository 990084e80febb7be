"""Show links that leave docs/ as the paths that they name, and fetch nothing: hooks of mkdocs."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """``[text](../SECURITY.md)`` becomes ``text (`SECURITY.md`)``: the site has no such page."""
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", markdown)


def on_post_page(output: str, **_: Any) -> str:
    """A search from disk needs a worker; the theme would fetch it, ours lies next to the pages."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "kept/iframe-worker.js")


def on_post_template(output: str, **_: Any) -> str:
    """The same for the page of what is not found."""
    return on_post_page(output)
