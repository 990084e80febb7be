"""Define a completion's grammar, and the mask that it applies to each draw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from duodec.errors import BadOption

Kind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True)
class Grammar:
    """Hold a grammar that a completion must match, in the notation of its kind: a JSON schema,
    which may be given as a dictionary, a regular expression, or rules in Lark's notation. It is
    sent to other processes by value. Raises BadOption."""

    kind: Kind
    source: str

    def __post_init__(self) -> None:
        if self.kind not in (kinds := get_args(Kind)):
            raise BadOption(f"kind is {self.kind!r}; choose from: {', '.join(kinds)}")
        source: object = self.source
        if self.kind == "json_schema" and isinstance(source, Mapping):
            try:
                object.__setattr__(self, "source", json.dumps(dict(source)))
            except (TypeError, ValueError, RecursionError) as error:
                raise BadOption(f"the schema is no JSON ({error}); give one that is") from error
        elif not isinstance(source, str):
            raise BadOption(f"source is {source!r:.80}; give a text")


class GrammarEnded(Exception):
    """Raised in place of a draw where the grammar may end and no token that it allows is left. The
    completion ends there; this is not an error."""


class Mask(Protocol):
    """Apply one completion's grammar to a vocabulary, and remember the texts that were seen."""

    @property
    def ends(self) -> Sequence[int]:
        """Return the tokens that end a completion."""

    def allowed(self, completion: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Return which tokens may follow ``completion``, with shape (vocab,): those that continue a
        match of the grammar and, where the text may end, the end tokens. The result depends on
        ``completion`` only. It is None if the grammar has already ended or cannot begin a match:
        nothing is ever drawn there. Raises BadOption if the grammar is too complex."""

    def close(self) -> None:
        """Free what the mask holds: no token may follow any text from now on. It can be called
        twice."""


class NoEndBefore:
    """Exclude the end tokens for the first tokens of a completion."""

    def __init__(self, num_tokens: int, ends: Sequence[int], num_vocab: int) -> None:
        self.ends = tuple(ends)
        self._num_tokens = num_tokens
        self._allowed = np.ones(num_vocab, dtype=np.bool_)
        self._allowed[list(ends)] = False

    def allowed(self, completion: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Return all tokens but the ends; None, which excludes nothing, once there are enough
        tokens."""
        return self._allowed if len(completion) < self._num_tokens else None

    def close(self) -> None:
        """Do nothing: this mask holds nothing."""
