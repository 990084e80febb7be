"""Try what may pay, judge it by its rate, and rest it while it does not, longer each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.drafting import constants


@dataclass
class Rate:
    """Divide the total amount by the total seconds; earlier measurements fade with each round."""

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


@dataclass
class Trial:
    """Try something that may pay. Its user reports the end of each round (`tick`), what it brought
    (`observe`), and the judgement (`pays`, `fails`). Each failure in a row makes the next rest
    ``backoff`` times longer."""

    fade: float = 1.0  # factor of its rate in each round
    backoff: int = 2
    first_pause: int = constants.FIRST_PAUSE
    max_pause: int = constants.MAX_PAUSE
    rest: int = 0  # rounds until it is tried
    num_failed: int = 0  # failed trials in a row
    num_tried: int = 0  # rounds since its last rest
    charged_s: float = 0.0  # cost since then that belongs to no round
    rate: Rate = field(init=False)  # rate since then

    def __post_init__(self) -> None:
        self.rate = Rate(self.fade)

    @property
    def pause(self) -> int:
        """Return the rounds of the next rest."""
        pause: int = self.first_pause * self.backoff**self.num_failed
        return min(pause, self.max_pause)

    @property
    def is_new(self) -> bool:
        """Return whether it was never tried, or not since a trial that paid."""
        return not self.rate.num_rounds and not self.num_failed

    def tick(self) -> None:
        """End a round, whatever was tried in it."""
        self.rest -= self.rest > 0

    def observe(self, amount: float, seconds: float) -> None:
        """Record a round in which it was tried."""
        self.num_tried += 1
        self.rate.observe(amount, seconds)

    def pays(self) -> None:
        """Let it go on; its next rest is short."""
        self.num_failed, self.charged_s = 0, 0.0

    def fails(self, rest: int | None = None) -> None:
        """Let it rest for ``rest`` rounds, by default for its next rest, and judge it again after
        that."""
        self.rest = self.pause if rest is None else rest
        self.num_failed += self.pause < self.max_pause
        self.num_tried, self.charged_s, self.rate = 0, 0.0, Rate(self.fade)

    def fresh(self, rest: int) -> Trial:
        """Return a trial without measurements, whose rests are as long as this one's."""
        return Trial(
            self.fade, self.backoff, self.first_pause, self.max_pause, rest, self.num_failed
        )


@dataclass
class Supplement:
    """Judge a source that takes time of its own, and rest it while it adds too little to the other
    sources. Only tokens that no other source would have brought count. A governor compares rates of
    whole rounds, in which the few percent that weak heads cost or bring are lost."""

    _trial: Trial = field(default_factory=lambda: Trial(constants.FADE_OF_SUPPLEMENT))

    def takes_part(self) -> bool:
        """Return whether the source takes part in the next round; call it once a round."""
        self._trial.tick()
        return not self._trial.rest

    def observe(self, num_tokens: int, seconds: float, rate: float) -> None:
        """Record a round: the source alone brought ``num_tokens`` in ``seconds``, while decoding
        brings tokens at ``rate``."""
        trial = self._trial
        trial.observe(num_tokens, seconds)
        if trial.num_tried < constants.TRIAL:
            return
        if trial.rate.amount >= rate * trial.rate.seconds:
            trial.pays()
        else:
            trial.fails()
