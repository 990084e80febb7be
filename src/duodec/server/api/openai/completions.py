"""Write chat completions and text completions, whole or in chunks."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from duodec.core.sampling.logprobs import Logprob
from duodec.scheduler.outputs import Done, Piece
from duodec.server.api import shapes
from duodec.server.api.openai.completion_bodies import CompletionsBody
from duodec.server.api.parts import Change, Parts
from duodec.server.api.shapes import TextOffsets
from duodec.server.http.streams import DATA_EVENTS

Choice = dict[str, Any]


@dataclass
class _ChoiceState:
    """One choice so far."""

    parts: Parts
    prompt: Sequence[int]
    echo: str | None = None  # the prompt's text, where the choice repeats it
    logprobs: list[Logprob] = field(default_factory=list)
    num_sent: int = 0  # of them, in chunks of a stream: text may be held back
    prompt_logprobs: Sequence[Logprob | None] = ()
    held: list[Piece | Done] = field(default_factory=list)  # until those are known
    offsets: TextOffsets = field(default_factory=TextOffsets)  # of chunks
    done: Done | None = None
    num_tokens: int = 0  # so far

    def unsent(self) -> list[Logprob]:
        """Those that the next chunk has."""
        new = self.logprobs[self.num_sent :]
        self.num_sent = len(self.logprobs)
        return new


class CompletionsWriter(ABC):
    """Writes the response to one request: see `duodec.server.http.streams.Writer`."""

    framing = DATA_EVENTS
    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self,
        body: CompletionsBody,
        model: str,
        prompts: Sequence[Sequence[int]],
        piece: Callable[[int], bytes],
        parts: Sequence[Parts],
    ) -> None:
        """``prompts`` and ``parts`` are those of each choice."""
        self._body = body
        self.is_streamed = body.stream
        self._model = model
        self._num_prompt_tokens = sum(map(len, prompts[:: body.num_choices]))
        self._piece = piece
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._choices = [*map(_ChoiceState, parts, prompts)]

    # --- in chunks

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first text."""
        return []

    def add(self, index: int, output: Piece | Done) -> list[dict[str, Any]]:
        """The chunks that an output of a choice makes."""
        state = self._choices[index]
        state.logprobs += output.logprobs
        if output.prompt_logprobs:
            for i in self._siblings(index):
                self._choices[i].prompt_logprobs = output.prompt_logprobs
        state.num_tokens = (
            output.counts.num_tokens
            if isinstance(output, Piece)
            else output.finished.stats.num_new_tokens
        )
        text = output.delta.text if isinstance(output, Piece) else ""
        changes = state.parts.push(text, is_last=isinstance(output, Done))
        choices = [self._grown(index, one) for one in changes if one.kind != "end"]
        if choices and (new := state.unsent()):
            choices[0]["logprobs"] = self._logprobs(new, state.offsets)
        chunks = [self._chunk([choice]) for choice in choices]
        if isinstance(output, Done):
            state.done = output
            return [*chunks, self._closing(index, output)]
        for chunk in chunks:
            if self._body.speculation.show_drafted and state.parts.is_plain:
                chunk["choices"][0]["segments"] = [
                    {"text": s.text, "is_drafted": s.is_drafted, "source": s.source}
                    for s in output.delta.segments
                ]
            if self._body.timings_per_token or self._body.speculation.show_drafted:
                chunk["timings"] = shapes.progress(output.counts)
        return chunks

    def ending(self) -> list[dict[str, Any]]:
        """Chunks after the last completion."""
        if not self._body.includes_usage:
            return []
        chunk = self._chunk([])
        chunk["usage"] = self._usage()
        return [
            {**chunk, **shapes.extras(self._completions(), self._body.speculation.most_drafted)}
        ]

    def _closing(self, index: int, done: Done) -> dict[str, Any]:
        reason = shapes.finish_reason(done, self._choices[index].parts.calls)
        choice = self._empty(index)
        choice["finish_reason"] = reason
        if new := self._choices[index].unsent():
            choice["logprobs"] = self._logprobs(new, self._choices[index].offsets)
        chunk = self._chunk([choice])
        if self._body.includes_usage or len(self._choices) > 1:
            return chunk
        # clients that do not ask for usage find what it cost here
        return {**chunk, **shapes.extras([done], self._body.speculation.most_drafted)}

    def _chunk(self, choices: list[Choice]) -> dict[str, Any]:
        chunk = self._head(self.chunk_kind)
        chunk["choices"] = [*map(self._body.written, choices)]
        if self._body.tells_usage:
            num_new = sum(state.num_tokens for state in self._choices)
            chunk["usage"] = shapes.usage_so_far(self._num_prompt_tokens, num_new)
        elif self._body.includes_usage:
            chunk["usage"] = None
        return chunk

    # --- as a whole

    def whole(self) -> dict[str, Any]:
        """The response, once every choice is complete."""
        body = self._head(self.kind)
        choices = [self._choice(i, state) for i, state in enumerate(self._choices)]
        body["choices"] = [*map(self._body.written, choices)]
        body["usage"] = self._usage()
        return {**body, **shapes.extras(self._completions(), self._body.speculation.most_drafted)}

    def _choice(self, index: int, state: _ChoiceState) -> Choice:
        assert state.done is not None, "it is complete"
        has_logprobs = self._body.num_logprobs is not None
        return {
            "index": index,
            **self._content(state),
            "logprobs": partial(self._all_logprobs, state) if has_logprobs else None,
            "finish_reason": shapes.finish_reason(state.done, state.parts.calls),
            **({"token_ids": state.done.finished.tokens} if self._body.return_token_ids else {}),
        }

    def _all_logprobs(self, state: _ChoiceState) -> dict[str, Any]:
        return self._logprobs(state.logprobs, TextOffsets())

    def _prompt_logprobs(self, state: _ChoiceState) -> dict[str, Any]:
        """vLLM's field, where it was requested."""
        if (num_tops := self._body.prompt_logprobs) is None:
            return {}
        known = state.prompt_logprobs
        return {"prompt_logprobs": partial(shapes.prompt_logprobs, known, self._piece, num_tops)}

    def _prompt_tokens(self, state: _ChoiceState) -> dict[str, Any]:
        """vLLM's field, where it was requested."""
        return {"prompt_token_ids": list(state.prompt)} if self._body.return_token_ids else {}

    def _usage(self) -> dict[str, Any]:
        num_choices = self._body.num_choices
        return shapes.usage(self._num_prompt_tokens, self._completions(), num_choices)

    def _siblings(self, index: int) -> range:
        """The choices of the same prompt, the first of which scores it."""
        first = index - index % self._body.num_choices
        return range(first, first + self._body.num_choices)

    def _completions(self) -> list[Done]:
        return [state.done for state in self._choices if state.done is not None]

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id, "object": kind, "created": self._created, "model": self._model,
            "system_fingerprint": None,
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """For the log: how many tokens, how fast."""
        return shapes.facts(self._num_prompt_tokens, self._completions())

    # --- what the forms differ in

    @abstractmethod
    def _grown(self, index: int, change: Change) -> Choice: ...
    @abstractmethod
    def _empty(self, index: int) -> Choice: ...
    @abstractmethod
    def _content(self, state: _ChoiceState) -> dict[str, Any]: ...
    @abstractmethod
    def _logprobs(self, new: Sequence[Logprob], offsets: TextOffsets) -> dict[str, Any]: ...


class ChatWriter(CompletionsWriter):
    """``/v1/chat/completions``."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [self._chunk([self._delta(i, delta)]) for i in range(len(self._choices))]

    def _grown(self, index: int, change: Change) -> Choice:
        part, text = change.part, change.text
        if part.kind != "call":
            told = {"content": text} if part.kind == "text" else shapes.reasoning(text)
            return self._delta(index, told)
        number = len(self._choices[index].parts.calls) - 1
        if change.kind == "begin":
            return self._delta(index, {"tool_calls": [shapes.tool_call(part.call, number)]})
        more = {"index": number, "function": {"arguments": text}}
        return self._delta(index, {"tool_calls": [more]})

    def _empty(self, index: int) -> Choice:
        return self._delta(index, {})

    def _delta(self, index: int, delta: dict[str, Any]) -> Choice:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _content(self, state: _ChoiceState) -> dict[str, Any]:
        text, reasoning = state.parts.text(), state.parts.text("reasoning")
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message |= shapes.reasoning(reasoning)
        if calls := state.parts.calls:
            message["content"] = text or None
            message["tool_calls"] = [shapes.tool_call(call) for call in calls]
        return {"message": message}

    def _logprobs(self, new: Sequence[Logprob], offsets: TextOffsets) -> dict[str, Any]:
        return shapes.chat_logprobs(new, self._piece)

    def whole(self) -> dict[str, Any]:
        first = self._choices[0]
        return {**super().whole(), **self._prompt_logprobs(first), **self._prompt_tokens(first)}


class TextWriter(CompletionsWriter):
    """``/v1/completions``."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def begin_with(self, texts: Sequence[str]) -> None:
        """Each choice repeats its prompt first."""
        for state, text in zip(self._choices, texts, strict=True):
            state.echo = text
            state.offsets = self._prompt_offsets(state)

    def _prompt_offsets(self, state: _ChoiceState) -> TextOffsets:
        spelled = b"".join(map(self._piece, state.prompt)).decode("utf-8", "replace")
        # some vocabularies put a blank before any text
        return TextOffsets(min(0, len(state.echo or "") - len(spelled)))

    def opening(self) -> list[dict[str, Any]]:
        if self._body.num_logprobs is not None:  # those of the prompt are told with its text
            return []
        return [
            self._chunk([self._text(i, state.echo)])
            for i, state in enumerate(self._choices)
            if state.echo
        ]

    def add(self, index: int, output: Piece | Done) -> list[dict[str, Any]]:
        state = self._choices[index]
        if state.echo is None or self._body.num_logprobs is None:
            return super().add(index, output)
        if output.prompt_logprobs:
            begun = [
                chunk
                for i in self._siblings(index)
                for chunk in self._begun(i, output.prompt_logprobs)
            ]
            return [*begun, *super().add(index, output)]
        if not state.prompt_logprobs:
            state.held.append(output)
            return []
        return super().add(index, output)

    def _begun(self, index: int, prompt: Sequence[Logprob | None]) -> list[dict[str, Any]]:
        """The chunks of a choice up to now, once the logprobs of its prompt are known."""
        state = self._choices[index]
        state.prompt_logprobs = prompt
        echo = self._text(index, state.echo or "")
        echo["logprobs"] = self._echoed(state, prompt, (), state.offsets)
        held, state.held = state.held, []
        chunks = [self._chunk([echo])]
        for output in held:
            chunks += super().add(index, output)
        return chunks

    def _all_logprobs(self, state: _ChoiceState) -> dict[str, Any]:
        if state.echo is None:
            return super()._all_logprobs(state)
        offsets = self._prompt_offsets(state)
        return self._echoed(state, state.prompt_logprobs, state.logprobs, offsets)

    def _echoed(
        self, state: _ChoiceState, prompt: Sequence[Logprob | None], new: Sequence[Logprob],
        offsets: TextOffsets,
    ) -> dict[str, Any]:  # fmt: skip
        """The logprobs of a prompt, and of the new tokens after it."""
        most = self._body.num_logprobs
        known = [one and replace(one, tops=one.tops[:most]) for one in prompt]
        tokens = [*state.prompt, *(one.token for one in new)]
        return shapes.completion_logprobs([*known, *new], tokens, self._piece, offsets)

    def _text(self, index: int, text: str) -> Choice:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def _grown(self, index: int, change: Change) -> Choice:
        return self._text(index, change.text)

    def _empty(self, index: int) -> Choice:
        return self._text(index, "")

    def _content(self, state: _ChoiceState) -> dict[str, Any]:
        own = {**self._prompt_logprobs(state), **self._prompt_tokens(state)}
        return {"text": (state.echo or "") + state.parts.text(), **own}

    def _logprobs(self, new: Sequence[Logprob], offsets: TextOffsets) -> dict[str, Any]:
        tokens = [one.token for one in new]
        return shapes.completion_logprobs(new, tokens, self._piece, offsets)
