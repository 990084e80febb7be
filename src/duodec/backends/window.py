"""Decide how much of a long text a draft model reads, and when it reads more of it.

Of a long text the draft model reads the first few tokens and the last ``start`` ones, and drafts
at once. Then older text joins it in blocks, each as long as what is there already, up to `_BLOCK`
tokens, until three quarters of the window are full; the last quarter is for the text to grow into.
When the text outgrows the window, its oldest quarter is dropped. Nothing is read twice.

A block is read when that pays. Reading takes a known time, by the measured speed. What it gains is
learned by distance: the share of tokens that were the draft's first guess, with windows of 64
tokens and more, of 128 and more, and so on, begun with the shares that were measured offline
(benchmarks/windows.py). If a share h becomes g, the expected run of right guesses grows from
1/(1-h) to 1/(1-g). How long a text goes on is unknown, so it is expected to take as long again as
it has taken. Hence a block pays while the gain times the time spent on the text's drafts exceeds
the time that the block takes; when the drafter is idle, reading is free, and any gain will do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from duodec.core.prefix import common_prefix
from duodec.core.sampling import Tokens

NUM_FIRST = 8  # tokens of the text's beginning that every window holds
LEAST_WINDOW = 128  # tokens: a tree's text, with its first tokens
DEFAULT_WINDOW = 2048
_START_S = 0.03  # that reading may take before anything is drafted
_CHUNK_S = 0.01  # and for which a request may have to wait
_LEAST_START, _MOST_START, _FIRST_START = 32, 512, 96  # tokens; the last one before any measurement
_LEAST_CHUNK, _MOST_CHUNK = 8, 128
_BLOCK = 512
_CONTINUED = 4  # starts: as much new text is read in one go after text that is known
LEAST_MEASURED = 16  # tokens of a forward pass from which the speed of reading is learned
_REMEMBERED = 32  # measurements of that speed
_UNSETTLED = 16  # last tokens of a text: they may be drafts that the target will refuse
_PRIOR_WEIGHT = 200.0  # tokens that the shares measured offline stand for
_KEPT = 0.999  # of all that was counted, with each new token
SHARES = (0.32, 0.32, 0.32, 0.32, 0.32, 0.32)  # of first guesses, by distance


class Window:
    """The window of one draft model: its size, and the rule by which it grows.

    ``most`` is the number of tokens that it holds at most. Seconds are those of the caller's clock.
    """

    def __init__(self, most: int = DEFAULT_WINDOW) -> None:
        self.most = most
        self._token_s = deque[float](maxlen=_REMEMBERED)
        self._hits = [share * _PRIOR_WEIGHT for share in SHARES]
        self._trials = [_PRIOR_WEIGHT] * len(SHARES)

    # --- sizes, in tokens

    @property
    def start(self) -> int:
        """Last tokens of a long text that are read before anything is drafted."""
        num = self._num_within(_START_S, _FIRST_START)
        return min(max(num, _LEAST_START), _MOST_START, self.most // 2)

    @property
    def chunk(self) -> int:
        """Tokens of a block that are read at once: a request waits no longer than that takes."""
        return min(max(self._num_within(_CHUNK_S, _LEAST_START), _LEAST_CHUNK), _MOST_CHUNK)

    @property
    def kept(self) -> int:
        """Last tokens that stay when a text outgrows the window."""
        return 3 * self.most // 4

    def is_long(self, num_new: int, num_known: int) -> bool:
        """Whether so many new tokens after known ones are too many to be read in one go."""
        limit = (_CONTINUED if num_known else 2) * self.start
        return num_new > min(limit, self.most // 2)

    def block(self, num_seen: int) -> int:
        """Tokens of the next block, where so many are in the window; 0: it is full."""
        return max(0, min(num_seen, _BLOCK, self.kept - num_seen))

    def _num_within(self, seconds: float, unknown: int) -> int:
        if not self._token_s:
            return unknown
        return int(min(seconds / max(median(self._token_s), 1e-9), 1e6))

    # --- what pays

    def pays(self, num_seen: int, num_tokens: int, spent_s: float) -> bool:
        """Whether to read a block of ``num_tokens`` for a text of which ``num_seen`` are in the
        window and whose drafts have taken ``spent_s`` so far; inf: nothing else is to do."""
        cost_s = num_tokens * median(self._token_s) if self._token_s else 0.0
        gain = self.gain(num_seen)
        return gain > 0 and gain * spent_s >= cost_s

    def gain(self, num_seen: int) -> float:
        """By how much the expected run of right guesses grows when the window is doubled."""
        rung = _rung(num_seen)
        now, then = self._share(rung), self._share(min(rung + 1, len(SHARES) - 1))
        return (1 - now) / max(1 - then, 1e-3) - 1

    def _share(self, rung: int) -> float:
        return self._hits[rung] / self._trials[rung]

    # --- learning

    def observe_reading(self, num_tokens: int, seconds: float) -> None:
        """A forward pass of so many tokens of text took this long."""
        if num_tokens >= LEAST_MEASURED:
            self._token_s.append(seconds / num_tokens)

    def observe_guess(self, num_seen: int, *, is_hit: bool) -> None:
        """A token was the draft's first guess or not, with so many tokens in the window."""
        rung = _rung(num_seen)
        self._hits[rung] = _KEPT * self._hits[rung] + is_hit
        self._trials[rung] = _KEPT * self._trials[rung] + 1


def _rung(num_seen: int) -> int:
    """0 below 128 tokens, 1 below 256, and so on."""
    return min(max(0, (num_seen // 64).bit_length() - 1), len(SHARES) - 1)


@dataclass(frozen=True)
class _Guess:
    """The draft's first guess of a token, and the tokens that were in the window then."""

    token: int
    num_seen: int


@dataclass
class Track:
    """One text as it grows: the time that its drafts took, and what became of their guesses."""

    text: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    spent_s: float = 0.0
    _ahead: dict[tuple[int, ...], _Guess] = field(default_factory=dict)  # by path from the end
    _places: dict[int, _Guess] = field(default_factory=dict)  # by position, of unsettled tokens

    def follow(self, text: Tokens) -> Iterator[tuple[int, bool]]:
        """Go on to ``text``. For each token that is certain now and was guessed: the tokens that
        were in the window, and whether the guess was right."""
        old = len(self.text)
        common = common_prefix(self.text, text)
        if common < old:
            self._ahead = {}
            self._places = {p: guess for p, guess in self._places.items() if p <= common}
            if common < old - _UNSETTLED:  # another text
                self._places, self.spent_s = {}, 0.0
        elif self._ahead and len(text) > old:
            path = tuple(text[old : old + _UNSETTLED].tolist())
            for i in range(len(path)):
                if (guess := self._ahead.get(path[:i])) is not None:
                    self._places[old + i] = guess
            num_new = len(text) - old
            self._ahead = {
                key[num_new:]: guess
                for key, guess in self._ahead.items()
                if len(key) >= num_new and key[:num_new] == path
            }
        self.text = text.copy()
        for place in [p for p in self._places if p < len(text) - _UNSETTLED]:
            guess = self._places.pop(place)
            yield guess.num_seen, bool(text[place] == guess.token)

    def guess(self, path: list[int], token: int, num_seen: int) -> None:
        """``token`` is the draft's first guess after the text and ``path``."""
        self._ahead.setdefault(tuple(path), _Guess(token, num_seen))
