"""Decode tokens into text as they arrive: whole characters only, and no stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Sequence

from duodec.core.events import DraftSource, Segment


class TextStream:
    """Turn tokens into `Segment`s.

    Bytes that do not make a character yet are held back, and so is text that may be the beginning
    of a stop string. Once `is_stopped`, the text ends before the stop string.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self._piece = piece
        self._searches = [_Search(text) for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: deque[Segment] = deque()
        self._num_held = 0  # held characters
        self.text = ""  # all text released so far
        self.stop: str | None = None  # stop string that ended the text
        self.num_released = 0  # number of tokens whose whole text is released
        self._num_decoded = 0  # number of characters of all tokens
        self._ends: deque[int] = deque()  # text ends of unreleased tokens, in characters

    @property
    def is_stopped(self) -> bool:
        """Return whether a stop string has ended the text."""
        return self.stop is not None

    @property
    def can_stop(self) -> bool:
        """Return whether there are stop strings to look for."""
        return bool(self._searches)

    def push(self, token: int, source: DraftSource | None) -> list[Segment]:
        """Return the text that is certain after one more token; ``source`` proposed the token."""
        text = self._decoder.decode(self._piece(token))
        self._num_decoded += len(text)
        has_more = bool(self._decoder.getstate()[0])  # a character is not complete
        self._ends.append(self._num_decoded + has_more)
        if not self.can_stop:
            return self._released([Segment(text, source)] if text else [])
        return self._released(self._certain(self._hold(text, source)))

    def finish(self) -> list[Segment]:
        """Return the text held back, at the end of the completion."""
        length = self._hold(self._decoder.decode(b"", final=True), None)
        return self._released(self._certain(length if self.is_stopped else self._num_held))

    def _hold(self, text: str, source: DraftSource | None) -> int:
        """Hold back this text, too. Return how many characters of the whole are certain now."""
        if self.is_stopped:
            return 0
        ends = [(end, -len(one.stop), one.stop) for one in self._searches
                if (end := one.push(text)) is not None]  # fmt: skip
        if text:
            self._held.append(Segment(text, source))
            self._num_held += len(text)
        if ends:  # the stop string that is complete first, so that segmentation does not matter
            end, back, self.stop = min(ends)
            return self._num_held - len(text) + end + back
        return self._num_held - max((one.num_matched for one in self._searches), default=0)

    def _certain(self, length: int) -> list[Segment]:
        """Return ``length`` characters of the text that is held back; nothing follows a stop
        string."""
        self._num_held -= length
        certain: list[Segment] = []
        while length > 0:
            segment = self._held.popleft()
            now, later = segment.text[:length], segment.text[length:]
            certain.append(Segment(now, segment.source))
            if later:
                self._held.appendleft(Segment(later, segment.source))
            length -= len(now)
        if self.is_stopped:
            self._held.clear()
            self._num_held = 0
        return certain

    def _released(self, released: list[Segment]) -> list[Segment]:
        """Count text that is certain now."""
        self.text += "".join(segment.text for segment in released)
        while self._ends and self._ends[0] <= len(self.text):
            self._ends.popleft()
            self.num_released += 1
        return released


class _Search:
    """Search for a stop string in a text that arrives in parts, reading each character once (Knuth,
    Morris and Pratt 1977)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0  # characters at the text's end that begin the stop string
        self._shorter = [0] * (len(stop) + 1)  # next shorter beginning that ends each beginning
        for length in range(1, len(stop)):
            self._shorter[length + 1] = self._longer(self._shorter[length], stop[length])

    def push(self, text: str) -> int | None:
        """Return how many of these characters complete the stop string; None if they do not
        complete it."""
        matched = self.num_matched
        for i, character in enumerate(text):
            matched = self._longer(matched, character)
            if matched == len(self.stop):
                return i + 1
        self.num_matched = matched
        return None

    def _longer(self, matched: int, character: str) -> int:
        while matched and self.stop[matched] != character:
            matched = self._shorter[matched]
        return matched + (self.stop[matched] == character)
