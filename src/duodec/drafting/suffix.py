"""Drafts from all that was said before: where the text's last tokens occurred, what came next.

`Suffixes` answers what a suffix tree with counts answers (2411.04975), from an inverted index:
each token with the places where it stands. The places of the text's last token, and how far each
agrees with the text, are all the tree's nodes that a draft can come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from duodec.core.draft import Draft
from duodec.core.sampling import Tokens
from duodec.drafting.continuations import END, most_frequent

_MAX_TOKENS = 1 << 18
_MAX_PLACES = 256  # of a suffix that are counted: the latest


@dataclass(frozen=True)
class Speculation:
    """A draft and how many of its tokens are expected to be right."""

    draft: Draft = field(default_factory=Draft)
    score: float = 0.0
    shares: tuple[float, ...] = ()  # by node, of the places that run through it
    length: int = 0  # of the suffix, in tokens


class Suffixes:
    """Token sequences, searchable by the longest suffix of a text."""

    def __init__(self, max_depth: int, max_tokens: int = _MAX_TOKENS) -> None:
        """``max_depth``: tokens of a match, and of its continuation, at most. Of more than
        ``max_tokens`` the older half is forgotten when a sequence ends."""
        self._max_depth = max_depth
        self._max_tokens = max_tokens
        self._clear()

    def _clear(self) -> None:
        self._tokens = array("i", [END] * self._max_depth)
        self._num_tokens = 0
        self._places: dict[int, array[int]] = {}

    def __len__(self) -> int:
        """Tokens that were added."""
        return self._num_tokens

    def extend(self, tokens: Iterable[int]) -> None:
        """The current sequence goes on."""
        for token in tokens:
            self._places.setdefault(token, array("i")).append(len(self._tokens))
            self._tokens.append(token)
            self._num_tokens += 1

    def end(self) -> None:
        """The next token begins a sequence of its own."""
        self._tokens.extend([END] * self._max_depth)
        if self._num_tokens > self._max_tokens:
            newer = self._tokens[len(self._tokens) // 2 :]
            self._clear()
            for token in newer:
                if token == END:
                    self._tokens.append(END)
                else:
                    self.extend([token])

    def speculate(
        self, text: Tokens, factor: float, min_share: float, depth: int | None = None
    ) -> Speculation:
        """The best draft over all suffixes of the text, at most ``depth`` tokens deep. A suffix of
        n tokens may draft ``factor`` * n; a node is drafted when at least ``min_share`` of the
        suffix's places run through it; a draft's score is the sum of these shares."""
        best = Speculation()
        most = self._max_depth if depth is None else min(depth, self._max_depth)
        for length, places in self._matches(text):
            num_tokens = min(most, int(factor * length + 1e-6))
            if num_tokens:
                places = places[-_MAX_PLACES:]
                windows = self._after(places, num_tokens)
                tree = most_frequent(windows, num_tokens, _at_least(min_share * len(places)))
                shares = tuple(count / len(places) for count in tree.counts)
                if sum(shares) >= best.score:  # of equals, the longer match
                    best = Speculation(tree.draft, sum(shares), shares, length)
        return best

    def _matches(self, text: Tokens) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Suffix lengths, ascending, with the places of a suffix's last token; of lengths with
        the same places the longest only."""
        known = np.frombuffer(self._tokens, dtype=np.int32)
        places = np.array(self._places.get(int(text[-1]), ()), dtype=np.int64)
        if len(places) and places[-1] + 1 == len(known):  # the text's own end
            places = places[:-1]
        tail = text[-self._max_depth :][::-1]
        length = 1
        while len(places):
            longer = places[:0]
            if length < len(tail):
                longer = places[known[places - length] == tail[length]]
            if len(longer) < len(places):
                yield length, places
            if len(longer) == 1:  # the usual case: one place, and how far it agrees
                place = int(longer[0])
                before = known[place - len(tail) + 1 : place + 1][::-1]
                differs = before != tail
                yield int(differs.argmax()) if differs.any() else len(tail), longer
                return
            places, length = longer, length + 1

    def _after(self, places: NDArray[np.int64], num_tokens: int) -> NDArray[np.int32]:
        """What follows these places, in lexicographic order, padded with END."""
        known = np.frombuffer(self._tokens, dtype=np.int32)
        at = places[:, None] + np.arange(1, num_tokens + 1)
        windows = np.where(at < len(known), known[np.minimum(at, len(known) - 1)], END)
        return windows[np.lexsort(windows.T[::-1])] if len(windows) > 1 else windows


def _at_least(count: float) -> int:
    """The least whole number that is no less, rounding aside."""
    return max(1, int(np.ceil(count - 1e-6)))
