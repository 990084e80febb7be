"""What an answer must match: a grammar by value, and the mask that it lays on each draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Kind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True)
class Grammar:
    """A language that an answer must be a word of, in the notation of its kind: a JSON schema,
    a regular expression, rules in Lark's notation. Travels by value."""

    kind: Kind
    source: str


class Mask(Protocol):
    """One answer's grammar on a vocabulary; a memo of the texts that it was asked about."""

    def allowed(self, answer: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Which tokens may follow ``answer``, shape (vocab,): those that some word of the
        grammar goes on with, and where it may end, those that end an answer. Depends on
        ``answer`` only. None where that has ended already, or is no beginning of a word: what
        follows there is never drawn. Raises BadOption where the grammar is too complex."""
