"""Write responses of Ollama's ``/api/chat`` and ``/api/generate``: whole, or an object a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from duodec.core.sampling.logprobs import Logprob
from duodec.scheduler.outputs import Done, Piece
from duodec.server.api import shapes
from duodec.server.api.ollama.bodies import OllamaBody
from duodec.server.api.parts import Change, Parts
from duodec.server.api.tools.call import Call, object_of
from duodec.server.http.streams import LINES

Event = dict[str, Any]
Said = Callable[[str, str, Sequence[Call]], Event]
"""How an API tells text, thoughts and calls."""


def as_message(text: str, thoughts: str, calls: Sequence[Call]) -> Event:
    """``/api/chat``'s."""
    functions = [{"name": call.name, "arguments": object_of(call.arguments)} for call in calls]
    more = {"tool_calls": [{"function": function} for function in functions]} if calls else {}
    told = {"thinking": thoughts} if thoughts else {}
    return {"message": {"role": "assistant", "content": text, **told, **more}}


def as_response(text: str, thoughts: str, calls: Sequence[Call]) -> Event:
    """``/api/generate``'s."""
    return {"response": text, **({"thinking": thoughts} if thoughts else {})}


def head(model: str) -> Event:
    """What every object begins with."""
    now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": now}


class OllamaWriter:
    """Writes the response to one request: see `duodec.server.http.streams.Writer`."""

    framing = LINES

    def __init__(
        self, body: OllamaBody, model: str, num_prompt_tokens: int, parts: Parts,
        piece: Callable[[int], bytes], said: Said,
    ) -> None:  # fmt: skip
        self.is_streamed = body.stream
        self._model, self._num_prompt_tokens, self._parts = model, num_prompt_tokens, parts
        self._piece, self._said = piece, said
        self._has_logprobs = body.num_logprobs is not None
        self._logprobs: list[Logprob] = []
        self._num_sent = 0  # of them
        self._done: Done | None = None

    def opening(self) -> list[Event]:
        return []

    def add(self, index: int, output: Piece | Done) -> list[Event]:
        """The events that an output makes; a call is one, once it is complete."""
        self._logprobs += output.logprobs
        text = output.delta.text if isinstance(output, Piece) else ""
        changes = list(self._parts.push(text, is_last=isinstance(output, Done)))
        if isinstance(output, Done):
            self._done = output
            changes += self._parts.end()
        events = [event for change in changes for event in self._changed(change)]
        if events:
            events[0] |= self._told_logprobs(self._num_sent)
            self._num_sent = len(self._logprobs)
        return events

    def ending(self) -> list[Event]:
        rest = self._told_logprobs(self._num_sent) if self._num_sent < len(self._logprobs) else {}
        return [{**self._event("", "", ()), **rest, **self._end()}]

    def whole(self) -> Event:
        parts = self._parts
        event = self._event(parts.text(), parts.text("reasoning"), parts.calls)
        return {**event, **self._told_logprobs(0), **self._end()}

    def facts(self) -> dict[str, Any]:
        """For the log: how many tokens, how fast."""
        return shapes.facts(self._num_prompt_tokens, [self._done] if self._done else [])

    def _changed(self, change: Change) -> list[Event]:
        part = change.part
        if part.kind == "call":
            return [self._event("", "", [part.call])] if change.kind == "end" else []
        if not change.text or change.kind == "end":
            return []
        said = (change.text, "") if part.kind == "text" else ("", change.text)
        return [self._event(*said, ())]

    def _event(self, text: str, thoughts: str, calls: Sequence[Call]) -> Event:
        return {**head(self._model), **self._said(text, thoughts, calls), "done": False}

    def _told_logprobs(self, begin: int) -> Event:
        if not self._has_logprobs:
            return {}
        return {"logprobs": shapes.response_logprobs(self._logprobs[begin:], self._piece)}

    def _end(self) -> Event:
        done = self._done
        assert done is not None, "it is complete"
        stats, begun_s = done.finished.stats, done.start_s
        return {
            "done": True,
            "done_reason": shapes.finish_reason(done),
            "total_duration": _ns(stats.first_s - done.arrive_s + stats.decode_s),
            "load_duration": 0,
            "prompt_eval_count": self._num_prompt_tokens,
            "prompt_eval_duration": _ns(stats.first_s - begun_s),
            "eval_count": stats.num_new_tokens,
            "eval_duration": _ns(stats.decode_s),
        }


def _ns(seconds: float) -> int:
    return max(0, int(1e9 * seconds))
