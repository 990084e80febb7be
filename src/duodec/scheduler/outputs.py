"""Define what a running request sends: pieces of text, then its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.core.events import Delta, Finished
from duodec.core.round import Round
from duodec.core.sampling.logprobs import Logprob


@dataclass(frozen=True)
class Counts:
    """Count how far a completion is."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_from_model: int = 0  # accepted tokens that the draft model proposed
    num_plain: int = 0  # forward passes without a draft, except the first, which prefills
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
        """Return the seconds of a plain forward pass, as measured in this completion; None if there
        were fewer than two."""
        return self.plain_sum_s / self.num_plain if self.num_plain > 1 else None


@dataclass(frozen=True)
class Piece:
    """Carry new text, and the logprobs of new tokens. The prompt's logprobs come with the first
    output. ``num_cached`` counts the prompt's tokens that were cached before."""

    delta: Delta
    logprobs: tuple[Logprob, ...] = ()
    counts: Counts = field(default_factory=Counts)
    prompt_logprobs: tuple[Logprob | None, ...] = ()
    num_cached: int = 0

    def plus(self, later: Piece) -> Piece:
        """Return both as one."""
        delta = Delta(self.delta.segments + later.delta.segments)
        logprobs = self.logprobs + later.logprobs
        prompt = self.prompt_logprobs or later.prompt_logprobs
        return Piece(delta, logprobs, later.counts, prompt, self.num_cached)


@dataclass(frozen=True)
class Done:
    """Report that the completion is finished."""

    finished: Finished
    method: str
    seed: int
    logprobs: tuple[Logprob, ...]  # logprobs that no `Piece` had
    num_cached: int  # tokens of the prompt that were cached before
    arrive_s: float
    start_s: float  # time at which it left the queue
    # The prompt's logprobs, if there was no `Piece`.
    prompt_logprobs: tuple[Logprob | None, ...] = ()
    stop: str | None = None  # stop string that ended it


@dataclass(frozen=True)
class Failed:
    """Report that the completion failed."""

    error: BaseException


Output = Piece | Done | Failed
