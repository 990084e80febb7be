"""What several answers at one target draft from, found by what they bring together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from duodec.planning.governor import Governor, Sources
from duodec.planning.rate import Rate

_FIRST_PROBE = 2  # forwards: each tells of several answers at once
_TRIAL = 16  # rounds of all answers together
_LEAST_TRIAL, _MOST_TRIAL = 2, 4  # forwards
_CAUTION = 16  # forwards of several answers before they draft on cores that they share
_MARGIN = 1.02  # what drafts bring less than that cannot be told from noise
_HOPELESS = 0.75  # a forward brings every answer a token: only slow ones bring less a second
_BACKOFF = 4  # a trial that several answers fail together was no accident
_FADE = 0.9  # of how busy the cores were before, with each forward


def level(num_answers: int) -> int:
    """Numbers of answers that are judged together have the same: 1, 2, 3 to 4, 5 to 8, ..."""
    return max(0, num_answers - 1).bit_length()


class BatchGovernor:
    """One answer that probes plain decoding learns nothing while others make its forwards slow:
    all of them probe together. Numbers of answers are judged apart by powers of two, and more
    answers begin with what was found for fewer: the more there are, the less is idle.

    On cores that a drafter shares, it leaves ``cores_beside`` to the target (None: the target
    computes elsewhere). There, some forwards of several answers go by before drafts are tried at
    all, and a draft model works only where what is computed without it would fit in those cores.
    """

    def __init__(self, cores_beside: int | None = None) -> None:
        self._cores_beside = cores_beside
        self._first = Governor(
            [Sources.FREE, Sources.ALL],
            first_probe=_FIRST_PROBE,
            first_rest=0 if cores_beside is None else _CAUTION,
            probes=(Sources.NONE, Sources.FREE),
            margin=_MARGIN,
            hopeless=_HOPELESS,
            backoff=_BACKOFF,
        )
        self._regimes: list[_Regime] = []
        self._now = self._last = _Cycle(0, Sources.ALL, Sources.ALL)
        self._num_tokens = 0
        self._is_asked = False

    def sources(self) -> Sources:
        """For an answer that would draft. Forwards before which none asked tell nothing."""
        self._is_asked = True
        return self._now.sources

    def took(self, num_tokens: int) -> None:
        """Tokens that a forward brought an answer."""
        self._num_tokens += num_tokens

    def cycle(
        self, num_answers: int, end_s: float, busy_s: float = 0.0, *, is_plain_work: bool
    ) -> None:
        """A forward ended, when this process had computed for ``busy_s`` seconds in all. What the
        forward brings is known by the end of the next one."""
        last, now = self._last, self._now
        if last.is_known and last.num_answers == num_answers:
            self._regime(num_answers).governor.observe(
                last.sources, self._num_tokens, last.seconds, last.most
            )
        seconds = end_s - now.begin_s
        is_alike = is_plain_work and now.num_answers == num_answers
        if is_alike and now.sources != Sources.ALL:
            self._regime(num_answers).cores.observe(busy_s - now.begin_busy_s, seconds)
        is_known = is_alike and self._is_asked
        self._num_tokens, self._is_asked = 0, False
        self._last = replace(now, seconds=seconds, is_known=is_known)
        regime = self._regime(num_answers)
        most = regime.most(self._cores_beside)
        sources = regime.governor.sources(most)
        self._now = _Cycle(num_answers, sources, most, end_s, busy_s)

    def _regime(self, num_answers: int) -> _Regime:
        while len(self._regimes) <= level(num_answers):
            # what one answer alone finds tells nothing of several
            fewer = self._regimes[-1].governor if len(self._regimes) > 1 else self._first
            trial = min(_MOST_TRIAL, max(_LEAST_TRIAL, _TRIAL >> len(self._regimes)))
            self._regimes.append(_Regime(replace(fewer.anew(), trial=trial)))
        return self._regimes[level(num_answers)]


@dataclass
class _Regime:
    """Numbers of answers that are judged together."""

    governor: Governor
    cores: Rate = field(default_factory=lambda: Rate(_FADE))  # busy while no draft model works

    def most(self, cores_beside: int | None) -> Sources:
        """All that may take part."""
        has_room = cores_beside is None or self.cores.value <= cores_beside
        return Sources.ALL if has_room else Sources.FREE


@dataclass(frozen=True)
class _Cycle:
    """From the end of one forward to the end of the next."""

    num_answers: int
    sources: Sources  # that its drafts were planned with
    most: Sources  # that might have been
    begin_s: float = 0.0
    begin_busy_s: float = 0.0
    seconds: float = 0.0
    is_known: bool = False  # measured, with nothing else in it
