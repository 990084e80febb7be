"""What the operator of a server chose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from duodec.core.parameters import Parameter, check
from duodec.errors import BadOption

DEFAULT_PORT = 8000


@dataclass(frozen=True)
class Settings:
    """What is not an option of `duodec serve` is one of decoding, or times a stream's events."""

    model: str = ""  # the name that clients ask for
    host: Annotated[str, Parameter("Where to listen; 0.0.0.0: everywhere.", "Server")] = "127.0.0.1"
    port: Annotated[
        int,
        Parameter(
            "0: any free one.",
            "Server",
            ge=0,
            lt=1 << 16,
            remedy="use 0 (any free one) to 65535",
        ),
    ] = DEFAULT_PORT
    metrics_prefix: Annotated[
        str,
        Parameter("Of the names on /metrics: duodec, or vllm for its dashboards.", "Server"),
    ] = "duodec"
    num_slots: Annotated[
        int, Parameter("Answers in work at once.", "Limits", ("--parallel", "-np"), ge=1)
    ] = 4
    num_queued: Annotated[
        int,
        Parameter(
            "Answers that may wait; beyond them clients are told to come back (429).",
            "Limits",
            ("--queue",),
            ge=0,
        ),
    ] = 64
    timeout_s: Annotated[
        float,
        Parameter(
            "Seconds that a request may take.", "Limits", ("--timeout",), ge=0.001, lt=math.inf
        ),
    ] = 600.0
    grace_s: Annotated[
        float,
        Parameter(
            "Seconds that answers in work are given when the server is told to stop.",
            "Limits",
            ("--grace",),
            ge=0,
            lt=math.inf,
        ),
    ] = 30.0
    max_body_bytes: Annotated[
        int, Parameter("Bytes of a request at most.", "Limits", ("--max-body",), ge=1)
    ] = 16 << 20
    api_keys: Annotated[
        tuple[str, ...],
        Parameter(
            "Ask clients for this key (Authorization: Bearer KEY); several may be given.",
            "Access",
            ("--api-key",),
            "KEY",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Parameter(
            "Pages of this origin may ask too; *: all. Pages of this machine always may.",
            "Access",
            ("--cors-origin",),
            "ORIGIN",
        ),
    ] = ()
    method: str | None = None  # where a request names none
    interval_s: float = 0.03  # between two events of a stream, whose text people read
    ping_s: float = 15.0  # silence after which a stream says that it lives

    def __post_init__(self) -> None:
        check(self)
        if any(not key for key in self.api_keys):
            raise BadOption("an API key is empty; leave it out, or name one")

    @property
    def is_loopback(self) -> bool:
        """Only programs of this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
