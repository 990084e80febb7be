"""Audit one server or two: run the checks within a budget of time, and keep what they find."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from duodec_lab.exactness.endpoint import Case, Endpoint, Reply, Trouble
from duodec_lab.exactness.judging import Finding, Response, judged, noise

OnProgress = Callable[[str, int, int], None]
RESULTS, PAGE = "verify.json", "verify.html"
SCHEMA_VERSION = 1

_LEAST_TOLERANCE, _MOST_TOLERANCE = 0.05, 2.0  # nats
# what makes servers compute a prompt anew: llama.cpp's, vLLM's (ours, too), vLLM's
_COLD: tuple[dict[str, Any], ...] = (
    {"cache_prompt": False, "prompt_logprobs": 0, "cache_salt": "cold"},
    {"cache_prompt": False, "prompt_logprobs": 0},
    {},
)


@dataclass(frozen=True)
class Limits:
    """``prompts`` texts of ``max_tokens`` tokens, ``concurrency`` requests at once; ``tolerance``
    in nats, None: twice what the servers' own logprobs of one place move by; ``budget_s`` seconds
    for all."""

    prompts: int = 7
    max_tokens: int = 128
    concurrency: int = 4
    tolerance: float | None = None
    budget_s: float = 600.0


class OutOfTime(Exception):
    """The budget is used up."""


@dataclass
class Audit:
    """What checks share: the servers, the limits, and completions of requests that ran alone."""

    endpoints: Sequence[Endpoint]
    limits: Limits
    clock: Callable[[], float] = time.monotonic
    texts: Sequence[Case] = ()
    noise: dict[str, float] = field(default_factory=dict)  # by server, once it was measured
    _alone: dict[tuple[str, str], Response] = field(default_factory=dict)
    _end_s: float = 0.0

    def __post_init__(self) -> None:
        self._end_s = self.clock() + self.limits.budget_s

    @property
    def pairs(self) -> Iterator[tuple[Endpoint, Endpoint]]:
        """The two servers, if there are two."""
        if len(self.endpoints) > 1:
            yield self.endpoints[0], self.endpoints[1]

    def send(self, endpoint: Endpoint, case: Case, **fields: Any) -> Reply | Trouble:
        """A completion, or why there is none. Raises OutOfTime."""
        return self._tried(lambda left_s: endpoint.send(case, left_s, **fields))

    def stream(
        self, endpoint: Endpoint, case: Case, most_events: int | None = None, **fields: Any
    ) -> Reply | Trouble:
        """The same by a stream, which is left after ``most_events``. Raises OutOfTime."""
        return self._tried(lambda left_s: endpoint.stream(case, left_s, most_events, **fields))

    def anew(self, endpoint: Endpoint, case: Case, **fields: Any) -> Reply | Trouble:
        """A completion with nothing reused of earlier requests, as far as the server can be told
        so. Raises OutOfTime."""
        for cold in _COLD:
            reply = self.send(endpoint, case, **cold, **fields)
            if not (isinstance(reply, Trouble) and reply.is_refusal):
                break
        return reply

    @property
    def tolerance(self) -> float:
        """In nats; measured when it is first wanted, unless the user named it."""
        if self.limits.tolerance is not None:
            return self.limits.tolerance
        for endpoint in self.endpoints:
            if endpoint.name not in self.noise:
                cases = self.texts
                moved = [noise(endpoint, case, self.send, self.anew) for case in cases]
                self.noise[endpoint.name] = max(moved, default=0.0)
        return min(_MOST_TOLERANCE, max(_LEAST_TOLERANCE, 2 * max(self.noise.values())))

    def alone(self, endpoint: Endpoint, case: Case) -> Response:
        """The completion of a request that had the server to itself, sent once an audit."""
        key = endpoint.name, json.dumps([case.path, case.body], sort_keys=True)
        if key not in self._alone:
            self._alone[key] = Response(endpoint, "alone", self.send(endpoint, case))
        return self._alone[key]

    def together(self, calls: Sequence[Callable[[], Response]]) -> list[Response]:
        """Send several requests at once, and return what came of each."""
        with ThreadPoolExecutor(self.limits.concurrency) as pool:
            return list(pool.map(lambda call: call(), calls))

    def judged(self, check: str, case: Case, left: Response, right: Response) -> Finding:
        """Compare two completions of a greedy request."""
        return judged(check, case, left, right, lambda: self.tolerance, self.anew)

    def _tried(self, send: Callable[[float], Reply]) -> Reply | Trouble:
        left_s = self._end_s - self.clock()
        if left_s <= 0:
            raise OutOfTime
        try:
            return send(left_s)
        except Trouble as error:
            if self.clock() >= self._end_s:
                raise OutOfTime from error
            return error


Check = Callable[[Audit], Iterator[Finding]]


@dataclass(frozen=True)
class Report:
    """What an audit found. ``unfinished``: the checks that the budget cut short."""

    endpoints: Sequence[Endpoint]
    limits: Limits
    noise: Mapping[str, float]
    findings: Sequence[Finding]
    unfinished: Sequence[str]
    command: str
    date: str

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_fault]

    def as_json(self) -> dict[str, Any]:
        """For ``verify.json``; keys are left out."""
        servers = [
            {"name": e.name, "url": e.url, "model": e.model, "fields": dict(e.extra)}
            for e in self.endpoints
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "date": self.date,
            "command": self.command,
            "servers": servers,
            "limits": asdict(self.limits),
            "noise": dict(self.noise),
            "faults": len(self.faults),
            "unfinished": list(self.unfinished),
            "findings": [asdict(finding) for finding in self.findings],
        }


def run(audit: Audit, checks: dict[str, Check], on_progress: OnProgress) -> tuple[
    list[Finding], list[str]
]:  # fmt: skip
    """The findings of all checks, and the names of those that the budget cut short."""
    found: list[Finding] = []
    for number, (name, check) in enumerate(checks.items()):
        on_progress(name, number, len(checks))
        try:
            for finding in check(audit):
                found.append(finding)
                on_progress(f"{name}: {finding.case}", number, len(checks))
        except OutOfTime:
            return found, list(checks)[number:]
    return found, []
