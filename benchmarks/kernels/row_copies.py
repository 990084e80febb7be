"""What do rows of logits cost between a device and the host, whole or as their likeliest tokens?

For each vocabulary: the bytes that llama.cpp copies in a forward pass of some rows and the host's
milliseconds, with whole rows and with a top-k sampler of llama.cpp on the device. The model is
random and small, so that nearly all of a pass is its rows.

    python -m benchmarks.kernels.row_copies
"""

from __future__ import annotations

import ctypes
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import numpy as np

from benchmarks import RESULTS
from duodec.backends.llamacpp import devices, library
from duodec.backends.llamacpp.context import Batch
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.tree_cache import Entry
from duodec.bench.card import environment

VOCABULARIES = (49_152, 151_936, 262_144)
ROWS = (1, 8, 32)
NUM_LIKELIEST = 8
_WIDTH, _RUNS = 32, 7


@dataclass(frozen=True)
class Cost:
    """Of a forward pass: medians, as the calling thread sees them. ``read_ms`` is the wait for the
    rows and their copy into an array of ours."""

    num_vocab: int
    num_rows: int
    way: str
    num_bytes: int
    launch_ms: float
    read_ms: float
    cpu_ms: float  # of the calling thread, in both


def write(path: Path, num_vocab: int) -> Path:
    """One layer of 32 numbers, and a vocabulary of so many nameless tokens."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH)
    writer.add_vocab_size(num_vocab)
    writer.add_tokenizer_model("no_vocab")
    dice, kind = np.random.default_rng(1), gguf.GGMLQuantizationType.Q8_0

    def add(name: str, *shape: int) -> None:
        drawn = dice.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones_like(drawn))
        else:
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(drawn, kind), raw_dtype=kind)

    add("token_embd", num_vocab, _WIDTH)
    add("output_norm", _WIDTH)
    for part in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{part}", _WIDTH)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        add(f"blk.0.{part}", _WIDTH, _WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def open_context(model: LlamaModel, num_rows: int) -> Any:
    params = model.lib.llama_context_default_params()
    params.n_ctx = 256
    params.n_batch = params.n_ubatch = num_rows
    params.n_seq_max = 1
    params.n_outputs_max = params.n_outputs_max_per_seq = num_rows
    params.n_threads = params.n_threads_batch = 1
    return model.lib.llama_init_from_model(model.handle, params)


def timed(
    model: LlamaModel, handle: Any, num_rows: int, read: Callable[[], Any]
) -> tuple[float, float, float, Any]:
    lib = model.lib
    batch = Batch(lib, num_rows, 1)
    batch.fill([Entry(i + 1, i, (0,), i) for i in range(num_rows)])
    memory = lib.llama_get_memory(handle)
    launches, reads, works = [], [], []
    for _ in range(_RUNS):
        lib.llama_memory_seq_rm(memory, 0, 0, -1)
        work_s, begin_s = time.thread_time(), time.perf_counter()
        assert lib.llama_decode(handle, batch.struct) == 0
        middle_s = time.perf_counter()
        found = read()
        launches.append(middle_s - begin_s)
        reads.append(time.perf_counter() - middle_s)
        works.append(time.thread_time() - work_s)
    return 1e3 * median(launches), 1e3 * median(reads), 1e3 * median(works), found


def costs(model: LlamaModel, num_rows: int) -> list[Cost]:
    lib, num_vocab = model.lib, model.num_vocab

    def whole() -> np.ndarray[Any, Any]:
        found = ctypes.cast(
            lib.llama_get_logits(handle),
            ctypes.POINTER(ctypes.c_float * (num_rows * num_vocab)),
        ).contents
        rows: np.ndarray[Any, Any] = np.ctypeslib.as_array(found)
        return np.asarray(rows.reshape(num_rows, num_vocab).argmax(axis=1))

    def likeliest() -> np.ndarray[Any, Any]:
        lib.llama_synchronize(handle)
        best = []
        for row in range(num_rows):
            count = lib.llama_get_sampled_candidates_count_ith(handle, row)
            tokens = lib.llama_get_sampled_candidates_ith(handle, row)[:count]
            values = lib.llama_get_sampled_logits_ith(handle, row)[:count]
            best.append(tokens[int(np.argmax(values))])
        return np.array(best)

    handle = open_context(model, num_rows)
    *spent, rows = timed(model, handle, num_rows, whole)
    found = [Cost(num_vocab, num_rows, "whole rows", 4 * num_rows * num_vocab, *spent)]
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(NUM_LIKELIEST))
    if lib.llama_set_sampler(handle, 0, chain):
        *spent, best = timed(model, handle, num_rows, likeliest)
        assert (best == rows).all(), "the likeliest token, either way"
        found.append(Cost(num_vocab, num_rows, "likeliest", 8 * num_rows * NUM_LIKELIEST, *spent))
    lib.llama_free(handle)
    lib.llama_sampler_free(chain)
    return found


def main() -> None:
    lib = library.load()
    measured: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        for num_vocab in VOCABULARIES:
            path = write(Path(folder) / f"{num_vocab}.gguf", num_vocab)
            with closing(LlamaModel(path)) as model:
                for num_rows in ROWS:
                    measured += costs(model, num_rows)
                    for cost in measured[-2:]:
                        print(json.dumps(asdict(cost)), flush=True)
    record = {
        "environment": environment(),
        "devices": [asdict(device) for device in devices.every(lib)],
        "costs": [asdict(cost) for cost in measured],
    }
    path = RESULTS / "row_copies.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
