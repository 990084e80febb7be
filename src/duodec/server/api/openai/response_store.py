"""Remember responses and their conversations, so that later requests can go on from them.

A conversation is a chain of turns. The responses of one conversation share the turns that they have
in common, and a turn is forgotten with the last response that needs it. Where memory is full, the
owner with the largest part of it loses its oldest response: nobody loses what lies within an equal
share.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from duodec.chat.pictures import PART, ImageFile, RemoteImage
from duodec.chat.template import Message
from duodec.server.errors import ApiError
from duodec.server.http.json_limits import MOST, Size, TooMuch, size_of

MOST_RESPONSES = 1024
MOST_BYTES = 64 << 20

_IS_REMOTE = "is_remote"  # of a part: its picture is an address
_OF_ENTRY, _OF_TURN = 1024, 512  # bytes of what surrounds a response, and messages


@dataclass(frozen=True, eq=False)
class Turn:
    """Messages as JSON, which weighs a fraction of what is read from it, after those of the turns
    before. ``total_bytes`` and ``total`` are those of the whole conversation."""

    messages: bytes  # an array's items
    before: Turn | None
    total_bytes: int
    total: Size

    @classmethod
    def of(cls, messages: Sequence[Message], before: Turn | None = None) -> Turn:
        """Raises TooMuch, of these messages alone."""
        data = _json([_written(message) for message in messages])
        size, num_bytes = size_of(data), len(data) + _OF_TURN
        if before is not None:
            size, num_bytes = before.total.plus(size), before.total_bytes + num_bytes
        return cls(data[1:-1], before, num_bytes, size)

    @property
    def num_bytes(self) -> int:
        """Of this turn alone."""
        return self.total_bytes - (self.before.total_bytes if self.before else 0)

    def check(self, most_bytes: int) -> None:
        """Raises TooMuch where the conversation holds more than the body of a request may."""
        if self.total_bytes > most_bytes:
            raise TooMuch(f"more than {most_bytes} bytes")
        self.total.check(MOST)

    def read(self) -> list[Message]:
        """The messages of the whole conversation, read anew each time."""
        parts = [turn.messages for turn in _chain(self) if turn.messages][::-1]
        return [_read(message) for message in json.loads(b"[" + b",".join(parts) + b"]")]


def _written(message: Message) -> Message:
    """A message whose pictures are texts."""

    def written(part: Any) -> Any:
        file = part.get(PART) if isinstance(part, dict) else None
        if isinstance(file, ImageFile):
            return {**part, PART: b64encode(file.data).decode()}
        if isinstance(file, RemoteImage):
            return {**part, PART: file.url, _IS_REMOTE: True}
        return part

    return _with_parts(message, written)


def _read(message: Message) -> Message:
    """A message as it was."""

    def read(part: Any) -> Any:
        if not isinstance(part, dict) or PART not in part:
            return part
        held = {name: value for name, value in part.items() if name != _IS_REMOTE}
        is_remote, text = _IS_REMOTE in part, part[PART]
        return {**held, PART: RemoteImage(text) if is_remote else ImageFile(b64decode(text))}

    return _with_parts(message, read)


def _with_parts(message: Message, change: Callable[[Any], Any]) -> Message:
    """A message with each part of its content changed, if it has parts."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [change(part) for part in content]}


def _chain(turn: Turn | None) -> Iterator[Turn]:
    """A turn and those before it, the latest first."""
    while turn is not None:
        yield turn
        turn = turn.before


@dataclass(frozen=True)
class Stored:
    """A response as JSON, and the conversation up to its end."""

    response: bytes
    conversation: Turn

    @property
    def num_bytes(self) -> int:
        """Of the response alone."""
        return len(self.response) + _OF_ENTRY


@dataclass
class _Share:
    """The responses of one owner, the oldest first."""

    stored: OrderedDict[str, Stored] = field(default_factory=OrderedDict)
    num_bytes: int = 0
    _uses: Counter[Turn] = field(default_factory=Counter)  # by responses and by later turns

    def add(self, name: str, stored: Stored) -> None:
        self.stored[name] = stored
        self.num_bytes += stored.num_bytes
        for turn in _chain(stored.conversation):
            self._uses[turn] += 1
            if self._uses[turn] > 1:
                break
            self.num_bytes += turn.num_bytes

    def remove(self, name: str) -> None:
        stored = self.stored.pop(name)
        self.num_bytes -= stored.num_bytes
        for turn in _chain(stored.conversation):
            self._uses[turn] -= 1
            if self._uses[turn]:
                break
            del self._uses[turn]
            self.num_bytes -= turn.num_bytes


class Store:
    """Responses by owner and id, in memory. One thread calls it."""

    def __init__(self, most_responses: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most_responses, self._most_bytes = most_responses, most_bytes
        self._shares: dict[str, _Share] = {}

    def __len__(self) -> int:
        return sum(len(share.stored) for share in self._shares.values())

    @property
    def num_bytes(self) -> int:
        return sum(share.num_bytes for share in self._shares.values())

    def add(self, owner: str, response: dict[str, Any], conversation: Turn) -> None:
        """A response, and the conversation up to its end; one that is larger than the store is
        not kept."""
        stored = Stored(_json(response), conversation)
        if stored.num_bytes + conversation.total_bytes > self._most_bytes:
            return
        self._shares.setdefault(owner, _Share()).add(response["id"], stored)
        while self.num_bytes > self._most_bytes:
            self._forget(max(self._shares, key=lambda owner: self._shares[owner].num_bytes))
        while len(self) > self._most_responses:
            self._forget(max(self._shares, key=lambda owner: len(self._shares[owner].stored)))

    def get(self, owner: str, name: str, param: str | None = None) -> Stored:
        """Raises ApiError, also for a response of another owner."""
        share = self._shares.get(owner)
        found = share.stored.get(name) if share else None
        if found is None:
            raise ApiError(
                404, f"there is no response '{name[:200]}': it was not stored, or was forgotten; "
                "send the whole conversation", param=param, code="response_not_found",
            )  # fmt: skip
        return found

    def delete(self, owner: str, name: str) -> None:
        """Raises ApiError."""
        self.get(owner, name)
        self._remove(owner, name)

    def _forget(self, owner: str) -> None:
        """The oldest response of an owner."""
        self._remove(owner, next(iter(self._shares[owner].stored)))

    def _remove(self, owner: str, name: str) -> None:
        share = self._shares[owner]
        share.remove(name)
        if not share.stored:
            del self._shares[owner]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
