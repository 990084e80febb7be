"""An answer that is wanted, on its way, and what it says while it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from duodec.core.round import Round
from duodec.core.sampling import SamplingParams
from duodec.events import Delta, Finished
from duodec.server.logprobs import Mark


@dataclass(frozen=True)
class Ask:
    """One answer, as it is wanted of the pool."""

    tokens: tuple[int, ...]  # the prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: as many as the context holds
    stop: tuple[str, ...] = ()
    choice: int = 0
    method: str | None = None
    max_draft: int | None = None  # draft tokens in a forward
    num_logprobs: int | None = None  # alternatives to each token; None: nothing is said of them


@dataclass(frozen=True)
class Counts:
    """How far an answer is."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def plus(self, done: Round) -> Counts:
        return Counts(
            self.num_tokens + len(done.tokens),
            self.num_rounds + 1,
            self.num_drafted + done.num_drafted,
            self.num_accepted + done.num_accepted,
        )


@dataclass(frozen=True)
class Piece:
    """New text, and the marks of tokens that surely belong to the answer."""

    delta: Delta
    marks: tuple[Mark, ...] = ()
    counts: Counts = field(default_factory=Counts)

    def plus(self, later: Piece) -> Piece:
        """Both as one."""
        delta = Delta(self.delta.segments + later.delta.segments)
        return Piece(delta, self.marks + later.marks, later.counts)


@dataclass(frozen=True)
class Done:
    """The answer is complete."""

    finished: Finished
    method: str
    seed: int
    marks: tuple[Mark, ...]  # those that no `Piece` had
    num_cached: int  # tokens of the prompt that the target knew already
    arrive_s: float
    start_s: float  # when it left the queue


@dataclass(frozen=True)
class Failed:
    """There will be no more of it."""

    error: Exception


Word = Piece | Done | Failed


class Job:
    """An `Ask` on its way. ``say`` is called from the slot's thread, with `Piece`s and then one
    `Done` or `Failed`; after `leave`, perhaps never again. `leave` may be called by anyone."""

    def __init__(
        self, ask: Ask, say: Callable[[Word], None], clock: Callable[[], float] = perf_counter
    ) -> None:
        self.ask = ask
        self.say = say
        self.arrive_s = clock()
        self.start_s = self.arrive_s
        self.counts = Counts()
        self.rounds: list[Round] = []  # of an answer that did not come to its end
        self.marks: list[Mark] = []
        self.is_left = False
        self.on_leave: Callable[[], None] = lambda: None

    def leave(self) -> None:
        """Nobody waits for it any more: its place is free within a round."""
        self.is_left = True
        self.on_leave()

    def observe(self, done: Round) -> None:
        """A round of it."""
        self.rounds.append(done)
        self.counts = self.counts.plus(done)
