"""Try what may pay, judge it by its rate, and rest it while it does not, longer each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.drafting import constants


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


@dataclass
class Trial:
    """Something that may pay. Whoever tries it says when a round is over (`tick`), what it brought
    (`observe`), and what it is judged to be (`pays`, `fails`). Each failure in a row makes the rest
    after it ``backoff`` times longer."""

    fade: float = 1.0  # of its rate, with each round
    backoff: int = 2
    first_pause: int = constants.FIRST_PAUSE
    max_pause: int = constants.MAX_PAUSE
    rest: int = 0  # rounds until it is tried
    num_failed: int = 0  # trials in a row
    num_tried: int = 0  # rounds since it rested
    charged_s: float = 0.0  # since then, in no round
    rate: Rate = field(init=False)  # since then

    def __post_init__(self) -> None:
        self.rate = Rate(self.fade)

    @property
    def pause(self) -> int:
        """Rounds of the next rest."""
        pause: int = self.first_pause * self.backoff**self.num_failed
        return min(pause, self.max_pause)

    @property
    def is_new(self) -> bool:
        """It was never tried, or not since a trial that paid."""
        return not self.rate.num_rounds and not self.num_failed

    def tick(self) -> None:
        """A round is over, whatever was tried in it."""
        self.rest -= self.rest > 0

    def observe(self, amount: float, seconds: float) -> None:
        """It was tried for a round."""
        self.num_tried += 1
        self.rate.observe(amount, seconds)

    def pays(self) -> None:
        """It goes on; its next rest is short."""
        self.num_failed, self.charged_s = 0, 0.0

    def fails(self, rest: int | None = None) -> None:
        """It rests for so many rounds, as long as its next rest where nobody says otherwise, and is
        judged anew after that."""
        self.rest = self.pause if rest is None else rest
        self.num_failed += self.pause < self.max_pause
        self.num_tried, self.charged_s, self.rate = 0, 0.0, Rate(self.fade)

    def anew(self, rest: int) -> Trial:
        """One of which nothing is measured, with rests as long as this one's."""
        return Trial(
            self.fade, self.backoff, self.first_pause, self.max_pause, rest, self.num_failed
        )


@dataclass
class Supplement:
    """A source that takes time of its own, and rests while it adds too little to what others
    propose. Judged by the tokens that nothing else would have brought. A governor compares rates of
    whole rounds, in which the few percent that weak heads cost or bring are lost."""

    _trial: Trial = field(default_factory=lambda: Trial(constants.FADE_OF_SUPPLEMENT))

    def takes_part(self) -> bool:
        """Whether it does in the next round; asked once a round."""
        self._trial.tick()
        return not self._trial.rest

    def observe(self, num_tokens: int, seconds: float, rate: float) -> None:
        """Add a round: so many tokens came by it alone, for so many seconds, while decoding brings
        tokens at this rate."""
        trial = self._trial
        trial.observe(num_tokens, seconds)
        if trial.num_tried < constants.TRIAL:
            return
        if trial.rate.amount >= rate * trial.rate.seconds:
            trial.pays()
        else:
            trial.fails()
