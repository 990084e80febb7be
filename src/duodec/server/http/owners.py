"""Tell whose a request's texts are: those of an API key, or of a salt of its own under it."""

from __future__ import annotations

from hashlib import sha256

from starlette.datastructures import Headers

NOBODY = ""  # where no keys are asked for: one user is assumed


def key_of(headers: Headers) -> str:
    """The API key that a request was sent with; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", "")  # Anthropic's clients
    return key.strip()


def holder_of(key: str) -> str:
    """The holder of a key, as it is known inside: no key is kept beyond the door."""
    return _digest(key)


def owner_of(holder: str, salt: str | None) -> str:
    """The owner of the texts of a request by this holder, which may have a salt."""
    return holder if salt is None else f"{holder}:{_digest(salt)}"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
