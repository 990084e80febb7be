"""Decide how much of a long text a draft model reads, and when it reads more of it.

Of a long text the draft model reads the first few tokens and the last ``start`` ones, and drafts at
once. Then older text joins it in blocks, each as long as what is there already, up to `_BLOCK`
tokens, until three quarters of the window are full. The last quarter is for the text to grow into.
When the text outgrows the window, its oldest quarter is dropped. Nothing is read twice.

A block is read when that pays. Reading takes a known time, by the measured speed. Its gain is
learned by distance: the share of tokens that were the draft's first guess, with windows of 64
tokens and more, of 128 and more, and so on. It begins with shares that were measured offline, which
rise steeply for a draft of half a billion parameters and not at all for one of a few layers. If a
share h becomes g, the expected run of right guesses grows from 1/(1-h) to 1/(1-g). How long a text
goes on is unknown, so it is expected to take as long again as it has taken. Hence reading pays
while, for some wider window, the gain times the time spent on the text's drafts exceeds the time it
takes to get there. When the drafter is idle, reading is free, and it reads unless wider windows
were found to be worse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens

NUM_FIRST = 8  # tokens of the text's beginning that every window holds
LEAST_WINDOW = 128  # in tokens: a tree's text, with its first tokens
DEFAULT_WINDOW = 8192
_START_S = 0.03  # most time for reading before anything is drafted
_CHUNK_S = 0.01  # most time that a request may have to wait for reading
# Tokens; the last value holds before any measurement.
_LEAST_START, _MOST_START, _FIRST_START = 32, 512, 96
_LEAST_CHUNK, _MOST_CHUNK = 8, 128
_BLOCK = 512
_CONTINUED = 4  # in starts: as much new text is read at once after known text
LEAST_MEASURED = 16  # tokens of a forward pass from which the speed of reading is learned
_REMEMBERED = 32  # measurements of that speed
_UNSETTLED = 16  # last tokens of a text; they may be drafts that the target will reject
_PRIOR_WEIGHT = 200.0  # tokens that the shares measured offline stand for
_KEPT = 0.999  # share of all counts that each new token keeps
_LARGE_PARAMS = 2e8
_SHARES_LARGE = (0.30, 0.30, 0.45, 0.60, 0.72, 0.84)  # first guesses, by distance
_SHARES_SMALL = (0.28,) * len(_SHARES_LARGE)
_NUM_RUNGS = len(_SHARES_LARGE)


class Window:
    """Hold the window of one draft model: its size, and the rule by which it grows.

    ``most`` is the largest number of tokens that it holds, ``num_params`` the size of the draft
    model. Seconds are those of the caller's clock.
    """

    def __init__(self, most: int = DEFAULT_WINDOW, num_params: float = 0.0) -> None:
        self.most = most
        self._token_s = deque[float](maxlen=_REMEMBERED)
        shares = _SHARES_LARGE if num_params >= _LARGE_PARAMS else _SHARES_SMALL
        self._hits = [share * _PRIOR_WEIGHT for share in shares]
        self._trials = [_PRIOR_WEIGHT] * _NUM_RUNGS

    # --- sizes, in tokens

    @property
    def start(self) -> int:
        """Return how many of a long text's last tokens are read before anything is drafted."""
        num = self._num_within(_START_S, _FIRST_START)
        return min(max(num, _LEAST_START), _MOST_START, self.most // 2)

    @property
    def chunk(self) -> int:
        """Return how many tokens of a block are read at once: a request waits no longer than that
        takes."""
        return min(max(self._num_within(_CHUNK_S, _LEAST_START), _LEAST_CHUNK), _MOST_CHUNK)

    @property
    def kept(self) -> int:
        """Return how many last tokens stay when a text outgrows the window."""
        return 3 * self.most // 4

    def is_long(self, num_new: int, num_known: int, *, is_alone: bool = False) -> bool:
        """Return whether ``num_new`` tokens after ``num_known`` are too many to be read at once. A
        draft model that computes alone, while the target waits, reads all that it can hold: it has
        no other time for it."""
        if is_alone:
            return num_new > self.kept
        limit = (_CONTINUED if num_known else 2) * self.start
        return num_new > min(limit, self.most // 2)

    def block(self, num_seen: int) -> int:
        """Return the number of tokens of the next block, with ``num_seen`` in the window; 0: it is
        full."""
        return max(0, min(num_seen, _BLOCK, self.kept - num_seen))

    def _num_within(self, seconds: float, unknown: int) -> int:
        if not self._token_s:
            return unknown
        return int(min(seconds / max(median(self._token_s), 1e-9), 1e6))

    # --- what pays

    def pays(self, num_seen: int, num_missing: int, spent_s: float) -> bool:
        """Return whether to read older text while there are drafts to make. ``num_seen`` tokens are
        in the window, ``num_missing`` could join, and the text's drafts have taken ``spent_s`` so
        far."""
        token_s = median(self._token_s) if self._token_s else 0.0
        return any(
            gain > 0 and gain * spent_s >= num_tokens * token_s
            for num_tokens, gain in self._wider(num_seen, num_missing)
        )

    def helps(self, num_seen: int, num_missing: int) -> bool:
        """Return whether to read older text when there is nothing else to do."""
        gains = [gain for _, gain in self._wider(num_seen, num_missing)]
        return num_missing > 0 and max(gains, default=0.0) >= 0

    def _wider(self, num_seen: int, num_missing: int) -> Iterator[tuple[int, float]]:
        """Yield for each wider window the tokens to read, and by how much the expected run of right
        guesses grows."""
        rung = _rung(num_seen)
        now = self._share(rung)
        for wider in range(rung + 1, _NUM_RUNGS):
            num_tokens = (64 << wider) - num_seen
            if num_tokens > num_missing:
                return
            yield num_tokens, (1 - now) / max(1 - self._share(wider), 1e-3) - 1

    def _share(self, rung: int) -> float:
        return self._hits[rung] / self._trials[rung]

    # --- learning

    def observe_reading(self, num_tokens: int, seconds: float) -> None:
        """Record that a forward pass read ``num_tokens`` of text in ``seconds``."""
        if num_tokens >= LEAST_MEASURED:
            self._token_s.append(seconds / num_tokens)

    def observe_guess(self, num_seen: int, *, is_hit: bool) -> None:
        """Record whether a token was the draft's first guess, with ``num_seen`` tokens in the
        window."""
        rung = _rung(num_seen)
        self._hits[rung] = _KEPT * self._hits[rung] + is_hit
        self._trials[rung] = _KEPT * self._trials[rung] + 1


def _rung(num_seen: int) -> int:
    """Return 0 below 128 tokens, 1 below 256, and so on."""
    return min(max(0, (num_seen // 64).bit_length() - 1), _NUM_RUNGS - 1)


@dataclass(frozen=True)
class _Guess:
    """Hold the draft's first guess of a token, and the number of tokens in the window then."""

    token: int
    num_seen: int


@dataclass
class Track:
    """Follow one text as it grows: the time that its drafts took, and what became of their
    guesses."""

    text: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    spent_s: float = 0.0
    _ahead: dict[tuple[int, ...], _Guess] = field(default_factory=dict)  # by path from the end
    _places: dict[int, _Guess] = field(default_factory=dict)  # unsettled tokens by position

    def follow(self, text: Tokens) -> Iterator[tuple[int, bool]]:
        """Go on to ``text``. For each guessed token that is certain now, yield how many tokens were
        in the window, and whether the guess was right."""
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
        """Record ``token`` as the draft's first guess after the text and ``path``."""
        self._ahead.setdefault(tuple(path), _Guess(token, num_seen))
