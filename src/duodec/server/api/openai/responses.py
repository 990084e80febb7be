"""Write a response of ``/v1/responses``: its items, whole or as events."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from duodec.chat.template import Message
from duodec.core.sampling.logprobs import Logprob
from duodec.scheduler.outputs import Done, Piece
from duodec.server.api import shapes
from duodec.server.api.bodies import ChatMessage
from duodec.server.api.openai.response_bodies import ResponsesBody
from duodec.server.api.openai.response_tools import SentTool, SentTools
from duodec.server.api.parts import Change, Part, Parts
from duodec.server.errors import ApiError
from duodec.server.http.streams import NumberedEvents

Event = dict[str, Any]
_KINDS = {"text": "message", "reasoning": "reasoning"}
_PREFIXES = {"text": "msg", "reasoning": "rs", "function": "fc", "custom": "ctc"}
_CALLS = {"function": "function_call", "custom": "custom_tool_call"}
_DELTAS = {"text": "response.output_text", "reasoning": "response.reasoning_text"}


@dataclass
class _Item:
    """One of the response's items: reasoning, a message or a call."""

    of: Part
    tool: SentTool | None  # that it calls
    id: str
    logprobs: list[Event] = field(default_factory=list)

    @classmethod
    def begun(cls, part: Part, tools: SentTools) -> _Item:
        tool = tools.named(part.name) if part.kind == "call" else None
        return cls(part, tool, _id(_PREFIXES[tool.kind if tool else part.kind]))

    def shown(self, status: str) -> Event:
        if self.tool is not None:
            head = {"id": self.id, "type": _CALLS[self.tool.kind], "status": status}
            return {**head, **self.tool.call(self.of.id, "" if status == _OPEN else self.of.text)}
        head = {"id": self.id, "type": _KINDS[self.of.kind], "status": status}
        content = [self.content(self.of.text)] if status != _OPEN else []
        if self.of.kind == "reasoning":
            return {**head, "summary": [], "content": content}
        return {**head, "role": "assistant", "content": content}

    def content(self, text: str) -> Event:
        if self.of.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": [*self.logprobs],
        }


_OPEN, _COMPLETE, _CUT = "in_progress", "completed", "incomplete"


@dataclass
class ResponseWriter:
    """One response in the making. ``remember`` is called once, with the response and the
    assistant's message, once it is complete."""

    body: ResponsesBody
    model: str
    num_prompt_tokens: int
    parts: Parts
    piece: Callable[[int], bytes]
    count: Callable[[str], int]  # tokens of a text
    remember: Callable[[Event, Message], None]
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")

    def __post_init__(self) -> None:
        self._created = int(time.time())
        self._items: list[_Item] = []
        self._done: Done | None = None
        self._num_events = 0
        self._logprobs: list[Logprob] = []  # of tokens whose text was not told yet

    # --- events

    @property
    def framing(self) -> NumberedEvents:
        return NumberedEvents(lambda: self._event("keepalive"), self._failed)

    @property
    def is_streamed(self) -> bool:
        return self.body.stream

    def opening(self) -> list[Event]:
        shown = self._response(_OPEN)
        return [self._event(f"response.{name}", response=shown) for name in ("created", _OPEN)]

    def add(self, index: int, output: Piece | Done) -> list[Event]:
        """The events that an output makes."""
        self._logprobs += output.logprobs
        text = output.delta.text if isinstance(output, Piece) else ""
        events: list[Event] = []
        changes = list(self.parts.push(text, is_last=isinstance(output, Done)))
        for number, change in enumerate(changes, start=1):
            events += self._changed(change, is_last=number == len(changes))
        if isinstance(output, Done):
            self._done = output
            ends = list(self.parts.end())
            if not self._items:  # a response has something, if only an empty message
                part = Part("text", "")
                ends = [Change("begin", part), Change("end", part)]
            for change in ends:
                events += self._changed(change)
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

    def _failed(self, error: ApiError) -> Event:
        """The last event of a stream that an error ends: `openai` reads the error next to the
        response, Codex that in it."""
        told = error.body["error"]
        about = {"code": told["code"] or "server_error", "message": told["message"]}
        response = {**self._response("failed"), "error": about}
        return {**self._event("response.failed", response=response), **error.body}

    def _changed(self, change: Change, *, is_last: bool = True) -> list[Event]:
        part = change.part
        if change.kind == "begin":
            self._items.append(_Item.begun(part, self.body.sent))
        item = self._items[-1]
        if change.kind == "end":
            status = self._status if self._done else _COMPLETE
            ended = self._ended(item)
            return [*ended, self._item_event("response.output_item.done", item.shown(status))]
        opened = self._opened(item) if change.kind == "begin" else []
        if item.tool is not None:  # the text of a custom tool is told once it is complete
            is_told = item.tool.kind == "function"
            return [*opened, *([self._call_event("delta", delta=change.text)] if is_told else [])]
        of = self._logprobs_of(change.text, is_last=is_last)
        new = shapes.response_logprobs(of, self.piece)
        more: Event = {"logprobs": new} if part.kind == "text" else {}
        item.logprobs += new if part.kind == "text" else []
        if not change.text:
            return opened
        delta = self._part_event(f"{_DELTAS[part.kind]}.delta", delta=change.text, **more)
        return [*opened, delta]

    def _opened(self, item: _Item) -> list[Event]:
        events = [self._item_event("response.output_item.added", item.shown(_OPEN))]
        if item.of.kind != "call":
            events.append(self._part_event("response.content_part.added", part=item.content("")))
        return events

    def _ended(self, item: _Item) -> list[Event]:
        part = item.of
        if item.tool is not None and item.tool.kind == "custom":
            text = item.tool.input(part.text)
            return [self._call_event("delta", delta=text), self._call_event("done", input=text)]
        if item.tool is not None:
            return [self._call_event("done", name=item.tool.name, arguments=part.text)]
        more: Event = {"logprobs": item.logprobs} if part.kind == "text" else {}
        return [
            self._part_event(f"{_DELTAS[part.kind]}.done", text=part.text, **more),
            self._part_event("response.content_part.done", part=item.content(part.text)),
        ]

    def _logprobs_of(self, text: str, *, is_last: bool) -> list[Logprob]:
        """Of the tokens that have this text. Those before it had no part in any, as tags have not;
        those after it wait for theirs. The last text of an output is nearest to its end."""
        pending, ends = self._logprobs, [0]
        for one in pending:
            ends.append(ends[-1] + len(self.piece(one.token)))
        spelled = b"".join(self.piece(one.token) for one in pending)
        told = text.encode("utf-8", "replace")
        begin = spelled.rfind(told) if is_last else spelled.find(told)
        if begin < 0 and not is_last:
            return []  # a blank before it was held back: what follows finds its own
        if begin < 0:  # or characters were replaced
            begin = max(0, len(spelled) - len(told))
        first = bisect_right(ends, begin) - 1
        after = bisect_left(ends, begin + len(told))
        self._logprobs = pending[after:]
        return pending[first:after]

    def _call_event(self, kind: str, **fields: Any) -> Event:
        item = self._items[-1]
        is_custom = item.tool is not None and item.tool.kind == "custom"
        name = "custom_tool_call_input" if is_custom else "function_call_arguments"
        place = {"item_id": item.id, "output_index": len(self._items) - 1}
        return self._event(f"response.{name}.{kind}", **place, **fields)

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
        with suppress(
            ValidationError
        ):  # a call that is too much to be read: nobody goes on from it
            self.remember(shown, ChatMessage.model_validate(self._message()).shown())
        return shown

    def _message(self) -> Event:
        """The response as a message of a chat."""
        message: Event = {"role": "assistant", "content": self.parts.text()}
        if reasoning := self.parts.text("reasoning"):
            message["reasoning_content"] = reasoning
        if calls := self.parts.calls:
            message["tool_calls"] = [shapes.tool_call(call) for call in calls]
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
            "text": {
                "format": form if form["type"] == "json_schema" else {"type": form["type"]},
                "verbosity": body.text.verbosity,
            },
            "tool_choice": body.tool_choice or "auto", "truncation": body.truncation,
            "tools": list(body.sent.echoed), "max_tool_calls": body.max_tool_calls,
            "usage": self._usage(),
        }  # fmt: skip

    def _usage(self) -> Event | None:
        if self._done is None:
            return None
        usage = shapes.usage(self.num_prompt_tokens, [self._done])
        reasoning = self.parts.text("reasoning")
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": self.count(reasoning) if reasoning else 0
            },
            "total_tokens": usage["total_tokens"],
        }


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
