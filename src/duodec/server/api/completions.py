"""Write chat completions and text completions, whole or in chunks."""

from __future__ import annotations

import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from duodec.core.logprobs import Logprob
from duodec.scheduler.outputs import Done, Piece
from duodec.server.api import shapes
from duodec.server.api.bodies import CompletionsBody
from duodec.server.api.shapes import TextOffsets
from duodec.server.api.tools.call import Call, Found, Fragment, Reasoning
from duodec.server.api.tools.splitting import Reader
from duodec.server.http.streams import DATA_EVENTS

Choice = dict[str, Any]


@dataclass
class _ChoiceState:
    """One choice so far."""

    text: str = ""
    reasoning: str = ""
    logprobs: list[Logprob] = field(default_factory=list)
    num_told: int = 0  # of them, that chunks of a stream have told: text may be held back
    calls: list[Call] = field(default_factory=list)
    done: Done | None = None
    reader: Reader | None = None
    prompt: Sequence[int] = ()
    is_echoed: bool = False  # the choice repeats its prompt
    prompt_logprobs: Sequence[Logprob | None] = ()
    offsets: TextOffsets = field(default_factory=TextOffsets)  # of chunks

    def told(self) -> list[Logprob]:
        """What the next chunk tells."""
        new = self.logprobs[self.num_told :]
        self.num_told = len(self.logprobs)
        return new

    def split(self, text: str, *, is_last: bool = False) -> list[Found]:
        """Text, reasoning and calls that are certain now."""
        if self.reader is None:
            return [text] if text else []
        return [*self.reader.push(text), *(self.reader.finish() if is_last else ())]


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
    ) -> None:
        self._body = body
        self.is_streamed = body.stream
        self._model = model
        self._num_prompt_tokens = sum(map(len, prompts[:: body.num_choices]))
        self._piece = piece
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._choices = [_ChoiceState(prompt=prompt) for prompt in prompts]  # of each choice
        self._most_calls = sys.maxsize

    # --- in chunks

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first text."""
        return []

    def add(self, index: int, output: Piece | Done) -> list[dict[str, Any]]:
        """The chunks that an output of a choice makes."""
        state = self._choices[index]
        state.logprobs += output.logprobs
        state.prompt_logprobs = state.prompt_logprobs or output.prompt_logprobs
        text = output.delta.text if isinstance(output, Piece) else ""
        is_last = isinstance(output, Done)
        choices = []
        for found in state.split(text, is_last=is_last):
            choices += self._found(index, found)
        if choices and (new := state.told()):
            choices[0]["logprobs"] = self._logprobs(new, state.offsets)
        chunks = [self._chunk([choice]) for choice in choices]
        if isinstance(output, Done):
            state.done = output
            return [*chunks, self._closing(index, output)]
        for chunk in chunks:
            if self._body.speculation.show_drafted and state.reader is None:
                chunk["choices"][0]["segments"] = [
                    {"text": s.text, "is_drafted": s.is_drafted} for s in output.delta.segments
                ]
            if self._body.timings_per_token or self._body.speculation.show_drafted:
                chunk["timings"] = shapes.progress(output.counts)
        return chunks

    def _found(self, index: int, found: Found) -> list[Choice]:
        """The choices of chunks that a part of the response makes."""
        state = self._choices[index]
        if isinstance(found, Reasoning):
            state.reasoning += found.text
            return [self._thought(index, found)]
        if isinstance(found, str):
            choice = self._text(index, found)
            state.text += found
            return [choice]
        if isinstance(found, Fragment) and found.name is None:
            return self._continued(index, found)
        if len(state.calls) >= self._most_calls:
            return []
        call = Call(found.id, found.name or "", found.arguments)
        state.calls.append(call)
        return [self._called(index, call, len(state.calls) - 1)]

    def _continued(self, index: int, found: Fragment) -> list[Choice]:
        """More of the last call's arguments; nothing of a call beyond those that are wanted."""
        calls = self._choices[index].calls
        if not calls or calls[-1].id != found.id:
            return []
        calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + found.arguments)
        return [self._argued(index, found.arguments, len(calls) - 1)]

    def ending(self) -> list[dict[str, Any]]:
        """Chunks after the last completion."""
        if not self._body.includes_usage:
            return []
        chunk = self._chunk([])
        chunk["usage"] = shapes.usage(self._num_prompt_tokens, self._completions())
        return [
            {**chunk, **shapes.extras(self._completions(), self._body.speculation.most_drafted)}
        ]

    def _closing(self, index: int, done: Done) -> dict[str, Any]:
        reason = shapes.finish_reason(done, self._choices[index].calls)
        choice = self._ended(index)
        choice["finish_reason"] = reason
        if new := self._choices[index].told():
            choice["logprobs"] = self._logprobs(new, self._choices[index].offsets)
        chunk = self._chunk([choice])
        if self._body.includes_usage or len(self._choices) > 1:
            return chunk
        # clients that do not ask for usage find what it cost here
        return {**chunk, **shapes.extras([done], self._body.speculation.most_drafted)}

    def _chunk(self, choices: list[Choice]) -> dict[str, Any]:
        chunk = self._head(self.chunk_kind)
        chunk["choices"] = choices
        if self._body.includes_usage:
            chunk["usage"] = None
        return chunk

    # --- as a whole

    def whole(self) -> dict[str, Any]:
        """The response, once every choice is complete."""
        body = self._head(self.kind)
        body["choices"] = [self._choice(i, state) for i, state in enumerate(self._choices)]
        body["usage"] = shapes.usage(self._num_prompt_tokens, self._completions())
        return {**body, **shapes.extras(self._completions(), self._body.speculation.most_drafted)}

    def _choice(self, index: int, state: _ChoiceState) -> Choice:
        assert state.done is not None, "it is complete"
        has_logprobs = self._body.num_logprobs is not None
        return {
            "index": index,
            **self._content(state),
            "logprobs": self._all_logprobs(state) if has_logprobs else None,
            "finish_reason": shapes.finish_reason(state.done, state.calls),
            **({"token_ids": state.done.finished.tokens} if self._body.return_token_ids else {}),
        }

    def _all_logprobs(self, state: _ChoiceState) -> dict[str, Any]:
        return self._logprobs(state.logprobs, TextOffsets())

    def _prompt_logprobs(self, state: _ChoiceState) -> dict[str, Any]:
        """vLLM's field, where it was requested."""
        if (num_tops := self._body.prompt_logprobs) is None:
            return {}
        told = shapes.prompt_logprobs(state.prompt_logprobs, self._piece, num_tops)
        return {"prompt_logprobs": told}

    def _prompt_tokens(self, state: _ChoiceState) -> dict[str, Any]:
        """vLLM's field, where it was requested."""
        return {"prompt_token_ids": list(state.prompt)} if self._body.return_token_ids else {}

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
    def _text(self, index: int, text: str) -> Choice: ...
    @abstractmethod
    def _thought(self, index: int, thought: Reasoning) -> Choice: ...
    @abstractmethod
    def _called(self, index: int, call: Call, number: int) -> Choice: ...
    @abstractmethod
    def _argued(self, index: int, arguments: str, number: int) -> Choice: ...
    @abstractmethod
    def _ended(self, index: int) -> Choice: ...
    @abstractmethod
    def _content(self, state: _ChoiceState) -> dict[str, Any]: ...
    @abstractmethod
    def _logprobs(self, new: Sequence[Logprob], offsets: TextOffsets) -> dict[str, Any]: ...


class ChatWriter(CompletionsWriter):
    """``/v1/chat/completions``."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def read_with(self, readers: Sequence[Reader | None], most_calls: int) -> None:
        """Tell reasoning and calls from text, by a reader a choice, and no more calls than that."""
        self._most_calls = most_calls
        for choice, reader in zip(self._choices, readers, strict=True):
            choice.reader = reader

    def opening(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [self._chunk([self._delta(i, delta)]) for i in range(len(self._choices))]

    def _text(self, index: int, text: str) -> Choice:
        return self._delta(index, {"content": text})

    def _thought(self, index: int, thought: Reasoning) -> Choice:
        return self._delta(index, {"reasoning_content": thought.text})

    def _called(self, index: int, call: Call, number: int) -> Choice:
        return self._delta(index, {"tool_calls": [shapes.tool_call(call, number)]})

    def _argued(self, index: int, arguments: str, number: int) -> Choice:
        more = {"index": number, "function": {"arguments": arguments}}
        return self._delta(index, {"tool_calls": [more]})

    def _ended(self, index: int) -> Choice:
        return self._delta(index, {})

    def _delta(self, index: int, delta: dict[str, Any]) -> Choice:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _content(self, state: _ChoiceState) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": state.text, "refusal": None}
        if state.reasoning:
            message["reasoning_content"] = state.reasoning
        if state.calls:
            message["content"] = state.text or None
            message["tool_calls"] = [shapes.tool_call(call) for call in state.calls]
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
            state.text, state.is_echoed = text, True
            state.offsets = self._prompt_offsets(state)

    def _prompt_offsets(self, state: _ChoiceState) -> TextOffsets:
        spelled = b"".join(map(self._piece, state.prompt)).decode("utf-8", "replace")
        # some vocabularies put a blank before any text
        return TextOffsets(min(0, len(state.text) - len(spelled)))

    def opening(self) -> list[dict[str, Any]]:
        if self._body.num_logprobs is not None:  # those of the prompt are told with its text
            return []
        return [
            self._chunk([self._text(i, state.text)])
            for i, state in enumerate(self._choices)
            if state.text
        ]

    def add(self, index: int, output: Piece | Done) -> list[dict[str, Any]]:
        state = self._choices[index]
        if not (state.is_echoed and output.prompt_logprobs and self._body.num_logprobs is not None):
            return super().add(index, output)
        echo = self._text(index, state.text)
        echo["logprobs"] = self._echoed(state, output.prompt_logprobs, (), state.offsets)
        return [self._chunk([echo]), *super().add(index, output)]

    def _all_logprobs(self, state: _ChoiceState) -> dict[str, Any]:
        if not state.is_echoed:
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

    def _thought(self, index: int, thought: Reasoning) -> Choice:
        raise AssertionError("texts have no reasoning")

    def _called(self, index: int, call: Call, number: int) -> Choice:
        raise AssertionError("texts call no tools")

    def _argued(self, index: int, arguments: str, number: int) -> Choice:
        raise AssertionError("texts call no tools")

    def _ended(self, index: int) -> Choice:
        return self._text(index, "")

    def _content(self, state: _ChoiceState) -> dict[str, Any]:
        own = {**self._prompt_logprobs(state), **self._prompt_tokens(state)}
        return {"text": state.text, **own}

    def _logprobs(self, new: Sequence[Logprob], offsets: TextOffsets) -> dict[str, Any]:
        tokens = [one.token for one in new]
        return shapes.completion_logprobs(new, tokens, self._piece, offsets)
