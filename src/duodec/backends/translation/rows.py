"""Turn a draft's row of logits into one over the target's vocabulary."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from duodec.backends.translation.spelling import Spelling
from duodec.core.rows import Row

NONE = -1  # no token
_ALIKE = 0.99  # share of common tokens above which two vocabularies are one, renumbered
_HEAVY = 9.0  # nats below the likeliest token within which no token is dropped
_MOST_HEAVY = 64


class Correspondence:
    """Say which tokens of two vocabularies are the same bytes, or the same special token."""

    def __init__(self, target: Spelling, draft: Spelling) -> None:
        self.target, self.draft = target, draft
        num_target = target.vocabulary.num_vocab
        self.of_target = np.full(num_target, NONE, dtype=np.int32)
        for piece, token in target.token_of.items():
            self.of_target[token] = draft.token_of.get(piece, NONE)
        for text, token in target.specials.items():
            self.of_target[token] = draft.specials.get(text, NONE)
        eos, draft_eos = target.vocabulary.eos, draft.vocabulary.eos
        if eos >= 0 and self.of_target[eos] == NONE and draft_eos not in self.of_target:
            self.of_target[eos] = draft_eos
        self.is_known = np.zeros(draft.vocabulary.num_vocab + 1, dtype=bool)
        self.is_known[self.of_target] = True  # NONE is the place after the last
        self._rest = np.full(1, -np.inf, dtype=np.float32)
        self._places = self.of_target.astype(np.intp)
        own = draft.token_of
        self._lacking_in_draft = sorted(piece for piece in target.token_of if piece not in own)

    @property
    def num_shared(self) -> int:
        """Return how many tokens with bytes both have."""
        return sum(piece in self.draft.token_of for piece in self.target.token_of)

    @property
    def is_renumbering(self) -> bool:
        """Return whether the two differ only in a few tokens."""
        sizes = (len(self.target.token_of), len(self.draft.token_of))
        return self.num_shared >= _ALIKE * max(sizes)

    def gathered(self, row: Row) -> Row:
        """Return the logits of the tokens that both have; the target's others have none."""
        return np.concatenate([row, self._rest])[self._places]

    def translated(self, log_probs: Row) -> Row:
        """Return log-probabilities over the target's vocabulary. A draft's token that the target
        lacks counts for the first token that the target spells it with."""
        row = self.gathered(log_probs)
        heavy = np.flatnonzero(log_probs > log_probs.max() - _HEAVY)
        lacking = heavy[~self.is_known[heavy]]
        if len(lacking) > _MOST_HEAVY:
            lacking = lacking[np.argpartition(-log_probs[lacking], _MOST_HEAVY)[:_MOST_HEAVY]]
        for token in lacking.tolist():
            if self.draft.pieces[token] and (first := self.spelled(token)[:1]):
                row[first[0]] = np.logaddexp(row[first[0]], log_probs[token])
        return row

    def spelled(self, token: int) -> tuple[int, ...]:
        """Return the target's tokens of one of the draft's."""
        return self.target.tokens_of(self.draft.pieces[token])

    def may_grow(self, data: bytes) -> bool:
        """Return whether the target has a token that begins with these bytes and that the draft
        lacks."""
        pieces = self._lacking_in_draft
        i = bisect_right(pieces, data)
        return i < len(pieces) and pieces[i].startswith(data)
