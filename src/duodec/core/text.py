"""Decode tokens into text as they arrive: whole characters only, and no stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Sequence

from duodec.core.events import DraftSource, Segment


class TextStream:
    """Turns tokens into `Segment`s.

    Holds back bytes that do not make a character yet, and text that may be the beginning
    of a stop string. Once `is_stopped`, the text ends before the stop string.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self._piece = piece
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[Segment] = []
        self.text = ""  # all text released so far
        self.stop: str | None = None  # the one that ended the text
        self.num_released = 0  # tokens whose text is released as a whole
        self._num_decoded = 0  # characters of all tokens
        self._ends: deque[int] = deque()  # of the text of each token that is not released, in them

    @property
    def is_stopped(self) -> bool:
        """A stop string has ended the text."""
        return self.stop is not None

    @property
    def can_stop(self) -> bool:
        """Whether there are stop strings to look for."""
        return bool(self._stop)

    def push(self, token: int, source: DraftSource | None) -> list[Segment]:
        """Text that is certain after one more token, which that proposed."""
        text = self._decoder.decode(self._piece(token))
        self._num_decoded += len(text)
        has_more = bool(self._decoder.getstate()[0])  # of a character that is not complete
        self._ends.append(self._num_decoded + has_more)
        if not self._stop:
            return self._released([Segment(text, source)] if text else [])
        self._hold(text, source)
        return self._release(is_last=False)

    def finish(self) -> list[Segment]:
        """The text held back, at the end of the completion."""
        self._hold(self._decoder.decode(b"", final=True), None)
        return self._release(is_last=True)

    def _hold(self, text: str, source: DraftSource | None) -> None:
        if text and not self.is_stopped:
            self._held.append(Segment(text, source))

    def _release(self, *, is_last: bool) -> list[Segment]:
        held = "".join(segment.text for segment in self._held)
        # the one that is complete first, so that the segmentation does not matter
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := held.find(stop)) >= 0]
        if found:
            self.stop = min(found)[2]
        length = min(found)[1] if found else len(held) - (0 if is_last else self._doubtful(held))
        released: list[Segment] = []
        rest: list[Segment] = []
        for segment in self._held:
            now, later = segment.text[:length], segment.text[length:]
            length -= len(now)
            if now:
                released.append(Segment(now, segment.source))
            if later:
                rest.append(Segment(later, segment.source))
        self._held = [] if self.is_stopped else rest
        return self._released(released)

    def _released(self, released: list[Segment]) -> list[Segment]:
        """Count text that is certain now."""
        self.text += "".join(segment.text for segment in released)
        while self._ends and self._ends[0] <= len(self.text):
            self._ends.popleft()
            self.num_released += 1
        return released

    def _doubtful(self, held: str) -> int:
        """Length of the longest suffix of ``held`` that may begin a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(held)), 0, -1):
            if any(stop.startswith(held[-length:]) for stop in self._stop):
                return length
        return 0
