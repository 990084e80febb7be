"""Choose the sources of drafts for a text, so that decoding is never slower than plain decoding.

Rates are measured, not modelled: tokens and seconds of rounds under each choice, including
drafting, waiting and contention. Plain decoding is probed now and then, one round at a time. A
choice that did not pay is retried after a pause that grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from duodec.drafting import constants
from duodec.planning.trial import Rate, Trial


class Sources(IntEnum):
    """Name what drafts come from; each value includes those before it."""

    NONE = 0
    FREE = 1  # earlier text
    HEADS = 2  # the target's own heads, if it has any
    ALL = 3  # the draft model too


@dataclass
class Governor:
    """Choose among ``allowed`` for one text after another.

    Each choice follows ``first_rests`` rounds of simpler ones. It is judged after ``trial`` rounds
    and must be ``margin`` times as fast as simpler ones. Below ``hopeless`` times their rate it is
    judged after two rounds. A choice that does not pay rests, each time ``backoff`` times longer.
    After a trial it rests at least ``pause_per_lost`` rounds for each round of plain decoding that
    the trial has cost. ``probes``, simpler choices, are measured in turn, first after
    ``first_probe`` rounds of drafting, for a single round each.

    Drafts may lose ``allowance`` rounds of plain decoding on balance. Gains add to the allowance,
    and it grows back slowly. Without it drafts rest.
    """

    allowed: Sequence[Sources]
    trial: int = constants.LOOK_AGAIN_AFTER
    first_probe: int = constants.LOOK_AGAIN_AFTER // 2
    first_rests: Mapping[Sources, int] = field(default_factory=dict)
    probes: Sequence[Sources] = (Sources.NONE,)
    margin: float = 1.0
    hopeless: float = 0.0
    backoff: int = 2
    pause_per_lost: int = 0
    allowance: float = math.inf
    # The length of the text when plain decoding was measured; loading measures it first.
    plain_length: int = 0
    _trials: dict[Sources, Trial] = field(default_factory=dict)
    _since_probe: float = 0.0
    # This rate counts rounds of plain decoding.
    _plain: Rate = field(default_factory=Rate)
    _num_probes: int = 0
    _since_inferred: float = math.inf  # rounds of drafting since plain decoding was inferred

    def __post_init__(self) -> None:
        self._least = self.allowance  # the allowance grows back to this
        self._trials = self._trials or {
            s: Trial(backoff=self.backoff, rest=self._first_rest(s)) for s in Sources
        }

    def fresh(self) -> Governor:
        """Return a governor that begins with this one's choice and measures everything again."""
        trials = {s: t.fresh(max(t.rest, self._first_rest(s))) for s, t in self._trials.items()}
        return replace(
            self, _trials=trials, _since_probe=0.0, _num_probes=0,
            _plain=Rate(), _since_inferred=math.inf,
        )  # fmt: skip

    def _first_rest(self, sources: Sources) -> int:
        return self.first_rests.get(sources, 0) if sources in self.allowed else 0

    def sources(self, most: Sources = Sources.ALL) -> Sources:
        """Return the sources for the next round, at most ``most``."""
        best = self._best(most) if self.allowance > 0 else Sources.NONE
        if best == Sources.NONE:  # plain decoding takes a short path
            return best
        inferred = Sources.NONE if self._since_inferred < constants.PROBE_EVERY else None
        probes = [s for s in self.probes if s < best and s != inferred and not self._trials[s].rest]
        probe_after = constants.PROBE_EVERY if self._num_probes >= len(probes) else self.first_probe
        if probes and self._since_probe >= probe_after:
            return probes[self._num_probes % len(probes)]
        return best

    def observe(
        self, sources: Sources, num_tokens: int, seconds: float, most: Sources = Sources.ALL
    ) -> None:
        """Record a round decoded with ``sources``, of at most ``most``."""
        is_plain = sources == Sources.NONE
        is_probe = is_plain or (sources in self.probes and sources < self._best(most))
        trial = self._trials[sources]
        trial.rate.observe(num_tokens, seconds)
        for each in self._trials.values():
            each.tick()
        if is_plain:
            self._plain.observe(1, seconds)
            gained = 0.0
        else:
            gained = num_tokens - seconds * self._plain.value if self._plain.num_rounds else 0.0
        self.allowance = self._allowance_after(gained)
        if is_probe:
            self._num_probes += self._since_probe > 0
            self._since_probe = 0.0
            return
        num_plain = max(1.0, seconds * self._plain.value)
        self._since_probe += num_plain
        self._since_inferred += num_plain
        trial.num_tried += 1
        if simpler := self._simpler(sources):
            trial.lost_s += seconds - num_tokens / simpler
        if trial.num_tried >= min(constants.MIN_ROUNDS, self.trial):
            self._judge(sources)

    def cut_first_rest(self, sources: Sources, num_rounds: float) -> None:
        """Let a choice that was never tried rest for at most ``num_rounds``."""
        trial = self._trials[sources]
        if trial.is_new and num_rounds < trial.rest:
            trial.rest = round(num_rounds)

    def infer_plain(self, seconds: float) -> None:
        """Record a round of plain decoding that would have taken ``seconds``. Where a forward pass
        takes as long without its draft, there is nothing to probe."""
        self._since_inferred = 0.0
        for rate in (self._plain, self._trials[Sources.NONE].rate):
            rate.observe(1, seconds)

    def charge(self, sources: Sources, seconds: float) -> None:
        """Add a cost of a choice that belongs to no round. If the trial fails, the choice rests for
        this cost too."""
        self._trials[sources].lost_s += seconds

    def saved(self, sources: Sources) -> float:
        """Return the share of the time of simpler choices that this one saves, and a little at
        least: what is never chosen is never measured. Until it has been tried, the share is a
        fifth, halved by each trial that failed."""
        trial, simpler = self._trials[sources], self._simpler(sources)
        if not simpler or trial.rate.num_rounds < self.trial:
            return constants.EXPECTED_SAVING * trial.first_pause / trial.pause
        least = constants.EXPECTED_SAVING * trial.first_pause / trial.max_pause
        return max(least, 1.0 - simpler / trial.rate.value)

    def _simpler(self, sources: Sources) -> float:
        """Return the best rate of simpler choices."""
        trials = self._trials.items()
        return max((trial.rate.value for s, trial in trials if s < sources), default=0.0)

    def _allowance_after(self, gained: float) -> float:
        """Return the allowance after a round that gained ``gained`` rounds of plain decoding."""
        left = self.allowance
        if left < self._least:
            left = min(self._least, left + constants.ALLOWANCE_REGROWTH)
        return min(left + gained, max(left, constants.MAX_ALLOWANCE))

    def _best(self, most: Sources) -> Sources:
        best = Sources.NONE
        for sources in self.allowed:
            if best < sources <= most and not self._trials[sources].rest:
                best = sources
        return best

    def _judge(self, sources: Sources) -> None:
        """Rest sources that are slower than simpler ones."""
        trial, simpler = self._trials[sources], self._simpler(sources)
        is_tried = trial.num_tried >= self.trial
        if trial.rate.value >= (self.margin if is_tried else self.hopeless) * simpler:
            if is_tried:
                trial.pays()
            return
        has_paid = trial.num_tried > self.trial
        if has_paid and simpler > self._trials[Sources.NONE].rate.value:
            # Few probes measured what other drafts bring, and they may have been lucky.
            trial.fails(min(trial.pause, constants.LOOK_AGAIN_AFTER))
            return
        lost_s = 0.0 if has_paid else trial.lost_s
        num_lost = round(self.pause_per_lost * lost_s * self._plain.value)
        trial.fails(max(trial.pause, min(num_lost, constants.MAX_PAUSE)))
