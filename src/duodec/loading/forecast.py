"""Forecast what a draft model is worth in each place where it may compute."""

from __future__ import annotations

from dataclasses import dataclass

_RIGHT = 0.7  # of the tokens that a draft model proposes, expected before any is judged
_MOST = 8  # tokens of a draft, in turns
_MEMORY_BYTES_A_S = 20e9  # that one core reads
_TICK_S = 1e-9  # the least anything takes


@dataclass(frozen=True)
class Forecast:
    """Tokens a second with a forward pass of the target and a step of the draft model that take so
    long, where a drafted token is ``right`` so often if those before it are."""

    forward_s: float
    step_s: float
    right: float = _RIGHT

    @property
    def plain(self) -> float:
        """Without a draft."""
        return 1.0 / max(_TICK_S, self.forward_s)

    @property
    def in_turns(self) -> float:
        """On the target's device: each step delays the next forward pass."""
        return max(
            self._tokens(num) / max(_TICK_S, self.forward_s + num * self.step_s)
            for num in range(_MOST + 1)
        )

    @property
    def in_parallel(self) -> float:
        """On other cores: as many steps as fit in a forward pass, which are of use if the pass ends
        as it was expected to: its draft is right, and the token after it. Else one step is waited
        for, or none. Simulated, the card was as fast or faster on seven of seven curves even for a
        draft with steps of a millisecond on a core (`curves-35-cards`, `curves-35-limits`)."""
        num = min(_MOST, int(self.forward_s / max(_TICK_S, self.step_s)))
        is_expected = self.right**2
        kept, missed = is_expected * self._tokens(num), 1 - is_expected
        waits = (kept + missed * self._tokens(1)) / max(
            _TICK_S, self.forward_s + missed * self.step_s
        )
        return max(waits, (kept + missed) * self.plain)

    def _tokens(self, num_drafted: int) -> float:
        """Of a forward pass over so many draft tokens."""
        return sum(self.right**number for number in range(num_drafted + 1))


def step_on_core_s(num_bytes: int) -> float:
    """Expected seconds of a step on a core that reads so many bytes of weights, before one is
    timed."""
    return num_bytes / _MEMORY_BYTES_A_S
