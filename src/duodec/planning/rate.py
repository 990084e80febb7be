"""Something by the second, of the latest rounds: tokens, or work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Rate:
    """All of it over all seconds, where what was measured before fades with each round."""

    fade: float
    amount: float = 0.0
    seconds: float = 0.0
    num_rounds: int = 0

    def observe(self, amount: float, seconds: float) -> None:
        self.amount = self.amount * self.fade + amount
        self.seconds = self.seconds * self.fade + seconds
        self.num_rounds += 1

    @property
    def value(self) -> float:
        """0 before anything was measured."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0
