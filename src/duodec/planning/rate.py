"""Measure tokens or work per second over the latest rounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Rate:
    """The total amount over the total seconds; earlier measurements fade with each round."""

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
        """Amount per second; 0 before the first measurement."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0
