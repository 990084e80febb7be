"""Read the draft's vocabulary in a separate process: vLLM's process never loads llama.cpp.

A second OpenMP, another allocator and, in some builds, CUDA come with that library.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from duodec.backends.drafter.channel import Failure
from duodec.errors import BackendUnavailable
from duodec.machine.processes import NO_GPU

_TIMEOUT_S = 120.0
_CODE = "from duodec_vllm.vocabulary import tell; tell()"


@dataclass(frozen=True)
class DraftFacts:
    """A draft model's vocabulary, for `duodec.models.vocabularies`, and its cache's size."""

    texts: tuple[bytes, ...]  # by token
    bos: int
    eos: int
    ends: frozenset[int]
    num_context_train: int
    cache_bytes_per_token: int

    @property
    def num_vocab(self) -> int:
        return len(self.texts)

    def token_text(self, token: int) -> bytes:
        return self.texts[token]

    def is_end(self, token: int) -> bool:
        return token in self.ends


def draft_facts(path: Path) -> DraftFacts:
    """The facts of a GGUF file. Raises ModelUnreadable, BackendUnavailable."""
    try:
        told = subprocess.run(
            [sys.executable, "-c", _CODE, str(path), *sys.path],
            env={**os.environ, **NO_GPU, "LD_PRELOAD": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        found = pickle.loads(told.stdout)  # noqa: S301  our own process
    except (OSError, subprocess.TimeoutExpired, EOFError, pickle.UnpicklingError) as error:
        raise BackendUnavailable(
            f"no process could read {path} ({type(error).__name__}); see whether "
            f"`duodec doctor --draft {path}` can"
        ) from error
    if isinstance(found, Failure):
        raise found.error(found.message)
    assert isinstance(found, DraftFacts)
    return found


def tell() -> None:
    """Run in the child: pickle the facts of the file named first to stdout, or the error."""
    path, *places = sys.argv[1:]
    sys.path[:] = places
    from duodec.backends.llamacpp.model import LlamaModel

    found: DraftFacts | Failure
    try:
        model = LlamaModel(Path(path), num_gpu_layers=0)
        tokens = range(model.num_vocab)
        found = DraftFacts(
            tuple(model.token_text(token) for token in tokens),
            model.bos,
            model.eos,
            frozenset(token for token in tokens if model.is_end(token)),
            model.num_context_train,
            model.cache_bytes_per_token,
        )
    except Exception as error:  # noqa: BLE001  the parent raises it
        found = Failure.of(error)
    sys.stdout.buffer.write(pickle.dumps(found))
    sys.stdout.buffer.flush()
