"""Put the chat page together: one document, with nothing that is fetched from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

_PART = re.compile(r"/\*([\w./]+\.(?:css|js))\*/")
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@cache
def chat_page() -> str:
    """The page, its style and its scripts."""
    page = _text("page.html")
    return _PART.sub(lambda found: _text(found[1]), page)


@cache
def content_policy() -> str:
    """What a browser lets the page do: run our scripts and ask this server, nothing else. A script
    in a response of the model would not run even if it got into the page."""
    digests = (hashlib.sha256(script.encode()).digest() for script in _SCRIPT.findall(chat_page()))
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
    )


def _text(name: str) -> str:
    """A file of ours, or in `kept/` of others, whose licences lie next to them."""
    return files("duodec.server").joinpath("web", name).read_text("utf-8")
