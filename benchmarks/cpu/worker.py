"""Decode with a package of this Python: another one starts it, and sends requests.

    python worker.py ENGINE SETTINGS
    python worker.py passes SETTINGS
    python worker.py experts SETTINGS

SETTINGS are the arguments of one of `ENGINES`, or of one of `PASSES`, as JSON. A line of standard
input is a request, one of standard output its answer; what a package prints itself goes to standard
error. It imports nothing but the standard library and that package.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

WIDTHS = (1, 2, 4, 8, 16, 32)  # as in rows.cpp
COMPARED = (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 64)
Say = Callable[[str], None]
Complete = Callable[[str, int, Say], int]
"""Decodes a chat of one message, up to so many tokens, and says pieces of text; returns how many
tokens they are."""


def openvino(model: str, threads: int, draft: str | None = None, lookup: int = 0) -> Complete:
    """OpenVINO GenAI, which reads GGUF files itself; with a draft model (a folder in its own
    format), or prompt lookup of so many tokens."""
    import openvino_genai as genai

    options = {"INFERENCE_NUM_THREADS": threads}
    config = genai.GenerationConfig()
    config.do_sample = False
    chosen = dict(options)
    if draft:
        chosen["draft_model"] = genai.draft_model(draft, "CPU", **options)
        config.num_assistant_tokens = 3
    if lookup:
        chosen["prompt_lookup"] = True
        config.num_assistant_tokens, config.max_ngram_size = lookup, 3
    pipeline = genai.LLMPipeline(model, "CPU", **chosen)

    def complete(prompt: str, max_tokens: int, say: Say) -> int:
        config.max_new_tokens = max_tokens

        def streamer(text: str) -> object:
            say(text)
            return genai.StreamingStatus.RUNNING

        found = pipeline.generate([prompt], config, streamer)
        return int(found.perf_metrics.get_num_generated_tokens())

    return complete


def mistralrs(model: str) -> Complete:
    """mistral.rs, with as many threads as RAYON_NUM_THREADS says."""
    from mistralrs import ChatCompletionRequest, Runner, Which

    file = Path(model)
    which = Which.GGUF(quantized_model_id=str(file.parent), quantized_filename=file.name)
    runner = Runner(which=which)

    def complete(prompt: str, max_tokens: int, say: Say) -> int:
        request = ChatCompletionRequest(
            model="default", messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens, temperature=0.0, stream=True,
        )  # fmt: skip
        num_tokens, usage = 0, None
        for chunk in runner.send_chat_completion_request(request):
            if text := chunk.choices[0].delta.content:
                num_tokens += 1
                say(text)
            usage = getattr(chunk, "usage", None) or usage
        return int(usage.completion_tokens) if usage else num_tokens

    return complete


def passes(
    model: str, threads: int, tokens: list[int], repeats: int, start: int, compares: bool
) -> dict[str, object]:
    """Forward passes through OpenVINO, of a model in its own format: what rows.cpp tells, with all
    threads, and without a prefill, for which OpenVINO GenAI computes other logits than the file."""
    import numpy as np
    import openvino as ov

    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    begin = perf_counter()
    request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
    load_s = perf_counter() - begin
    text = np.array([tokens], np.int64)

    def compute(begin: int, end: int) -> np.ndarray:
        given = {
            "input_ids": text[:, begin:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(begin, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return np.array(request.infer(given)["logits"][0])

    def rows_of(width: int, first: int, end: int) -> np.ndarray:
        """The last rows of a text that is computed in such pieces."""
        request.reset_state()
        for i in range(0, first, width):
            compute(i, min(i + width, first))
        return np.concatenate([compute(i, min(i + width, end)) for i in range(first, end, width)])

    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for repeat in range(repeats + 1):
        for width, found in times.items():
            request.reset_state()
            compute(0, start)
            begin = perf_counter()
            compute(start, start + width)
            if repeat:  # shapes are compiled for once
                found.append((perf_counter() - begin) * 1e3)
    rows = [rows_of(width, 32, 96) for width in COMPARED] if compares else []
    return {
        "load_s": load_s, "prefill_ms": None, "system": f"OpenVINO {ov.__version__}",
        "forward_ms": {str(width): median(found) for width, found in times.items()},
        "deviation": max(float(np.abs(one - rows[0]).max()) for one in rows) if rows else None,
    }  # fmt: skip


def experts(
    model: str, threads: int, tokens: list[int], repeats: int, start: int, compares: bool
) -> dict[str, object]:
    """The layers of experts of a GGUF file through kt-kernel, and nothing else: each token chooses
    experts of its own by chance, always the same ones in a layer."""
    import numpy as np
    import torch
    from gguf import GGUFReader
    from kt_kernel import KTMoEWrapper

    os.environ["KT_FORCE_SYNC_SUBMIT"] = "1"  # else a GPU's stream is to start it
    for name in ("zeros", "empty", "full"):  # pinned for a GPU, they fail where there is none
        setattr(torch, name, partial(_unpinned, getattr(torch, name)))
    reader = GGUFReader(model)
    facts = {key.partition(".")[2]: field.contents() for key, field in reader.fields.items()}
    num_experts, num_used = int(facts["expert_count"]), int(facts["expert_used_count"])
    width, inner = int(facts["embedding_length"]), int(facts["feed_forward_length"])
    prefill = 512
    begin = perf_counter()
    layers = [
        KTMoEWrapper(
            layer_idx=layer, num_experts=num_experts, num_experts_per_tok=num_used,
            hidden_size=width, moe_intermediate_size=inner, gpu_experts_mask=None,
            cpuinfer_threads=threads, threadpool_count=1, weight_path=model,
            chunked_prefill_size=prefill, method="LLAMAFILE",
        )
        for layer in range(int(facts["block_count"]))
    ]  # fmt: skip
    for layer in layers:
        layer.load_weights(torch.arange(num_experts, dtype=torch.int32))
    load_s = perf_counter() - begin
    states = {token: np.random.default_rng(token) for token in set(tokens)}
    given = {
        token: (
            rng.standard_normal(width, np.float32),
            np.stack([rng.permutation(num_experts)[:num_used] for _ in layers]),
        )
        for token, rng in states.items()
    }

    def compute(begin: int, end: int) -> tuple[float, np.ndarray]:
        text = tokens[begin:end]
        hidden = torch.from_numpy(np.stack([given[t][0] for t in text])).to(torch.bfloat16)
        shares = torch.full((len(text), num_used), 1 / num_used)
        chosen = [
            torch.from_numpy(np.stack([given[t][1][layer] for t in text]))
            for layer in range(len(layers))
        ]
        begin_s = perf_counter()
        for layer, ids in zip(layers, chosen, strict=True):
            found = layer.forward(hidden, ids, shares, 0)
        return (perf_counter() - begin_s) * 1e3, found.float().numpy().copy()

    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for repeat in range(repeats + 1):
        for rows, taken in times.items():
            ms, _ = compute(start, start + rows)
            if repeat:
                taken.append(ms)
    compared = [
        np.concatenate([compute(i, min(i + rows, 96))[1] for i in range(32, 96, rows)])
        for rows in (COMPARED if compares else ())
    ]
    return {
        "load_s": load_s, "system": "kt-kernel, LLAMAFILE", "prefill_ms":
        median(compute(0, prefill)[0] for _ in range(3)) / prefill,
        "forward_ms": {str(rows): median(taken) for rows, taken in times.items()},
        "deviation": max(float(np.abs(one - compared[0]).max()) for one in compared)
        if compared else None,
    }  # fmt: skip


def _unpinned(make: Callable[..., Any], *sizes: Any, pin_memory: bool = False, **more: Any) -> Any:
    return make(*sizes, **more)


ENGINES: dict[str, Callable[..., Complete]] = {"openvino": openvino, "mistralrs": mistralrs}
PASSES: dict[str, Callable[..., dict[str, object]]] = {"passes": passes, "experts": experts}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine, settings = sys.argv[1], json.loads(sys.argv[2])
    if engine in PASSES:
        print(json.dumps(PASSES[engine](**settings)), file=answers, flush=True)
        return
    complete = ENGINES[engine](**settings)
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pieces: list[tuple[float, str]] = []
        say = partial(_keep, pieces, perf_counter())
        num_tokens = complete(request["prompt"], request["max_tokens"], say)
        print(json.dumps({"num_tokens": num_tokens, "pieces": pieces}), file=answers, flush=True)


def _keep(pieces: list[tuple[float, str]], begin: float, text: str) -> None:
    pieces.append((perf_counter() - begin, text))


if __name__ == "__main__":
    main()
