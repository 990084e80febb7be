"""Write responses of Anthropic's ``/v1/messages``: blocks of content, whole or as events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from duodec.scheduler.outputs import Done, Piece
from duodec.server.api import shapes
from duodec.server.api.message_bodies import MessagesBody
from duodec.server.api.tools.call import Call, Found, Fragment, Reasoning
from duodec.server.api.tools.splitting import Reader
from duodec.server.http.streams import NAMED_EVENTS

Event = dict[str, Any]
_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}


@dataclass
class _Block:
    """A block of content: its kind is text, thinking or tool_use."""

    kind: str
    text: str = ""
    call: Call | None = None

    def shown(self, *, is_begun: bool) -> Event:
        """As a whole, or as it begins."""
        text = "" if is_begun else self.text
        if self.call is not None:
            given = {} if is_begun else _object(self.call.arguments)
            return {"type": self.kind, "id": self.call.id, "name": self.call.name, "input": given}
        if self.kind == "thinking":
            return {"type": self.kind, "thinking": text, "signature": ""}
        return {"type": self.kind, "text": text}

    def delta(self, text: str) -> Event:
        """More of it."""
        if self.kind == "tool_use":
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": f"{self.kind}_delta", self.kind: text}


def _object(arguments: str) -> Any:
    """A call's input; one that was cut off has none."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class MessageWriter:
    """Writes the response to one request: see `duodec.server.http.streams.Writer`."""

    framing = NAMED_EVENTS

    def __init__(
        self, body: MessagesBody, model: str, num_prompt_tokens: int, reader: Reader | None
    ) -> None:
        self.is_streamed = body.stream
        self._model, self._num_prompt_tokens, self._reader = model, num_prompt_tokens, reader
        self._most_calls = body.most_calls
        self._id = f"msg_{secrets.token_hex(12)}"
        self._blocks: list[_Block] = []
        self._is_open = False  # the last block goes on
        self._done: Done | None = None

    # --- events

    def opening(self) -> list[Event]:
        return [{"type": "message_start", "message": self._message()}]

    def add(self, index: int, output: Piece | Done) -> list[Event]:
        """The events that an output makes."""
        text = output.delta.text if isinstance(output, Piece) else ""
        events = []
        for found in self._split(text, is_last=isinstance(output, Done)):
            events += self._found(found)
        if isinstance(output, Done):
            self._done = output
            events += self._end()
        return events

    def ending(self) -> list[Event]:
        message = self._message()
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        return [
            {"type": "message_delta", "delta": delta, "usage": message["usage"]},
            {"type": "message_stop"},
        ]

    def _split(self, text: str, *, is_last: bool) -> Sequence[Found]:
        if self._reader is None:
            return [text] if text else []
        return [*self._reader.push(text), *(self._reader.finish() if is_last else ())]

    def _found(self, found: Found) -> list[Event]:
        if isinstance(found, Call):
            events = self._begin(_Block("tool_use", call=replace(found, arguments="")))
            return [*events, *self._more(found.arguments), *self._end()] if events else []
        if isinstance(found, Fragment) and found.name is not None:
            events = self._begin(_Block("tool_use", call=Call(found.id, found.name, "")))
            return [*events, *self._more(found.arguments)] if events else []
        if isinstance(found, Fragment):
            call = self._blocks[-1].call
            return self._more(found.arguments) if call and call.id == found.id else []
        kind, text = ("thinking", found.text) if isinstance(found, Reasoning) else ("text", found)
        events = []
        if not (self._is_open and self._blocks[-1].kind == kind):
            events = self._begin(_Block(kind))
        return [*events, *self._more(text)]

    def _begin(self, block: _Block) -> list[Event]:
        """Nothing of a call beyond those that are allowed."""
        num_calls = sum(one.call is not None for one in self._blocks)
        if block.call is not None and num_calls >= self._most_calls:
            return []
        ended = self._end()
        self._blocks.append(block)
        self._is_open = True
        return [*ended, self._event("start", content_block=block.shown(is_begun=True))]

    def _more(self, text: str) -> list[Event]:
        block = self._blocks[-1]
        if block.call is not None:
            block.call = replace(block.call, arguments=block.call.arguments + text)
        else:
            block.text += text
        return [self._event("delta", delta=block.delta(text))]

    def _end(self) -> list[Event]:
        """Of the block that is open."""
        was_open, self._is_open = self._is_open, False
        return [self._event("stop")] if was_open else []

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"content_block_{kind}", "index": len(self._blocks) - 1, **fields}

    # --- as a whole

    def whole(self) -> Event:
        return self._message()

    def facts(self) -> dict[str, Any]:
        """For the log: how many tokens, how fast."""
        return shapes.facts(self._num_prompt_tokens, [self._done] if self._done else [])

    def _message(self) -> Event:
        done = self._done
        num_cached = done.num_cached if done else 0
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self._model,
            "content": [block.shown(is_begun=False) for block in self._blocks],
            "stop_reason": self._reason(done) if done else None,
            "stop_sequence": done.stop if done else None,
            "usage": {
                "input_tokens": self._num_prompt_tokens - num_cached,
                "cache_read_input_tokens": num_cached,
                "cache_creation_input_tokens": 0,
                "output_tokens": done.finished.stats.num_new_tokens if done else 0,
            },
        }  # fmt: skip

    def _reason(self, done: Done) -> str:
        calls = [block.call for block in self._blocks if block.call is not None]
        if shapes.finish_reason(done, calls) == "tool_calls":
            return "tool_use"
        if done.stop is not None:
            return "stop_sequence"
        return _REASONS.get(done.finished.finish_reason, "end_turn")
