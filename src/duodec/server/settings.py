"""What the operator of a server chose."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from duodec.core.sampling.parameters import Parameter, check
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption

DEFAULT_PORT = 8000
DEFAULTS = ("temperature", "top_k", "top_p", "min_p")  # that an operator may choose for clients
_VISIBLE = re.compile(r"[!-~]+")


def _seconds(words: str, flag: str, *, least: float = 0.001) -> Parameter:
    return Parameter(words, "Limits", (flag,), ge=least, lt=math.inf)


@dataclass(frozen=True)
class Settings:
    """What is not an option of `duodec serve` is one of decoding, or times a stream's events."""

    model: str = ""  # the name that clients ask for
    host: Annotated[str, Parameter("Where to listen; 0.0.0.0: everywhere.", "Server")] = "127.0.0.1"
    port: Annotated[int, Parameter(
        "Where clients connect; 0: any free one.", "Server", ge=0, lt=1 << 16,
        remedy="use 0 (any free one) to 65535"
    )] = DEFAULT_PORT  # fmt: skip
    strict_model: Annotated[bool, Parameter(
        "Refuse requests for models of other names (404); without it, a server of one model "
        "answers to any.", "Server"
    )] = False  # fmt: skip
    metrics_prefix: Annotated[
        str,
        Parameter("Of the names on /metrics: duodec, or vllm for its dashboards.", "Server"),
    ] = "duodec"
    num_slots: Annotated[
        int, Parameter("Requests that run at once.", "Limits", ("--parallel", "-np"), ge=1)
    ] = 4
    num_queued: Annotated[int, Parameter(
        "Requests that may wait; beyond them clients are told to come back (429).", "Limits",
        ("--queue",), ge=0
    )] = 64  # fmt: skip
    num_models: Annotated[int, Parameter(
        "Models in memory at once, as far as memory holds them; for another one, the model "
        "that was idle for the longest makes space.", "Limits", ("--max-models",), ge=1
    )] = 1  # fmt: skip
    timeout_s: Annotated[
        float, _seconds("Seconds that a request may take, once it is sent.", "--timeout")
    ] = 600.0
    grace_s: Annotated[float, _seconds(
        "Seconds that running requests are given when the server is told to stop.", "--grace",
        least=0
    )] = 30.0  # fmt: skip
    max_body_bytes: Annotated[
        int, Parameter("Bytes of a request at most.", "Limits", ("--max-body",), ge=1)
    ] = 4 << 20
    max_header_bytes: Annotated[
        int,
        Parameter("Bytes of a request's headers at most.", "Limits", ("--max-header",), ge=1024),
    ] = 64 << 10
    max_connections: Annotated[int, Parameter(
        "Connections at most; the one that has waited longest for its client makes room.", "Limits",
        ge=1
    )] = 512  # fmt: skip
    header_s: Annotated[float, _seconds("Seconds to send headers in.", "--header-timeout")] = 10.0
    body_s: Annotated[float, _seconds("Seconds to send a body in.", "--body-timeout")] = 30.0
    idle_s: Annotated[
        float, _seconds("Seconds between two requests of a connection.", "--idle-timeout")
    ] = 75.0
    api_keys: Annotated[tuple[str, ...], Parameter(
        "Ask clients for this key (Authorization: Bearer KEY); several may be given, one a user. "
        "Without it, one user is assumed.", "Access", ("--api-key",), "KEY"
    )] = ()  # fmt: skip
    prompt_log: Annotated[str | None, Parameter(
        "Keep the messages of every chat in this file, as prompts for `duodec distill`; "
        "without it, nothing that clients say is kept.", "Access", metavar="FILE"
    )] = None  # fmt: skip
    fetch_images: Annotated[bool, Parameter(
        "Fetch pictures that clients name by an http or https address, from public addresses only; "
        "without it, they send the data.", "Access"
    )] = False  # fmt: skip
    cors_origins: Annotated[tuple[str, ...], Parameter(
        "Pages of this origin may ask too; *: all. Pages of this machine always may.", "Access",
        ("--cors-origin",), "ORIGIN"
    )] = ()  # fmt: skip
    method: str | None = None  # where a request names none
    sampling: SamplingParams = field(
        default_factory=SamplingParams
    )  # its `DEFAULTS`, where a request names none
    interval_s: float = 0.03  # between two events of a stream, whose text people read
    ping_s: float = 15.0  # silence after which a stream says that it lives

    def __post_init__(self) -> None:
        check(self)
        if any(not key for key in self.api_keys):
            raise BadOption("an API key is empty; leave it out, or name one")
        if not all(_VISIBLE.fullmatch(key) for key in self.api_keys):
            raise BadOption(
                "an API key has characters that clients cannot send in a header; use letters, "
                "digits and signs of ASCII, without blanks"
            )

    @property
    def defaults(self) -> Mapping[str, float]:
        """The sampling that the operator chose for requests that name none."""
        usual = SamplingParams()
        chosen = {name: getattr(self.sampling, name) for name in DEFAULTS}
        return {name: value for name, value in chosen.items() if value != getattr(usual, name)}

    @property
    def is_loopback(self) -> bool:
        """Only programs of this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
