"""Write a response of ``/v1/responses``: its items, whole or as events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from duodec.chat.template import Message
from duodec.core.logprobs import Logprob
from duodec.scheduler.outputs import Done, Piece
from duodec.server.api import shapes
from duodec.server.api.bodies import ChatMessage
from duodec.server.api.response_bodies import ResponsesBody
from duodec.server.api.tools.call import Call, Found, Fragment, Reasoning
from duodec.server.api.tools.splitting import Reader
from duodec.server.http.streams import DATA_EVENTS

Event = dict[str, Any]
_DELTAS = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


@dataclass
class _Item:
    """One of the response's items: reasoning, a message or a call."""

    kind: str
    id: str
    text: str = ""
    call: Call | None = None
    logprobs: list[Event] = field(default_factory=list)

    def shown(self, status: str) -> Event:
        head = {"id": self.id, "type": self.kind, "status": status}
        if self.call is not None:
            call = {"call_id": self.call.id, "name": self.call.name}
            return {**head, **call, "arguments": self.call.arguments if status != _OPEN else ""}
        parts = [self.part()] if status != _OPEN else []
        if self.kind == "reasoning":
            return {**head, "summary": [], "content": parts}
        return {**head, "role": "assistant", "content": parts}

    def part(self) -> Event:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        }


_OPEN, _COMPLETE, _CUT = "in_progress", "completed", "incomplete"


@dataclass
class ResponseWriter:
    """One response in the making. ``remember`` is called once, with the response and the
    assistant's message, once it is complete."""

    body: ResponsesBody
    model: str
    num_prompt_tokens: int
    reader: Reader | None
    piece: Callable[[int], bytes]
    count: Callable[[str], int]  # tokens of a text
    remember: Callable[[Event, Message], None]
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")

    def __post_init__(self) -> None:
        self._created = int(time.time())
        self._items: list[_Item] = []
        self._is_open = False  # the last item goes on
        self._done: Done | None = None
        self._num_events = 0
        self._logprobs: list[Logprob] = []  # of tokens whose text was not told yet

    # --- events

    framing = DATA_EVENTS

    @property
    def is_streamed(self) -> bool:
        return self.body.stream

    def opening(self) -> list[Event]:
        shown = self._response(_OPEN)
        return [self._event(f"response.{name}", response=shown) for name in ("created", _OPEN)]

    def add(self, index: int, output: Piece | Done) -> list[Event]:
        """The events that an output makes."""
        is_last = isinstance(output, Done)
        self._logprobs += output.logprobs
        events = []
        for found in self._split(output.delta.text if isinstance(output, Piece) else "", is_last):
            events += self._found(found)
        if isinstance(output, Done):
            self._done = output
            if not self._items:  # a response has something, if only an empty message
                events += self._begin(_Item("message", _id("msg")))
            events += self._end()
        return events

    def ending(self) -> list[Event]:
        status = self._status
        shown = self._finished()
        return [self._event(f"response.{status}", response=shown)]

    def whole(self) -> Event:
        return self._finished()

    def facts(self) -> dict[str, Any]:
        return shapes.facts(self.num_prompt_tokens, [self._done] if self._done else [])

    def _event(self, kind: str, **fields: Any) -> Event:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def _split(self, text: str, is_last: bool) -> Sequence[Found]:
        if self.reader is None:
            return [text] if text else []
        return [*self.reader.push(text), *(self.reader.finish() if is_last else ())]

    def _found(self, found: Found) -> list[Event]:
        if isinstance(found, Call):
            return self._called(found, is_whole=True)
        if isinstance(found, Fragment):
            if found.name is not None:
                return self._called(Call(found.id, found.name, found.arguments), is_whole=False)
            return self._continued(found)
        is_thought = isinstance(found, Reasoning)
        text = found.text if isinstance(found, Reasoning) else found
        kind = "reasoning" if is_thought else "message"
        events: list[Event] = []
        if not (self._is_open and self._items[-1].kind == kind):
            events += self._end()
            events += self._begin(_Item(kind, _id("rs" if is_thought else "msg")))
        item = self._items[-1]
        item.text += text
        new = shapes.response_logprobs(self._logprobs_of(text), self.piece)
        more: Event = {"logprobs": new} if kind == "message" else {}
        item.logprobs += new if kind == "message" else []
        return [*events, self._part_event(f"{_DELTAS[kind]}.delta", delta=text, **more)]

    def _logprobs_of(self, text: str) -> list[Logprob]:
        """The last ones, whose tokens have this text; those before had no part in it."""
        pending, self._logprobs = self._logprobs, []
        begin, num_bytes = len(pending), 0
        while begin and num_bytes < len(text.encode("utf-8", "replace")):
            begin -= 1
            num_bytes += len(self.piece(pending[begin].token))
        return pending[begin:]

    def _begin(self, item: _Item) -> list[Event]:
        self._items.append(item)
        self._is_open = True
        events = [self._item_event("response.output_item.added", item.shown(_OPEN))]
        if item.call is None:
            events.append(self._part_event("response.content_part.added", part=item.part()))
        return events

    def _called(self, call: Call, *, is_whole: bool) -> list[Event]:
        if sum(item.call is not None for item in self._items) >= self.body.most_calls:
            return []
        events = [*self._end(), *self._begin(_Item("function_call", _id("fc"), call=call))]
        events.append(self._call_event("delta", delta=call.arguments))
        return [*events, *self._end()] if is_whole else events

    def _continued(self, found: Fragment) -> list[Event]:
        """More of the last call's arguments; nothing of a call beyond those that are wanted."""
        item = self._items[-1]
        if item.call is None or item.call.id != found.id:
            return []
        item.call = replace(item.call, arguments=item.call.arguments + found.arguments)
        return [self._call_event("delta", delta=found.arguments)]

    def _call_event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self._items[-1].id, "output_index": len(self._items) - 1}
        return self._event(f"response.function_call_arguments.{kind}", **place, **fields)

    def _end(self) -> list[Event]:
        """Of the item that is open."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self._items[-1]
        if item.call is not None:
            call = item.call
            events = [self._call_event("done", name=call.name, arguments=call.arguments)]
        else:
            more: Event = {"logprobs": item.logprobs} if item.kind == "message" else {}
            events = [
                self._part_event(f"{_DELTAS[item.kind]}.done", text=item.text, **more),
                self._part_event("response.content_part.done", part=item.part()),
            ]
        status = self._status if self._done else _COMPLETE
        return [*events, self._item_event("response.output_item.done", item.shown(status))]

    def _item_event(self, kind: str, shown: Event) -> Event:
        return self._event(kind, output_index=len(self._items) - 1, item=shown)

    def _part_event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self._items[-1].id, "output_index": len(self._items) - 1}
        return self._event(kind, **place, content_index=0, **fields)

    # --- the response

    @property
    def _status(self) -> str:
        assert self._done is not None, "it is complete"
        return _COMPLETE if shapes.finish_reason(self._done) == "stop" else _CUT

    def _finished(self) -> Event:
        shown = self._response(self._status)
        self.remember(shown, ChatMessage.model_validate(self._message()).shown())
        return shown

    def _message(self) -> Event:
        """The response as a message of a chat."""
        text = "".join(item.text for item in self._items if item.kind == "message")
        thought = "".join(item.text for item in self._items if item.kind == "reasoning")
        calls = [shapes.tool_call(item.call) for item in self._items if item.call is not None]
        message: Event = {"role": "assistant", "content": text}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        return message

    def _response(self, status: str) -> Event:
        body = self.body
        form = body.text.format.model_dump(by_alias=True)
        return {
            "id": self.id, "object": "response", "created_at": self._created, "status": status,
            "background": False, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == _CUT else None,
            "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
            "model": self.model, "metadata": body.metadata,
            "output": [item.shown(self._status) for item in self._items] if self._done else [],
            "parallel_tool_calls": self.body.most_calls > 1,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": body.store, "temperature": body.temperature, "top_p": body.top_p,
            "text": {"format": form if form["type"] == "json_schema" else {"type": form["type"]}},
            "tool_choice": body.tool_choice or "auto", "truncation": "disabled",
            "tools": [{"type": "function", "strict": True, "parameters": None, **t["function"]}
                      for t in body.tools],
            "usage": self._usage(),
        }  # fmt: skip

    def _usage(self) -> Event | None:
        if self._done is None:
            return None
        usage = shapes.usage(self.num_prompt_tokens, [self._done])
        thought = "".join(item.text for item in self._items if item.kind == "reasoning")
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.count(thought) if thought else 0},
            "total_tokens": usage["total_tokens"],
        }


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
