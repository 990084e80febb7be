"""Compare kernels for weights with the same weights in float32: ours, and llama.cpp's.

Of a file in each format: the Kullback-Leibler divergence of the next token's distribution from the
one that the file's weights give in float32, which transformers computes (the torch extra; 4 bytes a
weight). Caches are in float32, so that the weights' kernels alone differ, and then as each of the
two has them by default. A format that ends with `-pure` is that of all matrices:

    python -m benchmarks faithfulness smollm2:Q4_0-pure smollm2:F16-pure
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import typer
from gguf import GGUFReader
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import Figures, figures_of, in_process
from benchmarks.kernels.kernels import model_file, score
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.checks import self_test
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.caches import CacheTypes
from duodec.backends.llamacpp.target.target import LlamaTarget

Floats = NDArray[np.float32]

TEXTS = (  # of the repository
    "LICENSE", "benchmarks/kernels/kernels.py", "README.md", "src/duodec/core/verify.py",
    "pyproject.toml",
)  # fmt: skip
START, WIDTH = 32, 64  # tokens before the first row; rows of a forward pass
CACHES = {"float32": CacheTypes("f32", "f32"), "default": CacheTypes()}
KERNELS = {"llama.cpp": {self_test.SWITCH: self_test.OFF}, "ours": {}}


def reference_rows(path: Path, texts: Sequence[Sequence[int]]) -> Floats:
    """Logits after each token from START on, of the file's weights in float32 as transformers
    computes them: (texts, rows, vocab). Raises BackendUnavailable without torch, and
    ModelUnreadable."""
    from duodec_torch.checkpoint.blueprint import Blueprint
    from duodec_torch.checkpoint.weights import read_weights
    from duodec_torch.library import torch

    model = read_weights(Blueprint.of(path, dtype="float32", device="cpu"))
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = model(torch.tensor(texts), use_cache=False).logits[:, START - 1 : -1]
    rows: Floats = logits.numpy()
    return rows


def formats_of(path: Path) -> str:
    """The formats of a file's matrices, by the number of weights."""
    sizes: dict[str, int] = {}
    for tensor in GGUFReader(path).tensors:
        if len(tensor.shape) > 1:
            name = tensor.tensor_type.name
            sizes[name] = sizes.get(name, 0) + int(tensor.n_elements)
    total = sum(sizes.values())
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size / total:.0%}" for name, size in ordered)


def texts(model: LlamaModel, num: int) -> list[list[int]]:
    root = Path(__file__).parents[2]
    return [
        model.tokenize((root / name).read_text(), is_templated=False)[: START + WIDTH]
        for name in TEXTS[:num]
    ]


@dataclass(frozen=True)
class Measured:
    """Kernels against the reference: of each text, the mean of its rows."""

    kl: list[float]  # of a row's distribution from the reference's, in nats
    error: list[float]  # of its logits, as a share of their spread


def measure(path: Path, references: Path, cache: str) -> Measured:
    """In a process of its own: kernels are chosen when the library is loaded."""
    library.load()
    model = LlamaModel(path, num_gpu_layers=0, cache=CACHES[cache])
    saved = np.load(references)
    known, wanted = saved["texts"].tolist(), saved["rows"]
    target = LlamaTarget(model, num_context=len(known[0]), num_threads=1)
    kl: list[float] = []
    error: list[float] = []
    for tokens, of_text in zip(known, wanted, strict=True):
        own = [
            _against(row, reference)
            for row, reference in zip(
                score(target, tokens[:START], tokens[START:-1]), of_text, strict=True
            )
        ]
        kl.append(fmean(divergence for divergence, _ in own))
        error.append(fmean(share for _, share in own))
    return Measured(kl, error)


def _against(row: Floats, reference: Floats) -> tuple[float, float]:
    p, q = _log_softmax(reference), _log_softmax(row)
    return float(np.sum(np.exp(p) * (p - q))), float(np.std(row - reference) / np.std(reference))


def _log_softmax(row: Floats) -> NDArray[np.float64]:
    x = row.astype(np.float64) - row.max()
    logs: NDArray[np.float64] = x - np.log(np.exp(x).sum())
    return logs


def main(
    models: Annotated[list[str], typer.Argument(metavar="MODEL[:FORMAT]...")],
    num_texts: Annotated[int, typer.Option(help=f"Of {WIDTH} rows each.")] = len(TEXTS),
    onto: Annotated[str, typer.Option(help="A result that this run goes on from.")] = "",
) -> Figures:
    """Compute the reference of each file, then every kind of kernels; means."""
    console = Console()
    table: dict[str, Any] = {}
    if onto:
        table = figures_of(onto)["table"]
    for name in models:
        path = model_file(name)
        library.load()
        model = LlamaModel(path, num_gpu_layers=0)
        known = texts(model, num_texts)
        model.close()
        with tempfile.TemporaryDirectory() as folder:
            references = Path(folder) / "references.npz"
            np.savez(references, texts=known, rows=reference_rows(path, known))
            row: dict[str, Any] = {"matrices": formats_of(path)}
            for cache in CACHES:
                found = {
                    kernels: _one(path, references, cache, switched)
                    for kernels, switched in KERNELS.items()
                }
                row[cache] = _compared(found)
        table[name] = row
        console.print(f"{name} ({row['matrices']})", soft_wrap=True)
        for cache in CACHES:
            console.print(f"    caches {cache}: {_line(row[cache])}", soft_wrap=True)
    return {"table": table}


def _compared(found: dict[str, Measured]) -> dict[str, Any]:
    """Means of both, and how much larger ours is, with its standard error over the texts."""
    ours, theirs = found["ours"], found["llama.cpp"]
    return {
        "num_rows": WIDTH * len(ours.kl),
        "kl": _means(ours.kl, theirs.kl),
        "error": _means(ours.error, theirs.error),
    }


def _means(ours: list[float], theirs: list[float]) -> dict[str, float]:
    more = np.array(ours) - np.array(theirs)
    return {
        "ours": float(np.mean(ours)),
        "llama.cpp": float(np.mean(theirs)),
        "more": float(more.mean()),
        "more_error": float(more.std(ddof=1) / np.sqrt(len(more))),
    }


def _line(row: dict[str, Any]) -> str:
    return "; ".join(
        f"{name} {of['ours']:.3g} (llama.cpp's {of['llama.cpp']:.3g}, more by {of['more']:.2g} +- "
        f"{of['more_error']:.2g})"
        for name, of in (("KL", row["kl"]), ("error", row["error"]))
    )


def _one(path: Path, references: Path, cache: str, switched: dict[str, str]) -> Measured:
    command = ("-m", "benchmarks.kernels.faithfulness", str(path), str(references), cache)
    return Measured(**in_process(*command, **{self_test.CHECKED: self_test.ANY, **switched}))


if __name__ == "__main__":  # a process of `main`
    file, rows, cache = sys.argv[1:]
    print(json.dumps(asdict(measure(Path(file), Path(rows), cache))))
