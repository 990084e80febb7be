"""Tell what a request says while it runs: pieces of text, then its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.core.events import Delta, Finished
from duodec.core.round import Round
from duodec.core.sampling.logprobs import Logprob


@dataclass(frozen=True)
class Counts:
    """How far a completion is."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_from_model: int = 0  # of those accepted
    num_plain: int = 0  # forward passes without a draft, but for the first, which prefills
    plain_sum_s: float = 0.0

    def plus(self, done: Round) -> Counts:
        is_plain = self.num_rounds > 0 and not done.num_scored
        return Counts(
            self.num_tokens + len(done.tokens),
            self.num_rounds + 1,
            self.num_drafted + done.num_drafted,
            self.num_accepted + done.num_accepted,
            self.num_from_model + done.num_from_model,
            self.num_plain + is_plain,
            self.plain_sum_s + is_plain * (done.end_s - done.start_s),
        )

    @property
    def plain_s(self) -> float | None:
        """Seconds of a plain forward pass, as measured in this completion; None if there were
        fewer than two."""
        return self.plain_sum_s / self.num_plain if self.num_plain > 1 else None


@dataclass(frozen=True)
class Piece:
    """New text, and the logprobs of new tokens; the prompt's come with the first output.
    ``num_cached``: tokens of the prompt that the target knew already."""

    delta: Delta
    logprobs: tuple[Logprob, ...] = ()
    counts: Counts = field(default_factory=Counts)
    prompt_logprobs: tuple[Logprob | None, ...] = ()
    num_cached: int = 0

    def plus(self, later: Piece) -> Piece:
        """Both as one."""
        delta = Delta(self.delta.segments + later.delta.segments)
        logprobs = self.logprobs + later.logprobs
        prompt = self.prompt_logprobs or later.prompt_logprobs
        return Piece(delta, logprobs, later.counts, prompt, self.num_cached)


@dataclass(frozen=True)
class Done:
    """The completion came to its end."""

    finished: Finished
    method: str
    seed: int
    logprobs: tuple[Logprob, ...]  # those that no `Piece` had
    num_cached: int  # tokens of the prompt that the target knew already
    arrive_s: float
    start_s: float  # when it left the queue
    prompt_logprobs: tuple[Logprob | None, ...] = ()  # where no `Piece` was
    stop: str | None = None  # the stop string that ended it


@dataclass(frozen=True)
class Failed:
    """The completion will not go on."""

    error: BaseException


Output = Piece | Done | Failed
