"""Record trials of what costs time and may pay: how fast it was, and how long it rests after it
failed (exponential backoff)."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.drafting import constants


@dataclass
class Rate:
    """Divide a sum of amounts by a sum of seconds, usually tokens by the seconds that they took.
    Each observation first multiplies both sums by ``fade``."""

    fade: float = constants.FADE
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
    """Record one option that costs time and may pay, such as drafting with a draft model.

    Its owner decides whether to try it and whether it paid, and reports that by `pays` or `fails`.
    After a failure the option rests. Each further failure in a row makes the rest ``backoff`` times
    longer, up to ``max_pause``. The owner calls `tick` once a round, and tries the option when
    ``rest`` is 0.
    """

    fade: float = constants.FADE  # of its rate, with each observation
    backoff: int = 2
    first_pause: int = constants.FIRST_PAUSE
    max_pause: int = constants.MAX_PAUSE
    rest: int = 0  # rounds until it may be tried
    num_failed: int = 0  # failures in a row, until the rest is the longest
    num_tried: int = 0  # rounds in which it was tried since its last failure
    lost_s: float = 0.0  # that simpler options would not have taken, since the trial began
    rate: Rate = field(init=False)  # measured since its last failure

    def __post_init__(self) -> None:
        self.rate = Rate(self.fade)

    @property
    def pause(self) -> int:
        """Return how many rounds it rests if it fails now."""
        pause: int = self.first_pause * self.backoff**self.num_failed
        return min(pause, self.max_pause)

    @property
    def is_new(self) -> bool:
        """Return whether nothing was measured of it, and it inherited no failure."""
        return not self.rate.num_rounds and not self.num_failed

    def tick(self) -> None:
        """Take a round off its rest, if it rests."""
        if self.rest:
            self.rest -= 1

    def observe(self, amount: float, seconds: float) -> None:
        """Record a round in which it was tried."""
        self.num_tried += 1
        self.rate.observe(amount, seconds)

    def pays(self) -> None:
        """Record that it paid: its next rest is the first one again. Its rate goes on."""
        self.num_failed, self.lost_s = 0, 0.0

    def fails(self, rest: int | None = None) -> None:
        """Record that it did not pay: it rests for ``rest`` rounds (by default `pause`), its next
        rest is longer, and what was measured of it is forgotten."""
        self.rest = self.pause if rest is None else rest
        if self.pause < self.max_pause:
            self.num_failed += 1
        self.num_tried, self.lost_s, self.rate = 0, 0.0, Rate(self.fade)

    def fresh(self, rest: int) -> Trial:
        """Return a trial without measurements that keeps this one's backoff, and rests for ``rest``
        rounds first."""
        return Trial(
            self.fade, self.backoff, self.first_pause, self.max_pause, rest, self.num_failed
        )


@dataclass
class Supplement:
    """Decide whether the target's heads run in addition to other sources. They run while the tokens
    that only they brought are more than decoding would bring in the time that they take. A governor
    cannot judge this, since a few per cent of a round vanish in noise."""

    _trial: Trial = field(default_factory=lambda: Trial(constants.SLOW_FADE))

    def takes_part(self) -> bool:
        """Count a round in which the heads could take part, and return whether they do."""
        self._trial.tick()
        return not self._trial.rest

    def observe(self, num_tokens: int, seconds: float, rate: float) -> None:
        """Record a round: only the heads brought ``num_tokens``, in ``seconds``, while decoding
        brings tokens at ``rate``. From the last round of the trial on, each is judged."""
        trial = self._trial
        trial.observe(num_tokens, seconds)
        if trial.num_tried < constants.TRIAL_ROUNDS:
            return
        if trial.rate.amount >= rate * trial.rate.seconds:
            trial.pays()
        else:
            trial.fails()
