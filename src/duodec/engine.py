"""The engine: where methods meet backends.

`Engine.load` puts a target, its tokenizer and a drafter together; `Engine.generate` runs a
method over them and turns its rounds into events.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

from duodec.backends.llguidance import Masks
from duodec.chat import Message
from duodec.core.grammar import Mask
from duodec.core.protocols import Datastore, Drafter, Target
from duodec.core.round import Round, Stats
from duodec.core.sampling import Sampler, SamplingParams
from duodec.decoding.method import Method
from duodec.decoding.methods import DEFAULT_METHOD
from duodec.decoding.methods import method as method_named
from duodec.decoding.session import NoDatastore, NoDrafter, Session
from duodec.errors import BadOption, ContextExceeded
from duodec.events import Delta, Event, Finished, FinishReason, Segment, Started
from duodec.planning.costs import Costs
from duodec.prompting import chat_tokens
from duodec.text import TextStream

Prompt = str | Sequence[Message] | Sequence[int]
"""A text as it is, chat messages, or tokens."""


class Tokenizer(Protocol):
    """What the engine asks of a vocabulary."""

    @property
    def num_vocab(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def tokenize(self, text: str, *, is_templated: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


@dataclass
class Engine:
    """One target and, with luck, a drafter beside it. Not for several threads at once.

    Repeated calls reuse what the target and the drafter already read of a text.
    """

    target: Target
    tokenizer: Tokenizer
    num_context: int
    drafter: Drafter | None = None
    datastore: Datastore | None = None
    shares_cores: bool = False  # drafter and target compute on the same cores
    cores_beside: int = 1  # and then the target has so many of them beside a drafter at work
    num_padded: int = 1  # rows that a forward of the target computes at least: they cost nothing
    pace_s: float = 0.0  # the target is slowed to this many seconds a forward, for a show
    parse_special: bool = False  # control tokens that users' texts spell are control tokens
    prepare: Callable[[bool], None] = lambda is_beside: None
    """Called before each answer: shares the cores, with a drafter at work beside or not."""
    on_chunk: Callable[[], None] = lambda: None
    """Called while a long prompt is read; may raise, which abandons the answer."""
    clock: Callable[[], float] = perf_counter
    resources: ExitStack = field(default_factory=ExitStack)
    costs: Costs = field(default_factory=Costs)
    _methods: dict[str, Method] = field(default_factory=dict)  # with what they have learned
    _masks: Masks | None = None  # the tokenizer's, which copies of this engine share

    def __post_init__(self) -> None:
        self._masks = self._masks or Masks(self.tokenizer)

    @classmethod
    def load(cls, target: str = "smollm2", draft: str | None = "auto", **options: Any) -> Engine:
        """An engine for these models on this machine: see `duodec.loading.EngineConfig`."""
        # the other way round at the top of the file: loading builds engines
        from duodec.loading import EngineConfig, load

        return load(EngineConfig(target=target, draft=draft, **options))

    def close(self) -> None:
        """End the drafter and free the models. Can be called twice."""
        self.resources.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def can_overlap(self) -> bool:
        """The target computes elsewhere than the drafter, or is slowed for a show."""
        return self.pace_s > 0 or not self.shares_cores

    @property
    def can_draft(self) -> bool:
        """Drafting with a model can pay: beside a target that computes elsewhere, or where T(n) is
        flat, so that the tokens of a draft are scored at the price of one."""
        if self.can_overlap:
            return True
        is_flat = self.costs.is_flat()
        return self.num_padded > 1 if is_flat is None else is_flat

    def tokens_of(self, prompt: Prompt, *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The tokens of a prompt; messages go through the model's chat template, which is shown
        the ``tools`` that the model may call."""
        if isinstance(prompt, str):
            return self.tokenizer.tokenize(prompt, is_templated=self.parse_special)
        tokens = [item for item in prompt if isinstance(item, int)]
        if len(tokens) == len(prompt):
            bad = [token for token in tokens if not 0 <= token < self.tokenizer.num_vocab]
            if bad:
                raise BadOption(f"token {bad[0]} is outside the model's vocabulary")
            return tokens
        messages = [item for item in prompt if not isinstance(item, int)]
        return chat_tokens(self.tokenizer, messages, tools=tools, parse_special=self.parse_special)

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        method: str | Method | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        choice: int = 0,
        slot: int = 0,
    ) -> Iterator[Event]:
        """Answer a prompt. Closing the iterator cancels the answer and the draft work on it.

        Without a method, `auto` is taken. A method that is named keeps what it learns.
        Raises BadOption and ContextExceeded before anything is computed.
        """
        begin_s = self.clock()
        chosen = self.method(method)
        if max_tokens is not None and max_tokens < 1:
            raise BadOption(f"max_tokens is {max_tokens}; use 1 or more")
        if any(not text for text in stop):
            raise BadOption("a stop string is empty; leave it out")
        tokens = self._checked(self.tokens_of(prompt))
        sampling = self._checked_sampling(sampling or SamplingParams())
        wanted = len(tokens) + (self.num_context if max_tokens is None else max_tokens)
        session = Session(
            target=self.target,
            prompt=tokens,
            capacity=min(self.num_context, wanted),
            drafter=self._drafter_for(chosen),
            sampler=Sampler(sampling, choice, len(tokens), self._mask(sampling)),
            slot=slot,
            datastore=self.datastore or NoDatastore(),
            costs=self.costs,
            shares_cores=self.shares_cores,
            prepare=self.prepare,
            clock=self.clock,
        )
        stream = TextStream(self.tokenizer.piece, stop)
        full: FinishReason = "length" if wanted <= self.num_context else "context"
        started = Started(chosen.name, sampling.seed, len(tokens))
        return _Answer(self, session, stream, begin_s, full).events(started, chosen)

    def check(
        self, tokens: list[int], sampling: SamplingParams, method: str | Method | None = None
    ) -> None:
        """Raises what `generate` would raise of these; nothing is computed."""
        self.method(method)
        self._checked(tokens)
        self._mask(self._checked_sampling(sampling))

    def method(self, method: str | Method | None) -> Method:
        """The method to use. Raises BadOption when it needs what is not there."""
        chosen = method or DEFAULT_METHOD
        if isinstance(chosen, str):
            if chosen not in self._methods:
                self._methods[chosen] = method_named(chosen)
            chosen = self._methods[chosen]
        if chosen.needs_draft_model and self.drafter is None:
            raise BadOption(f"method '{chosen.name}' needs a draft model; name one with --draft")
        if chosen.needs_datastore and self.datastore is None:
            raise BadOption(
                f"method '{chosen.name}' needs a datastore; make one of your texts with "
                "`duodec datastore build FILES`, or name one with --datastore"
            )
        return chosen

    def _drafter_for(self, method: Method) -> Drafter:
        """The drafter, for methods that need one, or take one where that can pay."""
        is_wanted = method.needs_draft_model or (method.uses_draft_model and self.can_draft)
        return (self.drafter if is_wanted else None) or NoDrafter()

    def _checked(self, tokens: list[int]) -> list[int]:
        """A prompt's tokens, if they can be answered."""
        if not tokens:
            raise BadOption("the prompt is empty; write something to answer")
        if len(tokens) >= self.num_context:
            raise ContextExceeded(
                f"the prompt has {len(tokens)} tokens and the context holds {self.num_context}; "
                "shorten it, or ask for a larger context with --context"
            )
        return tokens

    def _checked_sampling(self, sampling: SamplingParams) -> SamplingParams:
        if any(token >= self.tokenizer.num_vocab for token in sampling.logit_bias):
            raise BadOption(
                f"logit_bias names token {max(sampling.logit_bias)}, and the vocabulary has "
                f"{self.tokenizer.num_vocab}; use tokens of the model"
            )
        return sampling

    def _mask(self, sampling: SamplingParams) -> Mask | None:
        assert self._masks is not None
        return self._masks.mask(sampling.grammar) if sampling.grammar else None


@dataclass
class _Answer:
    """One answer on its way: rounds in, events out."""

    engine: Engine
    session: Session
    stream: TextStream
    begin_s: float
    full: FinishReason  # why the answer ends when the session is full
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    reason: FinishReason | None = None

    def events(self, started: Started, method: Method) -> Iterator[Event]:
        restarts = self.session.drafter.restarts
        yield started
        has_drafter = not isinstance(self.session.drafter, NoDrafter)
        self.engine.prepare(method.is_overlapped and has_drafter)
        first_s = finish_s = self.begin_s
        try:
            for done in method.rounds(self.session):
                segments = self._take(done)
                finish_s = self.engine.clock()
                if len(self.rounds) == 1:
                    first_s = finish_s
                if segments:
                    yield Delta(tuple(segments))
                if self.reason:
                    break
        finally:
            self.session.drafter.cancel(self.session.slot)
            self.engine.prepare(False)  # this thread is its owner's again
        if last := self.stream.finish():
            yield Delta(tuple(last))
        yield Finished(
            text=self.stream.text,
            tokens=tuple(self.tokens),
            finish_reason=self.reason or self.full,
            stats=Stats(
                num_prompt_tokens=len(self.session.prompt),
                rounds=tuple(self.rounds),
                begin_s=self.begin_s,
                first_s=first_s,
                finish_s=finish_s,
                drafter_restarts=self.session.drafter.restarts - restarts,
            ),
        )

    def _take(self, done: Round) -> list[Segment]:
        """The text of a round's tokens, up to the end of the answer."""
        segments: list[Segment] = []
        for i, token in enumerate(done.tokens):
            self.tokens.append(token)
            if self.engine.tokenizer.is_end(token):
                self.reason = "stop"
            else:
                segments += self.stream.push(token, is_drafted=i < done.num_accepted)
                if self.stream.is_stopped:
                    self.reason = "stop"
            if self.reason:  # what was drawn after the end does not count
                accepted = min(done.num_accepted, i + 1)
                done = replace(done, tokens=done.tokens[: i + 1], num_accepted=accepted)
                break
        self.rounds.append(done)
        return segments


def warn(line: str) -> None:
    """The default warning: one line on stderr."""
    print(f"duodec: {line}", file=sys.stderr)
