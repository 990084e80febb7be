"""Draft from earlier texts: what came next where the text's last tokens occurred before.

`Suffixes` gives the results of a suffix tree with counts (2411.04975), from an inverted index: each
token with its places. The places of the text's last token, and how far each agrees with the text,
are all the nodes of that tree that a draft can come from.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from duodec.core.draft import Draft
from duodec.core.sampling import Tokens
from duodec.drafting.continuations import (
    END,
    FEW,
    Frequent,
    most_frequent,
    most_frequent_of_few,
)
from duodec.native.library import library
from duodec.native.suffixes import NativeSuffixes

_MAX_TOKENS = 1 << 18
_MAX_PLACES = 256  # of a suffix that are counted: the latest
_MANY_PLACES = 100  # from here on, arrays are faster than comparing one by one


@dataclass(frozen=True)
class Speculation:
    """A draft and how many of its tokens are expected to be right."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    shares: Sequence[float] = ()  # by node, of the places that pass through it
    score: float = 0.0
    length: int = 0  # of the suffix, in tokens

    @property
    def draft(self) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.parents))


_NOTHING = Speculation()
_Places = Sequence[int] | NDArray[np.integer]
_Found = tuple[Sequence[int], Sequence[int], Sequence[float], float, int]
"""Tokens, parents and shares by node; the score; the length of the match."""


class Suffixes:
    """Token sequences, searchable by the longest suffix of a text."""

    def __init__(self, max_depth: int, max_tokens: int = _MAX_TOKENS) -> None:
        """``max_depth``: tokens of a match, and of its continuation, at most; each sequence takes
        so many tokens more. When a sequence ends with more than ``max_tokens`` in all, the older
        half is forgotten."""
        self._max_depth = max_depth
        self._max_tokens = max_tokens
        self._store: _Store | NativeSuffixes | None = None  # once there is a token

    def __len__(self) -> int:
        """Tokens that were added."""
        return 0 if self._store is None else len(self._store)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append to the current sequence."""
        if self._store is None:
            known = library()
            sizes = self._max_depth, self._max_tokens
            self._store = _Store(*sizes) if known is None else NativeSuffixes(known, *sizes)
        self._store.extend(tokens)

    def end(self) -> None:
        """End the current sequence; the next token begins another."""
        if self._store is not None:
            self._store.end()

    def speculate(
        self, text: Tokens, factor: float, min_share: float, depth: int | None = None
    ) -> Speculation:
        """The best draft over all suffixes of the text, at most ``depth`` tokens deep. A suffix of
        n tokens may draft ``factor`` * n; a node is drafted when at least ``min_share`` of the
        suffix's places pass through it; a draft's score is the sum of these shares."""
        if self._store is None or not len(text):
            return _NOTHING
        most = self._max_depth if depth is None else max(0, min(depth, self._max_depth))
        tail: list[int] = text[-self._max_depth :].tolist()
        return Speculation(*self._store.speculate(tail, factor, min_share, most, _MAX_PLACES))


class _Store:
    """What `Suffixes` keeps, in Python."""

    def __init__(self, max_depth: int, max_tokens: int) -> None:
        self._max_depth = max_depth
        self._max_tokens = max_tokens
        self._clear()

    def _clear(self) -> None:
        self._tokens = array("i", [END] * self._max_depth)
        self._num_tokens = 0
        self._places: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return self._num_tokens

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._places.setdefault(token, array("i")).append(len(self._tokens))
            self._tokens.append(token)
            self._num_tokens += 1

    def end(self) -> None:
        self._tokens.extend([END] * self._max_depth)
        if len(self._tokens) > self._max_tokens:
            newer = self._tokens[len(self._tokens) // 2 :]
            self._clear()
            for token in newer:
                if token == END:
                    self._tokens.append(END)
                else:
                    self.extend([token])

    def speculate(
        self, tail: list[int], factor: float, min_share: float, most: int, max_places: int
    ) -> _Found:
        best: _Found = (), (), (), 0.0, 0
        for length, places in reversed(self._matches(tail[::-1])):
            num_tokens = min(most, int(factor * length + 1e-6))
            best_score = best[3]
            if num_tokens <= best_score:  # no shorter one scores more, and the longer one wins
                break
            places = places[-max_places:]
            tree = self._after(places, num_tokens, _at_least(min_share * len(places)))
            score = sum(tree.counts) / len(places)
            if score > best_score:
                shares = tuple(count / len(places) for count in tree.counts)
                best = tree.draft.tokens, tree.draft.parents, shares, score, length
        return best

    def _matches(self, tail: list[int]) -> list[tuple[int, _Places]]:
        """Suffix lengths, ascending, with the places of a suffix's last token; of lengths with the
        same places only the longest. The text's last token comes first."""
        places: _Places = self._places.get(tail[0], ())
        if len(places) and places[-1] + 1 == len(self._tokens):  # the text's own end
            places = places[:-1]
        matches, length = list[tuple[int, _Places]](), 1
        while len(places):
            longer = self._before(places, length, tail[length]) if length < len(tail) else ()
            if len(longer) < len(places):
                matches.append((length, places))
            places, length = longer, length + 1
        return matches

    def _before(self, places: _Places, distance: int, token: int) -> _Places:
        """The places that ``token`` precedes by ``distance``."""
        if len(places) < _MANY_PLACES:
            known = self._tokens
            return [place for place in places if known[place - distance] == token]
        at = np.asarray(places)
        found: NDArray[np.integer] = at[self._known()[at - distance] == token]
        return found

    def _after(self, places: _Places, num_tokens: int, min_count: int) -> Frequent:
        """The most frequent tokens after these places."""
        if len(places) <= FEW:
            lists = [self._tokens[place + 1 : place + 1 + num_tokens].tolist() for place in places]
            padded = [found + [END] * (num_tokens - len(found)) for found in lists]
            return most_frequent_of_few(sorted(padded), num_tokens, min_count)
        known = self._known()
        at = np.asarray(places)[:, None] + np.arange(1, num_tokens + 1)
        windows = np.where(at < len(known), known[np.minimum(at, len(known) - 1)], END)
        return most_frequent(windows[np.lexsort(windows.T[::-1])], num_tokens, min_count)

    def _known(self) -> NDArray[np.int32]:
        """A view; while there is one, the store cannot grow."""
        return np.frombuffer(self._tokens, dtype=np.int32)


def _at_least(count: float) -> int:
    """The least whole number not below ``count``, up to rounding error."""
    return max(1, math.ceil(count - 1e-6))
