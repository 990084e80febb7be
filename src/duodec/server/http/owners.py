"""Tell the API keys of requests, and whose request one is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from starlette.datastructures import Headers


def key_of(headers: Headers) -> str:
    """The API key that a request was sent with; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", "")  # Anthropic's clients
    return key.strip()


def owner_of(headers: Headers, keys: Sequence[str]) -> str:
    """Whose request it is: a hash of its API key. All clients of a server without keys are one."""
    if not keys:
        return ""
    return hashlib.sha256(key_of(headers).encode("utf-8", "replace")).hexdigest()
