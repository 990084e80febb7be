"""Rest a source that takes time of its own and adds too little to what others propose."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.planning.trial import Trial

_FADE = 0.97  # of what was measured before, with each round
_TRIAL = 24  # rounds after which it is judged


@dataclass
class Supplement:
    """Judged by the tokens that nothing else would have brought. A governor compares rates of whole
    rounds, in which the few percent that weak heads cost or bring are lost."""

    _trial: Trial = field(default_factory=lambda: Trial(_FADE))

    def takes_part(self) -> bool:
        """Whether it does in the next round; asked once a round."""
        self._trial.tick()
        return not self._trial.rest

    def observe(self, num_tokens: int, seconds: float, rate: float) -> None:
        """Add a round: so many tokens came by it alone, for so many seconds, while decoding brings
        tokens at this rate."""
        trial = self._trial
        trial.observe(num_tokens, seconds)
        if trial.num_tried < _TRIAL:
            return
        if trial.rate.amount >= rate * trial.rate.seconds:
            trial.pays()
        else:
            trial.fails()
