"""One answer on the command line: streamed, stoppable, and timed against plain decoding."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from duodec.backends.interrupts import listen
from duodec.cli.output import AnswerWriter
from duodec.core.round import Round, median
from duodec.core.sampling import SamplingParams
from duodec.decoding.method import Method
from duodec.decoding.methods import method as method_named
from duodec.decoding.session import Session
from duodec.events import Delta, Finished

if TYPE_CHECKING:
    from duodec.engine import Engine

_PROBE_TOKENS = 8
_LONGEST_PROBE_S = 3.0  # a comparison that takes longer is not worth the wait
_PROBE_S = 1.0  # no longer, once there are a few rounds
_FEWEST = 3  # rounds that make a median


class Stopped(Exception):
    """The user pressed Ctrl-C before the answer had a token."""


class Interruption:
    """While entered, Ctrl-C asks for a stop at the next safe moment.

    After ``patience`` more of them it raises KeyboardInterrupt wherever the program is.
    """

    def __init__(self, patience: int) -> None:
        self.is_asked = False
        self._patience = patience

    def __enter__(self) -> Interruption:
        self.is_asked, self._left = False, self._patience
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        listen()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raises Stopped when a stop was asked for."""
        if self.is_asked:
            raise Stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        self.is_asked = True


@dataclass
class _Watched:
    """A method whose rounds are looked at; it ends when ``goes_on`` says no."""

    method: Method
    goes_on: Callable[[Round], bool]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def rounds(self, session: Session) -> Iterator[Round]:
        with closing(cast(Any, self.method.rounds(session))) as rounds:
            for done in rounds:
                yield done
                if not self.goes_on(done):
                    return


@dataclass(frozen=True)
class Answer:
    """What came of a prompt."""

    method: str
    prompt: Sequence[int]  # tokens
    finished: Finished
    is_interrupted: bool


def answer(
    engine: Engine,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    method: str | None,
    max_tokens: int | None,
    writer: AnswerWriter,
    interruption: Interruption,
    stop: Sequence[str] = (),
    choice: int = 0,
) -> Answer:
    """Stream the answer to a tokenised prompt. Raises Stopped, OutputClosed and what
    `Engine.generate` raises."""
    watched = _Watched(engine.method(method), lambda _: not interruption.is_asked)
    engine.on_chunk = interruption.check
    events = engine.generate(
        prompt,
        sampling,
        method=cast(Method, watched),
        max_tokens=max_tokens,
        stop=stop,
        choice=choice,
    )
    with interruption, closing(cast(Any, events)):
        for event in events:
            if isinstance(event, Delta):
                writer.write(event.segments)
            elif isinstance(event, Finished):
                is_cut = interruption.is_asked and event.finish_reason != "stop"
                return Answer(watched.name, prompt, event, is_cut)
    raise AssertionError("an answer ends with Finished")


def plain_seconds(engine: Engine, done: Answer, sampling: SamplingParams) -> float | None:
    """Seconds of a token of plain decoding here, at the end of this very text.

    The answer's last tokens are decoded once more: one seed, one text. None when it is too short.
    """
    tail = done.finished.tokens[-_PROBE_TOKENS:]
    expected_s = (_FEWEST + 1) * done.finished.stats.median_forward_s
    if len(tail) <= _FEWEST or not expected_s < _LONGEST_PROBE_S:
        return None
    text = [*done.prompt, *done.finished.tokens][: -len(tail)]
    rounds: list[Round] = []
    end_s = perf_counter() + _PROBE_S

    def goes_on(round_: Round) -> bool:
        rounds.append(round_)
        return len(rounds) <= _FEWEST or perf_counter() < end_s

    watched = cast(Method, _Watched(method_named("ar"), goes_on))
    engine.on_chunk = lambda: None
    for _ in engine.generate(text, sampling, method=watched, max_tokens=len(tail)):
        pass
    gaps = [b.end_s - a.end_s for a, b in pairwise(rounds)]
    return median(gaps) if len(gaps) >= _FEWEST else None
