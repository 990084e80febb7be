"""Compare kernels for weights with the same weights in float32: ours, and llama.cpp's.

Of a file in each format: the Kullback-Leibler divergence of the next token's distribution from the
one that the file's weights give in float32, which NumPy computes layer by layer; and how far logits
move with widths, threads and parts of a prompt. Caches are in float32, so that the weights' kernels
alone differ, and then as each of the two has them by default. A format that ends with `-pure` is
that of all matrices:

    python -m benchmarks faithfulness smollm2:Q4_0-pure smollm2:F16-pure
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import typer
from gguf import GGMLQuantizationType, GGUFReader
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import RESULTS, Figures
from benchmarks.kernels.kernels import model_file, score
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.checks import self_test
from duodec.backends.llamacpp.gguf.header import ggml
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.caches import CacheTypes
from duodec.backends.llamacpp.target.target import LlamaTarget

Floats = NDArray[np.float32]

TEXTS = (  # of the repository
    "LICENSE", "benchmarks/kernels/kernels.py", "README.md", "src/duodec/core/verify.py",
    "pyproject.toml",
)  # fmt: skip
START, WIDTH = 32, 64  # tokens before the first row; rows of a forward pass
WAYS = ((1, 64), (2, 64), (2, 4), (1, 32), (1, 17), (1, 8), (1, 5), (1, 3), (1, 2), (1, 1))
"""Threads, and rows of a forward pass; the quickest first."""
CACHES = {"float32": CacheTypes("f32", "f32"), "default": CacheTypes()}
KERNELS = {"llama.cpp": {self_test.SWITCH: self_test.OFF}, "ours": {}}
_CHUNK = 1 << 22  # weights that are dequantised at once


@dataclass(frozen=True)
class Reference:
    """A model in Llama's or Qwen2's architecture, computed in float32 from a GGUF file."""

    reader: GGUFReader

    def rows(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Logits after each token from START on, (texts, rows, vocab)."""
        x = self._take("token_embd", texts)
        eps = self._field("attention.layer_norm_rms_epsilon")
        for i in range(self._field("block_count")):
            name = f"blk.{i}."
            x = x + self._attention(name, _normed(x, eps) * self._vector(name + "attn_norm"))
            inner = _normed(x, eps) * self._vector(name + "ffn_norm")
            gate = self._times(inner, name + "ffn_gate")
            up = self._times(inner, name + "ffn_up")
            x = x + self._times(gate / (1 + np.exp(-gate)) * up, name + "ffn_down")
        x = _normed(x[:, START - 1 : -1], eps) * self._vector("output_norm")
        return self._times(x, "output" if self._has("output.weight") else "token_embd")

    def _attention(self, name: str, x: Floats) -> Floats:
        heads, shared = self._field("attention.head_count"), self._field("attention.head_count_kv")
        q, k, v = (self._times(x, f"{name}attn_{part}") for part in "qkv")
        if self._has(f"{name}attn_q.bias"):
            q, k, v = (
                y + self._vector(f"{name}attn_{part}", "bias")
                for y, part in zip((q, k, v), "qkv", strict=True)
            )
        size = q.shape[-1] // heads
        queries, keys, values = (y.reshape(*x.shape[:2], -1, size) for y in (q, k, v))
        keys, values = (y.repeat(heads // shared, axis=2) for y in (self._rotated(keys), values))
        scores = np.einsum("tqhd,tkhd->thqk", self._rotated(queries), keys)
        scores /= np.sqrt(np.float32(size))
        scores[..., ~np.tri(x.shape[1], dtype=bool)] = -np.inf
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = np.einsum("thqk,tkhd->tqhd", shares, values).reshape(*x.shape[:2], -1)
        return self._times(mixed, f"{name}attn_output")

    def _rotated(self, x: Floats) -> Floats:
        size = x.shape[-1]
        powers = self._field("rope.freq_base") ** (-np.arange(0, size, 2) / size)
        angles = np.arange(x.shape[1])[:, None, None] * powers
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        # Llama's pairs lie side by side, Qwen's in two halves
        axis, shape = (-1, (-1, 2)) if self._architecture == "llama" else (-2, (2, -1))
        pairs = x.reshape(*x.shape[:3], *shape)
        a, b = (pairs.take(i, axis=axis) for i in range(2))
        return np.stack((a * cos - b * sin, a * sin + b * cos), axis=axis).reshape(x.shape)

    def _times(self, x: Floats, name: str) -> Floats:
        """A matrix's products with rows; few of its weights are in float32 at once."""
        return np.concatenate([x @ part.T for part in self._parts(name)], axis=-1)

    def _parts(self, name: str) -> Iterator[Floats]:
        tensor = self._tensor(f"{name}.weight")
        step = max(1, _CHUNK // int(tensor.shape[0]))
        for first in range(0, len(tensor.data), step):
            yield floats(tensor.data[first : first + step], tensor.tensor_type)

    def _take(self, name: str, rows: Sequence[Sequence[int]]) -> Floats:
        tensor = self._tensor(f"{name}.weight")
        return floats(tensor.data[np.array(rows)], tensor.tensor_type)

    def _vector(self, name: str, kind: str = "weight") -> Floats:
        return np.array(self._tensor(f"{name}.{kind}").data, np.float32)

    def _tensor(self, name: str) -> Any:
        return next(tensor for tensor in self.reader.tensors if tensor.name == name)

    def _has(self, name: str) -> bool:
        return any(tensor.name == name for tensor in self.reader.tensors)

    def _field(self, name: str) -> Any:
        return self.reader.fields[f"{self._architecture}.{name}"].contents()

    @property
    def _architecture(self) -> str:
        return str(self.reader.fields["general.architecture"].contents())

    def types(self) -> str:
        """The formats of its matrices, by the number of weights."""
        sizes: dict[str, int] = {}
        for tensor in self.reader.tensors:
            if len(tensor.shape) > 1:
                name = tensor.tensor_type.name
                sizes[name] = sizes.get(name, 0) + int(tensor.n_elements)
        total = sum(sizes.values())
        ordered = sorted(sizes.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {size / total:.0%}" for name, size in ordered)


class _TypeTraits(ctypes.Structure):
    """The beginning of ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p), ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64), ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )  # fmt: skip


def floats(data: NDArray[Any], kind: GGMLQuantizationType) -> Floats:
    """What rows of a file stand for, as ggml reads them; gguf reads the same, slowly."""
    if kind == GGMLQuantizationType.F32:
        return data.view(np.float32)
    find = ggml(library.load(), "ggml_get_type_traits", ctypes.POINTER(_TypeTraits), ctypes.c_int)
    traits, data = find(kind.value).contents, np.ascontiguousarray(data)
    num_columns = data.shape[-1] * data.itemsize // traits.type_size * traits.blck_size
    made = np.empty((*data.shape[:-1], num_columns), np.float32)
    traits.to_float(data.ctypes.data, made.ctypes.data, made.size)
    return made


def _normed(x: Floats, eps: float) -> Floats:
    normed: Floats = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps))
    return normed


def texts(model: LlamaModel, num: int) -> list[list[int]]:
    root = Path(__file__).parent.parent
    return [
        model.tokenize((root / name).read_text(), is_templated=False)[: START + WIDTH]
        for name in TEXTS[:num]
    ]


@dataclass(frozen=True)
class Measured:
    """Kernels against the reference: of each text, the mean of its rows."""

    kl: list[float]  # of a row's distribution from the reference's, in nats
    error: list[float]  # of its logits, as a share of their spread
    moved: float | None  # most of any logit between two ways to compute it; of ours, by default


def measure(path: Path, references: Path, cache: str, num_ways: int) -> Measured:
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
    is_moved = cache == "default" and bool(library.kernels(model.lib))
    return Measured(kl, error, moved(target, known[0], num_ways) if is_moved else None)


def _against(row: Floats, reference: Floats) -> tuple[float, float]:
    p, q = _log_softmax(reference), _log_softmax(row)
    return float(np.sum(np.exp(p) * (p - q))), float(np.std(row - reference) / np.std(reference))


def _log_softmax(row: Floats) -> NDArray[np.float64]:
    x = row.astype(np.float64) - row.max()
    logs: NDArray[np.float64] = x - np.log(np.exp(x).sum())
    return logs


def moved(target: LlamaTarget, tokens: Sequence[int], num_ways: int) -> float:
    """Most of any logit between forward passes of other widths, threads and parts of a prompt."""
    ways = []
    for num_threads, width in WAYS[:num_ways]:
        context = target.trees(0).context
        context.num_threads = context.num_prompt_threads = num_threads
        score(target, tokens[:1])  # forgets the rest
        for end in range(width, START, width):  # of the prompt, as many tokens at once
            score(target, tokens[:end])
        rows: list[Floats] = []
        for first in range(START, START + WIDTH, width):
            last = min(first + width, START + WIDTH)
            rows += score(target, tokens[:first], tokens[first : last - 1])
        ways.append(np.stack(rows))
    return max(float(np.abs(way - ways[0]).max()) for way in ways)


def main(
    models: Annotated[list[str], typer.Argument(metavar="MODEL[:FORMAT]...")],
    num_texts: Annotated[int, typer.Option(help=f"Of {WIDTH} rows each.")] = len(TEXTS),
    num_ways: Annotated[int, typer.Option(help="To compute the same logits.")] = len(WAYS),
    onto: Annotated[str, typer.Option(help="A result that this run goes on from.")] = "",
) -> Figures:
    """Compute the reference of each file, then every kind of kernels; means."""
    console = Console()
    table: dict[str, Any] = {}
    if onto:
        table = json.loads((RESULTS / f"{onto}.json").read_text("utf-8"))["figures"]["table"]
    for name in models:
        path = model_file(name)
        reference = Reference(GGUFReader(path))
        library.load()
        model = LlamaModel(path, num_gpu_layers=0)
        known = texts(model, num_texts)
        model.close()
        with tempfile.TemporaryDirectory() as folder:
            references = Path(folder) / "references.npz"
            np.savez(references, texts=known, rows=reference.rows(known))
            row: dict[str, Any] = {"matrices": reference.types()}
            for cache in CACHES:
                found = {
                    kernels: _one(path, references, cache, num_ways, switched)
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
        "moved": ours.moved,
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
    parts = [
        f"{name} {of['ours']:.3g} (llama.cpp's {of['llama.cpp']:.3g}, more by {of['more']:.2g} +- "
        f"{of['more_error']:.2g})"
        for name, of in (("KL", row["kl"]), ("error", row["error"]))
    ]
    if row["moved"] is not None:
        parts.append(f"logits move by {row['moved']:.3g}")
    return "; ".join(parts)


def _one(
    path: Path, references: Path, cache: str, num_ways: int, switched: dict[str, str]
) -> Measured:
    out = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels.faithfulness", str(path),
         str(references), cache, str(num_ways)],
        env={**os.environ, self_test.CHECKED: self_test.ANY, **switched},
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return Measured(**json.loads(out.stdout.splitlines()[-1]))


if __name__ == "__main__":  # a process of `main`
    file, rows, cache, ways = sys.argv[1:]
    print(json.dumps(asdict(measure(Path(file), Path(rows), cache, int(ways)))))
