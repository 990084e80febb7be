"""What the operator of a server chose."""

from __future__ import annotations

import math
from dataclasses import dataclass

from duodec.errors import BadOption

DEFAULT_PORT = 8000


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
    timeout_s: float = 600.0  # of a request, the time in the queue included
    grace_s: float = 30.0  # that answers in work get when the server is told to stop
    method: str | None = None  # where a request names none
    metrics_prefix: str = "duodec"
    interval_s: float = 0.03  # between two events of a stream, whose text people read
    ping_s: float = 15.0  # silence after which a stream says that it lives

    def __post_init__(self) -> None:
        for name, least in (
            ("num_slots", 1), ("num_queued", 0), ("max_body_bytes", 1), ("timeout_s", 0.001),
            ("grace_s", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise BadOption(f"{_OPTIONS[name]} is {value}; use {least} or more")
        if not 0 <= self.port < 1 << 16:
            raise BadOption(f"port is {self.port}; use 0 (any free one) to 65535")
        if any(not key for key in self.api_keys):
            raise BadOption("an API key is empty; leave it out, or name one")

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
}
