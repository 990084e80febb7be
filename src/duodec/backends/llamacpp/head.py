"""Choose the rows of a draft's head that are computed: those of the tokens that texts are made of.

A large part of what a draft's step reads is the head, and most of its rows are of tokens that hardly
ever come (FR-Spec, arXiv 2502.14856; VocabTrim, 2506.22694). Tokens outside are not drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duodec.backends.llamacpp.header import GgufFile

FREQUENT = "duodec.frequent_tokens"  # metadata of a draft's file: tokens, the most frequent first
_NORMAL = 1  # llama_token_type: a token of text
_BYTE_PAIRS = "gpt2"


def head_tokens(lib: Any, path: Path, most: int) -> Sequence[int]:
    """The ``most`` most frequent tokens of a draft's file and all that are no text, such as the
    ends of turns; ascending. None where these are all, or nothing says what is frequent: the file's
    metadata does, or the numbers of byte pairs, which were merged by their frequency."""
    with GgufFile(lib, path) as file:
        kinds = np.array(file.numbers("tokenizer.ggml.token_type") if file.handle else [])
        frequent = file.numbers(FREQUENT) if file.handle else []
        if not frequent and file.handle and file.text("tokenizer.ggml.model") == _BYTE_PAIRS:
            frequent = np.flatnonzero(kinds == _NORMAL).tolist()
    if not frequent or len(frequent) <= most or not len(kinds):
        return ()
    chosen = np.union1d(np.flatnonzero(kinds != _NORMAL), frequent[:most])
    return tuple(chosen[chosen < len(kinds)].tolist())
