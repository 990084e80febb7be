"""Write responses of Anthropic's ``/v1/messages``: blocks of content, whole or as events."""

from __future__ import annotations

import secrets
from typing import Any

from duodec.scheduler.outputs import Done, Piece
from duodec.server.api import shapes
from duodec.server.api.anthropic.message_bodies import MessagesBody
from duodec.server.api.parts import Change, Part, Parts
from duodec.server.api.tools.call import object_of
from duodec.server.http.streams import NamedEvents

Event = dict[str, Any]
_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}


_KINDS = {"text": "text", "reasoning": "thinking", "call": "tool_use"}


def _block(part: Part, text: str) -> Event:
    """A block of content with this text."""
    kind = _KINDS[part.kind]
    if part.kind == "call":
        return {"type": kind, "id": part.id, "name": part.name, "input": object_of(text)}
    more = {"signature": ""} if kind == "thinking" else {}
    return {"type": kind, kind: text, **more}


def _delta(part: Part, text: str) -> Event:
    """More of a block."""
    if part.kind == "call":
        return {"type": "input_json_delta", "partial_json": text}
    kind = _KINDS[part.kind]
    return {"type": f"{kind}_delta", kind: text}


class MessageWriter:
    """Writes the response to one request: see `duodec.server.http.streams.Writer`."""

    def __init__(
        self, body: MessagesBody, model: str, num_prompt_tokens: int, parts: Parts
    ) -> None:
        self.is_streamed = body.stream
        self._model, self._num_prompt_tokens, self._parts = model, num_prompt_tokens, parts
        self._id = f"msg_{secrets.token_hex(12)}"
        self._num_cached: int | None = None  # once there is an output
        self._done: Done | None = None
        self._is_open = False  # a block has begun

    # --- events

    @property
    def framing(self) -> NamedEvents:
        return NamedEvents(self._alive)

    def opening(self) -> list[Event]:
        """None: what is cached of a prompt, which the first event tells, is not known yet."""
        return []

    def add(self, index: int, output: Piece | Done) -> list[Event]:
        """The events that an output makes."""
        events: list[Event] = []
        if self._num_cached is None:
            self._num_cached = output.num_cached
            events.append({"type": "message_start", "message": self._message()})
        text = output.delta.text if isinstance(output, Piece) else ""
        changes = self._parts.push(text, is_last=isinstance(output, Done))
        events += [event for change in changes for event in self._changed(change)]
        if isinstance(output, Done):
            self._done = output
            events += [event for change in self._parts.end() for event in self._changed(change)]
        return events

    def ending(self) -> list[Event]:
        message = self._message()
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        # what the first event told is not told again: some clients add what others overwrite
        usage = {"output_tokens": message["usage"]["output_tokens"]}
        return [
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]

    def _alive(self) -> list[Event]:
        """What goes with a ping, which Claude Code does not count: it gives a response up of which
        it has read nothing else for five minutes. The first of them begins the message, with all of
        the prompt as new; others add nothing to the open block."""
        if self._num_cached is None:
            self._num_cached = 0
            return [{"type": "message_start", "message": self._message()}]
        nothing = [self._event("delta", delta=_delta(part, "")) for part in self._parts.all[-1:]]
        return nothing if self._is_open else []

    def _changed(self, change: Change) -> list[Event]:
        part = change.part
        self._is_open = change.kind != "end"
        if not self._is_open:
            signed = {"type": "signature_delta", "signature": ""}  # clients wait for it
            is_thinking = part.kind == "reasoning"
            return [
                *([self._event("delta", delta=signed)] if is_thinking else []), self._event("stop")
            ]  # fmt: skip
        begun = [self._event("start", content_block=_block(part, ""))]
        more = [self._event("delta", delta=_delta(part, change.text))] if change.text else []
        return [*begun, *more] if change.kind == "begin" else more

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"content_block_{kind}", "index": len(self._parts.all) - 1, **fields}

    # --- as a whole

    def whole(self) -> Event:
        return self._message()

    def facts(self) -> dict[str, Any]:
        """For the log: how many tokens, how fast."""
        return shapes.facts(self._num_prompt_tokens, [self._done] if self._done else [])

    def _message(self) -> Event:
        done = self._done
        num_cached = self._num_cached or 0
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self._model,
            "content": [_block(part, part.text) for part in self._parts.all],
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
        if shapes.finish_reason(done, self._parts.calls) == "tool_calls":
            return "tool_use"
        if done.stop is not None:
            return "stop_sequence"
        return _REASONS.get(done.finished.finish_reason, "end_turn")
