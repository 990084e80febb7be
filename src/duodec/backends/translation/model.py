"""Present a draft model of another vocabulary as one over the target's tokens.

The draft model reads the target's text in its own tokens. After a path of target tokens it
continues from the same bytes, and its probabilities are given for the target's tokens:

- A token of equal bytes has the same number of nats, so the keyed noise of the target's token
  couples both as in a pair of one vocabulary.
- A draft's token that the target lacks stands for the first of the tokens that the target spells it
  with; where a path ends within it, its probability is what is known of the rest.
- A likely token that may grow into a longer one of the target's is followed further, and what the
  target's tokenizer joins moves to the joined token. The draft's next step would have taken this
  step anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from duodec.backends.translation.rows import NONE, Correspondence
from duodec.backends.translation.spelling import last_word
from duodec.backends.translation.text import Frame, TextPosition, TranslatedText
from duodec.backends.translation.wrapped import Wrapped
from duodec.core.draft import ROOT, Draft, TreeBuilder
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row, log_normaliser, top
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.sampling.sampler import Tokens
from duodec.core.traits import DraftTraits

_Path = tuple[int, ...]  # the draft's tokens, from the trunk on

_MOST_NODES = 110  # nodes of the draft's own tree: each may be a leaf, and leaves cost sequence ids
_MOST_ROWS = 96  # rows of a text that are remembered
_LIKELY = math.log(0.2)  # least likelihood of a second token that is followed further
_WORTH = math.log(0.03)  # least likelihood of a text of several tokens that is followed
_BRANCHES = 2  # tokens of a row that are followed
_MOST_PIECES = 8  # the draft's tokens that are joined
_MOST_BEGUN = 16  # tokens within which a path may end that are examined
_UNLIKELY = math.log(0.1)  # least likelihood of a reading of a path's end
_SILENT_S = 0.3  # time of forward passes after which a step shows that it is alive
_LEAST = 1e-6  # likelihood that stays with a token when a longer one takes its place


@dataclass
class _Slot:
    """Hold a text, and what the draft computed after paths below its trunk."""

    text: TranslatedText
    trunk: list[int] = field(default_factory=list)
    rows: dict[_Path, Row] = field(default_factory=dict)  # log-probabilities, the last used last

    def follow(self, text: Tokens) -> None:
        """Go on to ``text`` and keep the rows that lie below its trunk."""
        self.text.follow(text)
        old, new = self.trunk, list(self.text.trunk)
        if new[: len(old)] == old:
            more = tuple(new[len(old) :])
            num = len(more)
            self.rows = {path[num:]: row for path, row in self.rows.items() if path[:num] == more}
        elif old[: len(new)] == new:
            more = tuple(old[len(new) :])
            self.rows = {more + path: row for path, row in self.rows.items()}
        else:
            self.rows = {}
        self.trunk = new

    def remember(self, path: _Path, row: Row) -> None:
        self.rows[path] = row
        while len(self.rows) > _MOST_ROWS:
            del self.rows[next(iter(self.rows))]


@dataclass(frozen=True)
class _Guess:
    """Hold what the draft may propose next after a place: a path of its own that goes beyond the
    place, with the bytes that are beyond."""

    path: _Path
    data: bytes
    log_prob: float


@dataclass(frozen=True)
class _Reading:
    """Hold how the draft may read the end of a path: its last token is complete, with a
    log-probability, or it is the beginning of a longer one."""

    path: _Path
    complete: float = 0.0
    begun: tuple[_Guess, ...] = ()


class TranslatedModel(Wrapped):
    """Use ``model`` for the target of a `Correspondence` with the model's own vocabulary.

    ``mask`` makes the mask of a grammar on the target's vocabulary; ``frames`` are what the two
    chat templates write between messages.
    """

    def __init__(
        self,
        model: DraftModel,
        words: Correspondence,
        mask: Callable[[Grammar], Mask],
        frames: Sequence[Frame] = (),
    ) -> None:
        super().__init__(model)
        self._mask = mask
        self._words, self._target, self._draft = words, words.target, words.draft
        self._frames = frames
        self._slots: dict[int, _Slot] = {}
        self._start_s = 0.0  # begin of the call in progress

    @property
    def traits(self) -> DraftTraits:
        return replace(self.model.traits, has_masks=True, parallel=None)

    def mask(self, grammar: Grammar) -> Mask:
        return self._mask(grammar)

    def rows(self, query: RowQuery) -> list[Row]:
        """Return log-probabilities over the target's vocabulary."""
        self._start_s = perf_counter()
        slot = self._slot(query.slot)
        slot.follow(query.text)
        if not query.rows:
            trunk = np.array(slot.trunk, dtype=np.int32)
            self.model.rows(RowQuery(query.slot, trunk, Draft(), ()))
            return []
        places = list(slot.text.places(query.draft))
        paths = [slot.text.path(place) for place in places]
        readings = [self._read(slot, places[row], paths[row]) for row in query.rows]
        asked = [reading.path for reading in readings if reading.complete >= _UNLIKELY]
        self._compute(query.slot, asked, paths)
        moves = self._joined(query.slot, readings, paths)
        return [
            self._translated(slot, reading, moved)
            for reading, moved in zip(readings, moves, strict=True)
        ]

    def forget(self, slot: int) -> None:
        self._slots.pop(slot, None)
        super().forget(slot)

    def _slot(self, number: int) -> _Slot:
        if number not in self._slots:
            specials = self._words.of_target.tolist()
            text = TranslatedText(self._target, self._draft, specials, self._frames)
            self._slots[number] = _Slot(text)
        return self._slots[number]

    # --- the draft model's own rows

    def _compute(self, number: int, wanted: Sequence[_Path], kept: Sequence[_Path]) -> None:
        """Make sure that the rows after these paths are known; the model keeps what lies along the
        ``kept`` ones."""
        slot = self._slots[number]
        missing = []
        for path in dict.fromkeys(wanted):
            if (row := slot.rows.pop(path, None)) is None:
                missing.append(path)
            else:
                slot.rows[path] = row  # used last
        if missing:
            is_silent = perf_counter() - self._start_s > _SILENT_S
            if is_silent and self.model.traits.reads_in_chunks:
                self.model.on_chunk()  # so that a slow machine does not count as hung
            tree = TreeBuilder()
            known: dict[_Path, int] = {(): ROOT}
            ends = [_add(tree, known, path) for path in missing]
            for path in (*kept, *slot.rows):
                if len(tree) + len(path) > _MOST_NODES:
                    break
                _add(tree, known, path)
            trunk = np.array(slot.trunk, dtype=np.int32)
            asked = tuple(end + 1 for end in ends)
            found = self.model.rows(RowQuery(number, trunk, tree.draft(), asked))
            for path, row in zip(missing, found, strict=True):
                slot.remember(path, row - np.float32(log_normaliser(row)))

    # --- where a path ends within a token

    def _read(self, slot: _Slot, place: TextPosition, path: _Path) -> _Reading:
        """Return what the known rows say about the path's last word."""
        word = last_word(place.open)
        tokens = self._draft.tokens_of(word)
        before = path[: len(path) - len(tokens)]
        weight, num_read = 1.0, 0
        begun: list[tuple[float, _Path, bytes]] = []
        for i, token in enumerate(tokens):
            row = slot.rows.get(before + tokens[:i])
            if row is None:
                weight, begun = 1.0, []
            else:
                prefix = word[num_read:]
                for longer in self._begun_with(row, prefix):
                    rest = self._draft.pieces[longer][len(prefix) :]
                    prob = weight * float(np.exp(row[longer]))
                    begun.append((prob, (*before, *tokens[:i], longer), rest))
                weight *= float(np.exp(row[token]))
            num_read += len(self._draft.pieces[token])
        total = weight + sum(prob for prob, _, _ in begun)
        if not begun or total <= 0:
            return _Reading(path)
        guesses = [_Guess(own, rest, _log(prob / total)) for prob, own, rest in begun if prob > 0]
        return _Reading(path, _log(weight / total), tuple(guesses))

    def _begun_with(self, row: Row, prefix: bytes) -> list[int]:
        """Return the row's best tokens that begin with the end of a path."""
        longer = self._draft.begun_with(prefix)
        return longer[top(row[longer], _MOST_BEGUN)].tolist() if len(longer) else []

    # --- where the target joins what the draft says in several tokens

    def _joined(
        self, number: int, readings: Sequence[_Reading], kept: Sequence[_Path]
    ) -> list[list[tuple[int, int, float]]]:
        """Return for each reading what moves: from the target's token, to its longer one, and the
        log-probability of that."""
        slot = self._slots[number]
        found: list[list[tuple[int, int, float]]] = [[] for _ in readings]
        edge: list[tuple[int, int, _Guess]] = []  # (reading, token that it begins with, text)
        for i, reading in enumerate(readings):
            guesses = [*reading.begun]
            if reading.path in slot.rows and reading.complete >= _UNLIKELY:
                guesses += self._next(slot, _Guess(reading.path, b"", reading.complete))
            best = max((one.log_prob for one in guesses), default=0.0)
            for one in guesses:
                is_likely = one.log_prob >= min(best, _LIKELY)
                if is_likely and self._words.may_grow(one.data):
                    first = next(iter(self._target.tokens_of(one.data)), NONE)
                    if first != NONE and self._target.pieces[first] == one.data:
                        edge.append((i, first, one))
        for _ in range(_MOST_PIECES - 1):
            if not edge:
                break
            self._compute(number, [one.path for _, _, one in edge], kept)
            further = []
            for i, first, one in edge:
                for more in self._next(slot, one):
                    token = next(iter(self._target.tokens_of(more.data)), NONE)
                    if token == NONE:
                        continue
                    if len(self._target.pieces[token]) > len(self._target.pieces[first]):
                        found[i].append((first, token, more.log_prob))
                    elif self._words.may_grow(more.data):
                        further.append((i, first, more))
            edge = further
        return found

    def _next(self, slot: _Slot, guess: _Guess) -> list[_Guess]:
        """Return the likeliest texts that continue with one more token."""
        row = slot.rows.get(guess.path)
        if row is None:
            return []
        best, *others = top(row, _BRANCHES).tolist()
        likely = [best, *(token for token in others if row[token] >= _LIKELY)]
        return [
            _Guess((*guess.path, token), guess.data + piece, guess.log_prob + float(row[token]))
            for token in likely
            if (piece := self._draft.pieces[token]) and guess.log_prob + row[token] >= _WORTH
        ]

    # --- rows of the target's vocabulary

    def _translated(
        self, slot: _Slot, reading: _Reading, moves: Sequence[tuple[int, int, float]]
    ) -> Row:
        found = slot.rows.get(reading.path) if reading.complete >= _UNLIKELY else None
        if found is None:
            row = np.full(self._target.vocabulary.num_vocab, -np.inf, dtype=np.float32)
        else:
            row = self._words.translated(found)
            row += np.float32(reading.complete)
        for guess in reading.begun:
            if first := self._rest_of(guess):
                row[first[0]] = np.logaddexp(row[first[0]], guess.log_prob)
        for first_token, token, log_prob in moves:
            row[token] = np.logaddexp(row[token], log_prob)
            left = float(np.exp(row[first_token])) - float(np.exp(log_prob))
            row[first_token] = _log(max(left, _LEAST))
        return row

    def _rest_of(self, guess: _Guess) -> tuple[int, ...]:
        """Return the target's tokens of what comes after the first bytes of a draft's token."""
        token = guess.path[-1]
        end, begin = 0, len(self._draft.pieces[token]) - len(guess.data)
        spelled = self._words.spelled(token)
        for i, own in enumerate(spelled):
            if end == begin:
                return spelled[i:]
            end += len(self._target.pieces[own])
        return self._target.tokens_of(guess.data)


def _add(tree: TreeBuilder, known: dict[_Path, int], path: _Path) -> int:
    """Return the end of a path, whose beginning may be known; add what is missing."""
    if path not in known:
        known[path] = tree.add(_add(tree, known, path[:-1]), path[-1])
    return known[path]


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -math.inf
