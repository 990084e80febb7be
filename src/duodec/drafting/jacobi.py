"""Advance the Jacobi window of lookahead decoding, and pool the n-grams that it yields."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from duodec.core.sampling.sampler import Tokens

Ngram = tuple[int, ...]


class Window:
    """Hold guesses at the tokens after the text, from the last rounds.

    The *trunk* guesses the next tokens. Column j's branch leaves the trunk after its j-th token
    (column 0: after the text) and holds a newer guess at each level. Together they are one token
    tree. A round adds a level from the target's tokens at the ends of the branches; when the window
    is full, it drops the oldest level, the trunk.
    """

    def __init__(self, trunk: Sequence[int], num_levels: int) -> None:
        """Collect n-grams of length ``num_levels``, 3 or more."""
        assert num_levels > 2, "an n-gram has a key and at least two tokens"
        self._levels = [list(trunk)]
        self._num_levels = num_levels

    @classmethod
    def of(cls, text: Tokens, num_levels: int, num_columns: int) -> Window:
        """Start with a trunk of random tokens from the text. It is longer than the window by one
        token for each level to be filled, since every round advances the text."""
        dice = random.Random(0)
        trunk = dice.choices(text.tolist(), k=num_columns + num_levels - 3)
        return cls(trunk, num_levels)

    def branches(self) -> Iterator[list[int]]:
        """Yield the path from the root to the end of every column."""
        trunk, *levels = self._levels
        for column in range(len(trunk) + 1):
            yield trunk[:column] + [level[column] for level in levels]

    def advance(self, last: int, guesses: Sequence[int]) -> list[Ngram]:
        """Add a guess at every column's end, and return the n-grams that are now complete. The
        n-gram of column 0 begins with ``last``, the text's last token."""
        trunk, *levels = self._levels
        if len(levels) + 2 < self._num_levels:
            self._levels = [level[1:] for level in (trunk, *levels, list(guesses))]
            return []
        self._levels = [levels[0][1:], *levels[1:], list(guesses)]
        return list(zip([last, *trunk], *levels, guesses, strict=True))


class NgramPool:
    """Keep the latest ``num_guesses`` n-grams that begin with each token."""

    def __init__(self, num_guesses: int) -> None:
        self._num_guesses = num_guesses
        self._by_first: dict[int, OrderedDict[Ngram, None]] = {}

    def add(self, ngram: Ngram) -> None:
        known = self._by_first.setdefault(ngram[0], OrderedDict())
        known[ngram[1:]] = None
        known.move_to_end(ngram[1:])
        if len(known) > self._num_guesses:
            known.popitem(last=False)

    def after(self, token: int) -> list[Ngram]:
        """Return what followed ``token``, latest first."""
        return list(self._by_first.get(token, ()))[::-1]
