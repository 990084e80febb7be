"""Forecast what a draft model is worth in each place where it may compute."""

from __future__ import annotations

from dataclasses import dataclass

_RIGHT = 0.7  # expected share of right tokens before any is judged
_MOST = 8  # most tokens of a draft, in turns
_MEMORY_BYTES_A_S = 20e9  # memory that one core reads per second
_TICK_S = 1e-9  # least duration of anything


@dataclass(frozen=True)
class Forecast:
    """Forecast tokens a second from the times of a target's forward pass and of a draft model's
    step. A drafted token is right with likelihood ``right`` if those before it are."""

    forward_s: float
    step_s: float
    right: float = _RIGHT

    @property
    def plain(self) -> float:
        """Return the rate without a draft."""
        return 1.0 / max(_TICK_S, self.forward_s)

    @property
    def in_turns(self) -> float:
        """Return the rate on the target's device, where each step delays the next forward pass."""
        return max(
            self._tokens(num) / max(_TICK_S, self.forward_s + num * self.step_s)
            for num in range(_MOST + 1)
        )

    @property
    def in_parallel(self) -> float:
        """Return the rate on other cores. As many steps as fit in a forward pass run there. They
        are of use if the pass ends as expected: its draft is right, and the token after it.
        Otherwise one step is waited for, or none. In a simulation the card was as fast or faster on
        seven of seven curves, even for a draft with steps of a millisecond on a core
        (`curves-35-cards`, `curves-35-limits`)."""
        num = min(_MOST, int(self.forward_s / max(_TICK_S, self.step_s)))
        is_expected = self.right**2
        kept, missed = is_expected * self._tokens(num), 1 - is_expected
        waits = (kept + missed * self._tokens(1)) / max(
            _TICK_S, self.forward_s + missed * self.step_s
        )
        return max(waits, (kept + missed) * self.plain)

    def _tokens(self, num_drafted: int) -> float:
        """Return the expected tokens of a forward pass over ``num_drafted`` draft tokens."""
        return sum(self.right**number for number in range(num_drafted + 1))


def step_on_core_s(num_bytes: int) -> float:
    """Return the expected seconds of a step on a core that reads ``num_bytes`` of weights, before
    one is timed."""
    return num_bytes / _MEMORY_BYTES_A_S
