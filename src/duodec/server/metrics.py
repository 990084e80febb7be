"""What an operator watches, for Prometheus: vLLM's names, under a prefix of our own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from duodec.core.round import NEAR_TIE, Round
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.server.logs import log

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EVERY_S = 0.1
_WINDOW_S = 60.0  # over which the longest delay is told
_WARN_S = 1.0
_FIRST_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_DELAY_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_WHOLE_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)


class Watchdog:
    """Measures how late the event loop is: sleeps, and looks how much later than due it wakes.
    ``observe`` is called with each delay."""

    def __init__(
        self, observe: Callable[[float], None], clock: Callable[[], float] = perf_counter
    ) -> None:
        self._observe = observe
        self._clock = clock
        self._peaks: deque[tuple[float, float]] = deque()  # (when, delay), ever smaller delays

    @property
    def longest_s(self) -> float:
        """The longest delay of the last minute."""
        self._forget(self._clock())
        return self._peaks[0][1] if self._peaks else 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            begin_s = self._clock()
            await asyncio.sleep(_EVERY_S)
            self.note(max(0.0, self._clock() - begin_s - _EVERY_S))

    def note(self, delay_s: float) -> None:
        """One delay."""
        now_s = self._clock()
        self._forget(now_s)
        while self._peaks and self._peaks[-1][1] <= delay_s:
            self._peaks.pop()
        self._peaks.append((now_s, delay_s))
        self._observe(delay_s)
        if delay_s > _WARN_S:
            log.warning("the event loop was held up", extra={"facts": {"seconds": delay_s}})

    def _forget(self, now_s: float) -> None:
        while self._peaks and self._peaks[0][0] < now_s - _WINDOW_S:
            self._peaks.popleft()


class EmbeddedTexts(Protocol):
    """A request for rows of texts."""

    arrive_s: float

    @property
    def num_tokens(self) -> int: ...


class Meters:
    """Counters of one server. They move once a completion has ended, before its client is told."""

    def __init__(self, prefix: str = "duodec") -> None:
        self._registry = CollectorRegistry()
        self._prefix = prefix
        self._drafts = self._counter("spec_decode_num_drafts", "Rounds that had a draft.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Draft tokens.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._per_position = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted, by place.", ("position",)
        )
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.")
        self._generated = self._counter("generation_tokens", "Tokens of completions.")
        self._ended = self._counter(
            "request_success", "Completions by how they ended.", ("finished_reason",)
        )
        self._refused = self._counter("requests_refused", "Requests by status.", ("status",))
        self._verify_s = self._counter(
            "verify_seconds", "Forward passes of the target, waiting included."
        )
        self._wait_s = self._counter("draft_wait_seconds", "Waiting for drafts.")
        self._near_ties = self._counter("near_ties", "Rounds that another kernel might change.")
        self._first_s = self._histogram("time_to_first_token_seconds", _FIRST_S)
        self._whole_s = self._histogram("e2e_request_latency_seconds", _WHOLE_S)
        self._delay_s = self._histogram("event_loop_delay_seconds", _DELAY_S)
        self.watchdog = Watchdog(self._delay_s.observe)
        self.gauge(
            "event_loop_delay_max_seconds", "The longest of the last minute.",
            lambda: self.watchdog.longest_s,
        )  # fmt: skip

    def gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when somebody looks."""
        gauge = Gauge(f"{self._prefix}:{name}", help_text, registry=self._registry)
        gauge.set_function(value)

    def counter(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """A count that only grows, read when somebody looks."""
        self._registry.register(_ReadCounter(f"{self._prefix}:{name}", help_text, value))

    def ended(self, entry: ScheduledRequest, reason: str) -> None:
        """A completion has ended: as OpenAI's finish reasons, ``abort`` or ``error``."""
        self._ended.labels(reason).inc()
        rounds = entry.request.rounds
        if rounds:
            if entry.request.sampler.choice == 0:  # as `usage` counts it: once a request
                self._prompt.inc(len(entry.request.prompt))
            self._first_s.observe(rounds[0].end_s - entry.arrive_s)
            self._count(rounds)
        self._whole_s.observe(max(0.0, perf_counter() - entry.arrive_s))

    def embedded(self, job: EmbeddedTexts) -> None:
        """The rows of a request are computed."""
        self._ended.labels("stop").inc()
        self._prompt.inc(job.num_tokens)
        self._whole_s.observe(max(0.0, perf_counter() - job.arrive_s))

    def dropped(self) -> None:
        """A client left before its request was with the scheduler."""
        self._ended.labels("abort").inc()

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def _count(self, rounds: Sequence[Round]) -> None:
        for done in rounds:
            self._generated.inc(len(done.tokens))
            self._drafts.inc(done.num_drafted > 0)
            self._drafted.inc(done.num_drafted)
            self._accepted.inc(done.num_accepted)
            self._verify_s.inc(max(0.0, done.end_s - done.start_s))
            self._wait_s.inc(max(0.0, done.draft_wait_s))
            for position in range(done.num_accepted):
                self._per_position.labels(str(position)).inc()
        self._near_ties.inc(sum(done.margin < NEAR_TIE for done in rounds))

    def _counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{self._prefix}:{name}", help_text, labels, registry=self._registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"{self._prefix}:{name}", "Seconds.", buckets=buckets, registry=self._registry
        )


class _ReadCounter(Collector):
    """A counter whose value is kept elsewhere."""

    def __init__(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        self._name, self._help, self._value = name, help_text, value

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._help, value=self._value())
