"""Never slower than plain decoding: which sources of drafts a text is decoded with.

Rates are measured, not modelled: tokens and seconds of rounds under each choice, drafting,
waiting and contention included. Plain decoding is probed now and then, a round at a time, and
what did not pay is tried again after a pause that grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from duodec.planning.rate import Rate

_FADE = 0.94  # of what was measured before, with each round
_TRIAL = 8  # rounds after which a choice is judged
_SOONEST = 2  # rounds of a trial
_FIRST_PROBE, _PROBE_EVERY = 4, 48  # rounds of drafting between two of plain decoding
_FIRST_PAUSE, _MAX_PAUSE = 32, 512  # rounds without what did not pay


class Sources(IntEnum):
    """What is drafted from; each includes those before."""

    NONE = 0
    FREE = 1  # earlier text
    ALL = 2  # the draft model too


@dataclass
class Governor:
    """Chooses among ``allowed`` for one text after the other, after ``first_rest`` rounds of plain
    decoding. A choice is judged after ``trial`` rounds, and must be ``margin`` times as fast as
    what is simpler; below ``hopeless`` times that, it is after two. What does not pay rests, each
    time ``backoff`` times longer. ``probes``, simpler ones, are measured in turn, each first after
    ``first_probe`` rounds of drafting. A single round must tell something of a probe."""

    allowed: Sequence[Sources]
    trial: int = _TRIAL
    first_probe: int = _FIRST_PROBE
    first_rest: int = 0
    probes: Sequence[Sources] = (Sources.NONE,)
    margin: float = 1.0
    hopeless: float = 0.0
    backoff: int = 2
    _rates: dict[Sources, Rate] = field(default_factory=dict)
    _pause: dict[Sources, int] = field(default_factory=dict)  # the next one, in rounds
    _rest: dict[Sources, int] = field(default_factory=dict)  # rounds left of it
    _trial: dict[Sources, int] = field(default_factory=dict)  # rounds since it was taken up
    _since_probe: int = 0
    _num_probes: int = 0

    def __post_init__(self) -> None:
        self._rest = self._rest or dict.fromkeys(self.allowed, self.first_rest)

    def anew(self) -> Governor:
        """One that begins with the choice of this one, and measures all of it again."""
        return replace(
            self, _rates={}, _pause=dict(self._pause), _trial={}, _since_probe=0, _num_probes=0,
            _rest={s: max(rest, self.first_rest) for s, rest in self._rest.items()},
        )  # fmt: skip

    def sources(self, most: Sources = Sources.ALL) -> Sources:
        """For the next round, in which no more than ``most`` may take part."""
        best = self._best(most)
        probes = [s for s in self.probes if s < best and not self._rest.get(s)]
        probe_after = _PROBE_EVERY if self._num_probes >= len(probes) else self.first_probe
        if probes and self._since_probe >= probe_after:
            return probes[self._num_probes % len(probes)]
        return best

    def observe(
        self, sources: Sources, num_tokens: int, seconds: float, most: Sources = Sources.ALL
    ) -> None:
        """A round that was decoded so, in which no more than ``most`` might take part."""
        self._rates.setdefault(sources, Rate(_FADE)).observe(num_tokens, seconds)
        is_probe = sources in self.probes and sources < self._best(most)
        for resting in self._rest:
            self._rest[resting] = max(0, self._rest[resting] - 1)
        if is_probe or sources == Sources.NONE:
            self._num_probes += self._since_probe > 0
            self._since_probe = 0
            return
        self._since_probe += 1
        self._trial[sources] = self._trial.get(sources, 0) + 1
        if self._trial[sources] >= min(_SOONEST, self.trial):
            self._judge(sources)

    def _best(self, most: Sources) -> Sources:
        awake = (s for s in self.allowed if s <= most and not self._rest.get(s))
        return max(awake, default=Sources.NONE)

    def _judge(self, sources: Sources) -> None:
        """What is slower than something simpler rests for a while."""
        own = self._rates[sources].value
        known = [rate.value for s, rate in self._rates.items() if s < sources and rate.num_rounds]
        simpler = max(known, default=0.0)
        is_tried = self._trial[sources] >= self.trial
        if own >= (self.margin if is_tried else self.hopeless) * simpler:
            if is_tried:
                self._pause[sources] = _FIRST_PAUSE
            return
        pause = self._pause.get(sources, _FIRST_PAUSE)
        self._rest[sources] = pause
        self._pause[sources] = min(self.backoff * pause, _MAX_PAUSE)
        self._trial[sources] = 0
        self._rates[sources] = Rate(_FADE)  # judged anew when it is tried again
