"""Recognise drafts that were trained to draft several tokens in one forward pass.

Our drafts say it in their metadata. For AMD's (PARD, arXiv 2504.18583) a GGUF file has kept only
the name, and the mask token is the one that their configurations name for a vocabulary.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp.gguf.header import GgufFile
from duodec.core.traits import Parallel
from duodec.errors import BadOption

MASK_TOKEN = "duodec.mask_token"  # noqa: S105  metadata of a draft's file: a token that no text has,
NUM_PARALLEL = "duodec.parallel"  # with the number of tokens it was trained to draft at once
MOST_PARALLEL = 16
_PARD = re.compile(r"(?<![a-z])pard(?![a-z0-9])", re.IGNORECASE)  # PARD-2 reads the target's states
_OF_PARD = {"qwen2": 151_665, "qwen3": 151_670, "llama": 128_020}  # by architecture
_NUM_OF_PARD = 8


def parallel(lib: Any, path: Path, num_tokens: int | None) -> Parallel | None:
    """Return how the draft in a file drafts ``num_tokens`` at once, by default as many as it was
    trained for; None if it drafts one. Raises BadOption if it was not trained for several."""
    if num_tokens == 1:
        return None
    with GgufFile(lib, path) as file:
        if not file.handle:
            return None  # loading reports what is wrong with the file
        mask_tokens, trained = file.numbers(MASK_TOKEN), file.numbers(NUM_PARALLEL)
        names = (path.name, file.text("general.name"), file.text("general.basename"))
        num_vocab = file.length("tokenizer.ggml.tokens")
        if not mask_tokens and any(map(_PARD.search, names)):
            mask_tokens = [_OF_PARD.get(file.text("general.architecture"), num_vocab)]
    num_trained = trained[0] if trained else _NUM_OF_PARD
    if mask_tokens and 0 <= mask_tokens[0] < num_vocab and num_trained > 1:
        return Parallel(mask_tokens[0], min(num_tokens or num_trained, MOST_PARALLEL))
    if num_tokens is not None:
        raise BadOption(
            f"draft_parallel is {num_tokens}, and {path.name} was not trained with mask tokens; "
            "leave it out, or distill a draft that is"
        )
    return None
