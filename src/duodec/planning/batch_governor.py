"""Choose what the requests of a batch draft from, by their total rate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from duodec.drafting import constants
from duodec.planning.governor import Governor, Sources
from duodec.planning.trial import Rate


def level(num_requests: int) -> int:
    """Return the level of a batch size. Sizes of one level are judged together: 2, 3 to 4, 5 to 8,
    ... A single request has level 0."""
    return max(0, num_requests - 1).bit_length()


class BatchGovernor:
    """Choose the sources of drafts for all requests of a batch together.

    One request alone cannot probe plain decoding while others slow its forward passes, so all
    requests probe together. Batch sizes are judged separately by powers of two. A larger batch
    begins with the choice of a smaller one, since the larger it is, the fewer cores are idle.

    Where a drafter shares cores with the target, it leaves ``cores_for_target`` to the target
    (None: the target computes elsewhere). On such cores a batch runs some forward passes before
    drafts are tried, and a draft model works only if the work without it would fit in those cores.
    """

    def __init__(self, cores_for_target: int | None = None) -> None:
        self._cores_for_target = cores_for_target
        self._first = Governor(
            [Sources.FREE, Sources.ALL],
            first_probe=constants.MIN_ROUNDS,
            first_rests={}
            if cores_for_target is None
            else dict.fromkeys(Sources, constants.REST_BEFORE_TRIAL),
            probes=(Sources.NONE, Sources.FREE),
            margin=constants.MARGIN_OF_BATCH,
            hopeless=constants.HOPELESS_BELOW,
            backoff=constants.BACKOFF_OF_BATCH,
        )
        self._regimes: list[_Regime] = []  # by level, from 1
        self._now = self._last = _Cycle(0, Sources.ALL, Sources.ALL)
        self._num_tokens = 0
        self._is_asked = False

    def sources(self) -> Sources:
        """Return the sources for a request that could draft. A forward pass is judged only if this
        was called before it."""
        self._is_asked = True
        return self._now.sources

    def count_tokens(self, num_tokens: int) -> None:
        """Count the tokens that a forward pass gave a request."""
        self._num_tokens += num_tokens

    def cycle(
        self, num_requests: int, end_s: float, busy_s: float = 0.0, *, is_plain_work: bool
    ) -> None:
        """End a forward pass. This process has computed for ``busy_s`` seconds in all. The number
        of tokens of the pass is known by the end of the next one."""
        if num_requests < 2:  # a single request has its own governor
            # This is planned before the first forward pass of several requests.
            next_ = Sources.ALL if self._cores_for_target is None else Sources.NONE
            self._last = self._now = _Cycle(num_requests, next_, Sources.ALL, end_s, busy_s)
            self._num_tokens, self._is_asked = 0, False
            return
        last, now = self._last, self._now
        if last.is_known and last.num_requests == num_requests:
            self._regime(num_requests).governor.observe(
                last.sources, self._num_tokens, last.seconds, last.most
            )
        seconds = end_s - now.begin_s
        is_alike = is_plain_work and now.num_requests == num_requests
        if is_alike and now.sources != Sources.ALL:
            self._regime(num_requests).cores.observe(busy_s - now.begin_busy_s, seconds)
        is_known = is_alike and self._is_asked
        self._num_tokens, self._is_asked = 0, False
        self._last = replace(now, seconds=seconds, is_known=is_known)
        regime = self._regime(num_requests)
        most = regime.most(self._cores_for_target)
        sources = regime.governor.sources(most)
        self._now = _Cycle(num_requests, sources, most, end_s, busy_s)

    def _regime(self, num_requests: int) -> _Regime:
        """Return the regime of several requests. What a single request finds does not hold for
        them."""
        while len(self._regimes) < level(num_requests):
            fewer = self._regimes[-1].governor if self._regimes else self._first
            trial = (
                constants.TRIAL_PASSES_OF_BATCH if len(self._regimes) < 2 else constants.MIN_ROUNDS
            )
            self._regimes.append(_Regime(replace(fewer.fresh(), trial=trial)))
        return self._regimes[level(num_requests) - 1]


@dataclass
class _Regime:
    """Judge a range of batch sizes together."""

    governor: Governor
    # This rate counts the cores that are busy while no draft model works.
    cores: Rate = field(default_factory=Rate)

    def most(self, cores_for_target: int | None) -> Sources:
        """Return the most sources allowed."""
        has_room = cores_for_target is None or self.cores.value <= cores_for_target
        return Sources.ALL if has_room else Sources.FREE


@dataclass(frozen=True)
class _Cycle:
    """Record the time from the end of one forward pass to the end of the next."""

    num_requests: int
    sources: Sources  # sources that its drafts were planned with
    most: Sources  # most sources that were possible
    begin_s: float = 0.0
    begin_busy_s: float = 0.0
    seconds: float = 0.0
    is_known: bool = False  # it was measured without other work
