"""Define a completion's grammar, and the mask that it applies to each draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Kind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True)
class Grammar:
    """A grammar that a completion must match, in the notation of its kind: a JSON schema, a regular
    expression, or rules in Lark's notation. Sent to other processes by value."""

    kind: Kind
    source: str


class Mask(Protocol):
    """One completion's grammar on a vocabulary; remembers the texts that it has seen."""

    def allowed(self, answer: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Which tokens may follow ``answer``, shape (vocab,): those that continue a match of the
        grammar and, where the text may end, the end tokens. Depends on ``answer`` only. None if
        ``answer`` has already ended or cannot begin a match: nothing is ever drawn there. Raises
        BadOption if the grammar is too complex."""

    def close(self) -> None:
        """Free what it holds: nothing may follow any text from now on. Can be called twice."""
