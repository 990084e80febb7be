"""Tokens a second, of the latest rounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Rate:
    """All tokens over all seconds, where what was measured before fades with each round."""

    fade: float
    num_tokens: float = 0.0
    seconds: float = 0.0
    num_rounds: int = 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        self.num_tokens = self.num_tokens * self.fade + num_tokens
        self.seconds = self.seconds * self.fade + seconds
        self.num_rounds += 1

    @property
    def value(self) -> float:
        """0 before anything was measured."""
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0
