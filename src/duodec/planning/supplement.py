"""Rest a source that takes time of its own and adds too little to what others propose."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.planning.governor import Rate

_FADE = 0.97  # of what was measured before, with each round
_TRIAL = 24  # rounds after which it is judged
_FIRST_PAUSE, _MAX_PAUSE = 32, 512  # rounds before it is retried


@dataclass
class Supplement:
    """Judged by the tokens that nothing else would have brought. A governor compares rates of whole
    rounds, in which the few percent that weak heads cost or bring are lost."""

    _rate: Rate = field(default_factory=lambda: Rate(_FADE))
    _num_tried: int = 0  # rounds since it last rested
    _rest: int = 0  # rounds
    _pause: int = _FIRST_PAUSE  # the next rest

    def takes_part(self) -> bool:
        """Whether it does in the next round; asked once a round."""
        self._rest -= self._rest > 0
        return not self._rest

    def observe(self, num_tokens: int, seconds: float, rate: float) -> None:
        """Add a round: so many tokens came by it alone, for so many seconds, while decoding brings
        tokens at this rate."""
        self._rate.observe(num_tokens, seconds)
        self._num_tried += 1
        if self._num_tried < _TRIAL:
            return
        if self._rate.amount >= rate * self._rate.seconds:
            self._pause = _FIRST_PAUSE
            return
        self._rest, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE)
        self._rate, self._num_tried = Rate(_FADE), 0
