"""Keep a completion from ending before it has as many tokens as it must have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
