"""What the operator of a server chose."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from duodec.errors import BadOption

DEFAULT_PORT = 8000
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Settings:
    """Fields are options of `duodec serve`, but for the two that time a stream's events."""

    model: str  # the name that clients ask for
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = ()  # none: nobody is asked for one
    cors_origins: tuple[str, ...] = ()  # besides pages of this machine; "*": all
    num_slots: int = 4  # answers in work at once
    num_queued: int = 64  # that wait for one of them
    max_body_bytes: int = 16 << 20
    max_header_bytes: int = 64 << 10  # of a request's address and headers
    max_connections: int = 512
    header_s: float = 10.0  # for a request's headers
    body_s: float = 30.0  # for its body
    idle_s: float = 75.0  # between two requests of a connection
    timeout_s: float = 600.0  # of a request from the end of its body, the queue included
    grammar_s: float = 2.0  # to compile a request's grammar
    grammar_bytes: int = 256 << 20  # of memory, while it is compiled
    grace_s: float = 30.0  # that answers in work get when the server is told to stop
    method: str | None = None  # where a request names none
    metrics_prefix: str = "duodec"
    interval_s: float = 0.03  # between two events of a stream, whose text people read
    ping_s: float = 15.0  # silence after which a stream says that it lives

    def __post_init__(self) -> None:
        for name, least in (
            ("num_slots", 1), ("num_queued", 0), ("max_body_bytes", 1), ("timeout_s", 0.001),
            ("grace_s", 0), ("max_header_bytes", 1024), ("max_connections", 1), ("header_s", 0.001),
            ("body_s", 0.001), ("idle_s", 0.001), ("grammar_s", 0.001), ("grammar_bytes", 1 << 20),
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise BadOption(f"{_OPTIONS[name]} is {value}; use {least} or more")
        if not 0 <= self.port < 1 << 16:
            raise BadOption(f"port is {self.port}; use 0 (any free one) to 65535")
        if any(not key for key in self.api_keys):
            raise BadOption("an API key is empty; leave it out, or name one")
        if not all(_VISIBLE.fullmatch(key) for key in self.api_keys):
            raise BadOption(
                "an API key has characters that clients cannot send in a header; use letters, "
                "digits and signs of ASCII, without blanks"
            )

    @property
    def is_loopback(self) -> bool:
        """Only programs of this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


_OPTIONS = {
    "num_slots": "parallel",
    "num_queued": "queue",
    "max_body_bytes": "max-body",
    "timeout_s": "timeout",
    "grace_s": "grace",
    "max_header_bytes": "max-header",
    "max_connections": "max-connections",
    "header_s": "header-timeout",
    "body_s": "body-timeout",
    "idle_s": "idle-timeout",
    "grammar_s": "grammar-timeout",
    "grammar_bytes": "grammar-memory",
}
