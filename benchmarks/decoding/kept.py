"""Keep what a simulation computes in files, so that its next run computes only what is new.

The recorded texts, the target's rows off them and the draft model's rows follow from the models and
the prompts alone. Of a draft model's row the likeliest tokens are kept, and how likely all others
are together, as though these were alike: greedy drafts are the same.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.prefix import common_prefix
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Tokens
from duodec.core.traits import DraftTraits

_MOST_KEPT = 64  # tokens of a row
_KEY_BYTES = 12
_Kept = tuple[NDArray[np.int32], Row, float]
"""The likeliest tokens, their logits, and the logit of each other one."""


@dataclass
class Shelf:
    """Values by name in one file; without a file nothing is kept beyond this run."""

    path: Path | None
    values: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path | None, *parts: object) -> Shelf:
        """What earlier runs with the same ``parts`` kept in a folder."""
        if folder is None:
            return cls(None)
        name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        path = folder / f"{parts[0]}-{name}.pickle"
        # written by `save` alone, for whoever gave the folder
        return cls(path, pickle.loads(path.read_bytes()) if path.exists() else {})

    def get(self, name: object, make: Callable[[], Any]) -> Any:
        if name not in self.values:
            self.values[name] = make()
        return self.values[name]

    def save(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".part")
            partial.write_bytes(pickle.dumps(self.values))
            partial.replace(self.path)


class KeptRows(DraftModel):
    """A draft model whose rows are looked up before they are computed. It reads texts whole, as one
    on a card does, and counts as computed what its own cache would lack."""

    traits = DraftTraits(counts_tokens=True)

    def __init__(self, model: DraftModel, kept: dict[bytes, _Kept], num_vocab: int) -> None:
        self._model, self._kept, self._num_vocab = model, kept, num_vocab
        model.compute_alone(True)  # a row must not depend on what was asked for before
        self._text: Tokens = np.zeros(0, dtype=np.int32)
        self._prefixes = [b""]  # keys of the text's first 0, 1, ... tokens
        self._known: set[bytes] = set()  # that the cache holds
        self._num_computed = 0

    @property
    def num_computed(self) -> int:
        return self._num_computed

    def fresh(self) -> KeptRows:
        return KeptRows(self._model, self._kept, self._num_vocab)

    def rows(self, query: RowQuery) -> list[Row]:
        keys = self._keys_of(query)
        wanted = [keys[row] for row in query.rows]
        if any(key not in self._kept for key in wanted):
            for key, row in zip(wanted, self._model.rows(query), strict=True):
                if key not in self._kept:  # what is known stays as it is
                    self._kept[key] = _kept(row[: self._num_vocab])
        return [self._whole(self._kept[key]) for key in wanted]

    def _keys_of(self, query: RowQuery) -> list[bytes]:
        """Of the text and of each node; counts those that are new."""
        num_same = common_prefix(self._text, query.text)
        del self._prefixes[num_same + 1 :]
        for token in query.text[num_same:].tolist():
            self._prefixes.append(_key(self._prefixes[-1], token))
        self._text = query.text.copy()
        keys = [self._prefixes[-1]]
        for token, parent in zip(query.draft.tokens, query.draft.parents, strict=True):
            keys.append(_key(keys[parent + 1], token))
        held = self._prefixes[1:] + keys[1:]
        self._num_computed += max(1, sum(key not in self._known for key in held))
        self._known = set(held)
        return keys

    def _whole(self, kept: _Kept) -> Row:
        tokens, logits, other = kept
        row = np.full(self._num_vocab, other, dtype=np.float32)
        row[tokens] = logits
        return row


def _kept(row: Row) -> _Kept:
    best = np.argpartition(row, -_MOST_KEPT)[-_MOST_KEPT:]
    top = row.max()
    weights = np.exp((row - top).astype(np.float64))
    others = max(1e-300, weights.sum() - weights[best].sum()) / (len(row) - _MOST_KEPT)
    least = min(float(top + np.log(others)), float(row[best].min()))
    return best.astype(np.int32), row[best].copy(), least


def _key(prefix: bytes, token: int) -> bytes:
    return hashlib.blake2b(prefix + token.to_bytes(4, "little"), digest_size=_KEY_BYTES).digest()


def prompts_key(prompts: Sequence[Any]) -> str:
    return hashlib.sha256(repr([(p.task, p.prompt_id) for p in prompts]).encode()).hexdigest()[:16]
