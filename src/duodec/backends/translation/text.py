"""Keep a text of the target as tokens of the draft, while it grows and changes at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from duodec.backends.translation.spelling import Spelling, last_cut
from duodec.core.draft import ROOT, Draft
from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens

_LONGEST_WORD = 96  # bytes that may still be spelled differently when the text grows
_MARKS = 64


class Frame(NamedTuple):
    """Hold what a chat template writes between two messages, as tokens of both vocabularies."""

    target: tuple[int, ...]
    draft: tuple[int, ...]


@dataclass(frozen=True)
class TextPosition:
    """Hold the end of a path below a text: settled draft tokens, then bytes that may still be
    spelled differently when more follow."""

    settled: tuple[int, ...]
    open: bytes


@dataclass(frozen=True)
class _Mark:
    """Mark how far the target's text was translated, to go on from there."""

    num_target: int
    num_draft: int
    open: bytes


class TranslatedText:
    """Keep one text of the target in the draft's tokens.

    ``trunk`` is the settled part, at least one token; ``open`` are the bytes after it, the last
    word, which more text may spell differently.
    """

    def __init__(
        self, target: Spelling, draft: Spelling, specials: Sequence[int], frames: Iterable[Frame]
    ) -> None:
        """``specials`` holds the draft's token for each of the target's, or -1; only tokens without
        bytes count."""
        self._target, self._spelling, self._specials = target, draft, specials
        self._frames: dict[int, list[Frame]] = {}
        for frame in sorted(frames, key=lambda frame: -len(frame.target)):
            self._frames.setdefault(frame.target[0], []).append(frame)
        vocabulary = draft.vocabulary
        first = vocabulary.tokenize("", is_templated=False)[:1]
        self._first = first if first == [vocabulary.bos] else []
        self._filler = draft.specials.get(b"<|endoftext|>", max(0, vocabulary.bos))
        self._text: Tokens = np.empty(0, dtype=np.int32)
        self._draft: list[int] = list(self._first)
        self._marks = [_Mark(0, len(self._first), b"")]
        self.open = b""

    @property
    def trunk(self) -> list[int]:
        return self._draft or [self._filler]

    def follow(self, text: Tokens) -> None:
        """Go on to ``text``; what both have in common is not translated again."""
        common = common_prefix(self._text, text)
        self._marks = [
            mark for mark in self._marks if not mark.num_target or mark.num_target <= common
        ]
        mark = self._marks[-1]
        del self._draft[mark.num_draft :]
        self.open = mark.open
        pending = text[mark.num_target :].tolist()
        begun = self._begun_frame(pending)
        self._translate(pending[:begun])
        self._settle()
        self._marks.append(_Mark(mark.num_target + begun, len(self._draft), self.open))
        del self._marks[1:-_MARKS]
        self._translate(pending[begun:])
        self._settle()
        self._text = text.copy()

    def places(self, draft: Draft) -> Iterator[TextPosition]:
        """Yield the text's end, then the end of the path to each node of a tree of target
        tokens."""
        places = {ROOT: TextPosition((), self.open)}
        yield places[ROOT]
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            places[node] = self._after(places[parent], token)
            yield places[node]

    def path(self, place: TextPosition) -> tuple[int, ...]:
        """Return the draft's tokens from the trunk to a place."""
        return place.settled + self._spelling.words_of(place.open)

    def _after(self, place: TextPosition, token: int) -> TextPosition:
        if piece := self._target.pieces[token]:
            return TextPosition(place.settled, place.open + piece)
        special = self._specials[token]
        return TextPosition(self.path(place) + ((special,) if special >= 0 else ()), b"")

    def _translate(self, tokens: Sequence[int]) -> None:
        parts: list[bytes] = [self.open]
        i = 0
        while i < len(tokens):
            frame = self._frame_at(tokens, i)
            if frame is not None:
                self._close(parts)
                is_first = self._draft == self._first
                self._draft += _without(frame.draft, self._first) if is_first else frame.draft
                i += len(frame.target)
                continue
            piece = self._target.pieces[tokens[i]]
            if piece:
                parts.append(piece)
            elif (special := self._specials[tokens[i]]) >= 0:
                self._close(parts)
                if self._draft != [special] or not self._first:
                    self._draft.append(special)
            i += 1
        self.open = b"".join(parts)

    def _close(self, parts: list[bytes]) -> None:
        self._draft += self._spelling.tokens_of(b"".join(parts))
        parts.clear()

    def _settle(self) -> None:
        cut = last_cut(self.open, _LONGEST_WORD)
        self._draft += self._spelling.tokens_of(self.open[:cut])
        self.open = self.open[cut:]

    def _frame_at(self, tokens: Sequence[int], i: int) -> Frame | None:
        for frame in self._frames.get(tokens[i], ()):
            if tuple(tokens[i : i + len(frame.target)]) == frame.target:
                return frame
        return None

    def _begun_frame(self, tokens: Sequence[int]) -> int:
        """Return where the end of the text may be the beginning of a frame; its length if
        nowhere."""
        longest = max((len(f.target) for some in self._frames.values() for f in some), default=0)
        for begin in range(max(0, len(tokens) - longest), len(tokens)):
            rest = tuple(tokens[begin:])
            for frame in self._frames.get(tokens[begin], ()):
                if len(rest) < len(frame.target) and frame.target[: len(rest)] == rest:
                    return begin
        return len(tokens)


def _without(tokens: tuple[int, ...], first: list[int]) -> tuple[int, ...]:
    """Return the tokens without those that are already there."""
    return tokens[len(first) :] if list(tokens[: len(first)]) == first else tokens
