"""Remember responses, so that later requests can go on from them; the oldest are forgotten."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duodec.chat.template import Message
from duodec.server.errors import ApiError

MOST_RESPONSES = 1024
MOST_BYTES = 64 << 20


_OF_ENTRY = 1024  # bytes of what surrounds a response


@dataclass(frozen=True)
class Stored:
    """A response, and the conversation up to its end, both as JSON: what is read weighs many times
    as much."""

    response: bytes
    conversation: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.conversation) + _OF_ENTRY

    def messages(self) -> list[dict[str, Any]]:
        """Read anew each time."""
        found: list[dict[str, Any]] = json.loads(self.conversation)
        return found


class Store:
    """Responses by id, in memory. One thread calls it."""

    def __init__(self, most_responses: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most_responses, self._most_bytes = most_responses, most_bytes
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, response: dict[str, Any], conversation: bytes) -> None:
        """A response, and what `conversation` writes of the messages up to its end."""
        stored = Stored(_json(response), conversation)
        if stored.num_bytes > self._most_bytes:
            return
        self._stored[response["id"]] = stored
        self._num_bytes += stored.num_bytes
        while len(self._stored) > self._most_responses or self._num_bytes > self._most_bytes:
            self._num_bytes -= self._stored.popitem(last=False)[1].num_bytes

    def get(self, name: str, param: str | None = None) -> Stored:
        """Raises ApiError."""
        found = self._stored.get(name)
        if found is None:
            raise ApiError(
                404, f"there is no response '{name[:200]}': it was not stored, or was forgotten; "
                "send the whole conversation", param=param, code="response_not_found",
            )  # fmt: skip
        return found

    def delete(self, name: str) -> None:
        """Raises ApiError."""
        self._num_bytes -= self.get(name).num_bytes
        del self._stored[name]


def conversation(messages: Sequence[Message]) -> bytes:
    """Messages as they are stored."""
    return _json(messages)


def continued(begun: bytes, message: Message) -> bytes:
    """A conversation with one more message, which alone is written anew."""
    return begun[:-1] + (b"," if len(begun) > len(b"[]") else b"") + _json(message) + b"]"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
