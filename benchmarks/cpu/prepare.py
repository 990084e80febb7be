"""Load our llama.cpp in a process that ends, and tell what a comparison must know of it.

    python -m benchmarks.cpu.prepare facts MODEL DRAFT DISTINCT
    python -m benchmarks.cpu.prepare weights MODEL TYPES FORMAT

The library changes the environment of its process, which other programs must not inherit.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import in_process
from benchmarks.kernels.kernels import model_file, requantised, text_for
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.model import LlamaModel
from duodec.models import ALIASES, resolve

AUTO, NONE = "auto", "none"  # a draft: the one that the model's name brings, or none
_NUM_TOKENS = 1024


@dataclass(frozen=True)
class Facts:
    """Of our build, and of a model."""

    path: str
    draft: str | None
    tokens: list[int]  # of prose
    libraries: str  # the folder of libllama.so
    kernels: str  # the instruction set of ours
    has_experts: bool
    variables: dict[str, str]  # that our library sets in the environment


def facts(model: str, draft: str, num_distinct: int | None = None) -> Facts:
    """Of a model as `benchmarks.kernels` names it; ``draft`` is another, `AUTO` or `NONE`. A model
    without a vocabulary is given so many different tokens, or any."""
    return Facts(**_asked("facts", model, draft, str(num_distinct or 0)))


def weights(model: Path, types: frozenset[int], nearest: str) -> Path:
    """The file, or one with its weights in another format where some of them are of none of these
    types of ggml."""
    numbers = ",".join(map(str, sorted(types)))
    return Path(_asked("weights", str(model), numbers, nearest)["path"])


def _asked(*words: str) -> dict[str, Any]:
    return dict(in_process("-m", "benchmarks.cpu.prepare", *words))


def _facts(model: str, draft: str, num_distinct: str) -> dict[str, Any]:
    before = dict(os.environ)
    lib = library.load()
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    path = model_file(model)
    header = _header(path)
    vocabulary = LlamaModel(path, vocabulary_only=True, num_gpu_layers=0)
    return {
        "path": str(path), "draft": _draft(model, draft),
        "tokens": text_for(vocabulary, _NUM_TOKENS, int(num_distinct)),
        "libraries": str(library.folder(lib)),
        "kernels": library.kernels(lib), "variables": changed,
        "has_experts": any("_exps." in name for name in header.tensors),
    }  # fmt: skip


def _draft(model: str, draft: str) -> str | None:
    if draft == AUTO:
        alias = ALIASES.get(model)
        if alias is None or alias.draft is None:
            return None
        draft = alias.draft
    if draft == NONE:
        return None
    return str(resolve(draft).path if draft.endswith("-draft") else model_file(draft))


def _header(model: Path) -> Header:
    header = Header.read(library.load(), model)
    assert header is not None, f"{model} is no GGUF file"
    return header


def _weights(model: Path, types: str, nearest: str) -> dict[str, Any]:
    header = _header(model)
    is_read = set(header.types.values()) <= set(map(int, types.split(",")))
    return {"path": str(model if is_read else requantised(model, nearest))}


if __name__ == "__main__":
    what, name, *words = sys.argv[1:]
    print(json.dumps(_facts(name, *words) if what == "facts" else _weights(Path(name), *words)))
