"""Time single forward passes on a GPU and check that they are exact, for `benchmarks gpu`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.ballast import Shape, random_model
from duodec.backends.torch.network import Network
from duodec.backends.torch.noise import gumbel, halves
from duodec.backends.torch.target import TorchScores, TorchTarget
from duodec.core import noise
from duodec.core.draft import Draft
from duodec.core.protocols import Query, Target
from duodec.core.sampling import Sampler

WIDTHS = (0, 1, 3, 7, 15, 31, 63)  # draft tokens; a row more is computed
CONTEXTS = (128, 1024, 4096)
_RUNS, _WARM_UPS = 25, 3
WARNINGS: list[str] = []  # so that an unused graph or kernel does not go unnoticed
_COPIED_BYTES = 2 << 30


def timed_s(work: Callable[[], object], runs: int = _RUNS) -> float:
    """The median of some runs."""
    seconds = []
    for i in range(runs + _WARM_UPS):
        begin_s = perf_counter()
        work()
        if i >= _WARM_UPS:
            seconds.append(perf_counter() - begin_s)
    return median(seconds)


def _waited(device: str, work: Callable[[], object]) -> Callable[[], object]:
    """The work, until the device has finished it."""

    def run() -> None:
        work()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def bandwidth(device: str, num_bytes: int = _COPIED_BYTES) -> dict[str, float]:
    """Bytes a second that a copy moves (read and written), and that a sum reads."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy_s = timed_s(_waited(device, lambda: target.copy_(source)))
    read_s = timed_s(_waited(device, lambda: source.sum()))
    return {"copy_bytes_s": 2 * num_bytes / copy_s, "read_bytes_s": num_bytes / read_s}


def forwards(
    target: Target,
    num_vocab: int,
    contexts: tuple[int, ...] = CONTEXTS,
    widths: tuple[int, ...] = WIDTHS,
) -> list[dict[str, float]]:
    """T(n, context), draws included: the time that a round waits."""
    rng = np.random.default_rng(0)
    found = []
    for context in contexts:
        text = rng.integers(0, num_vocab, context).astype(np.int32)
        for width in widths:
            draft = Draft.chain(rng.integers(0, num_vocab, width).tolist())

            def score(text: Any = text, draft: Draft = draft) -> object:
                (scores,) = target.score([Query(0, text, draft)])
                return scores.draw(0)

            found.append({"context": context, "width": width, "seconds": timed_s(score)})
    return found


def plain_decoding(
    shape: Shape, *, dtype: Any, device: str, contexts: tuple[int, ...]
) -> tuple[dict[str, int], dict[str, Callable[[], Any]]]:
    """One stack of that shape: its bytes, and by name forward passes with rows padded to one number
    (to 1 as in plain decoding, which shows the cost of padding; to 64), not padded, padded without
    graphs, and with transformers' own layers."""
    model = random_model(shape, dtype=dtype, device=device)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    embedding = model.get_input_embeddings().weight
    read_bytes = weights - embedding.numel() * embedding.element_size()  # it is read by the row

    def measured(contexts: tuple[int, ...], **options: Any) -> list[dict[str, float]]:
        has_graphs, widths = options.pop("has_graphs", True), options.pop("widths", WIDTHS)
        network = Network(model, WARNINGS.append)
        if options.pop("has_own_layers", False):
            network.split_layers()
        target = TorchTarget(
            network,
            num_context=max(contexts) + 64,
            on_warning=WARNINGS.append,
            **options,
        )
        if not has_graphs:
            target._forwards._graphs.give_up("measured so")
            WARNINGS.pop()
        try:
            return forwards(target, shape.num_vocab, contexts, widths)
        finally:
            target.close()  # the model serves the next one

    return {"weight_bytes": weights, "read_bytes": read_bytes}, {
        "exact": lambda: measured(contexts),
        "fast": lambda: measured(contexts, is_width_exact=False),
        "exact, of 1 row": lambda: measured(contexts, num_rows=1, widths=(0,)),
        "exact, of 64 rows": lambda: measured(contexts[:1], num_rows=64),
        "exact, without graphs": lambda: measured(contexts[:1], has_graphs=False),
        "exact, with transformers' layers": lambda: measured(contexts[:1], has_own_layers=True),
    }


def generate_s(shape: Shape, *, dtype: Any, device: str) -> dict[str, Callable[[], float]]:
    """Seconds a token of transformers' own `generate` on such a stack, by kind of cache: dynamic,
    and static, which it compiles."""
    model = random_model(shape, dtype=dtype, device=device)
    prompt = torch.randint(0, 1000, (1, 128), device=device)

    def run(num_tokens: int, how: dict[str, str]) -> float:
        begin_s = perf_counter()
        with torch.inference_mode():
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                **how,
            )
        if device == "cuda":
            torch.cuda.synchronize()
        return perf_counter() - begin_s

    def seconds(how: dict[str, str]) -> float:
        run(72, how)  # compiles for the longest cache needed, and keeps it
        short_s, long_s = (min(run(n, how) for _ in range(3)) for n in (8, 72))
        return (long_s - short_s) / 64

    return {
        "dynamic": lambda: seconds({}),
        "static": lambda: seconds({"cache_implementation": "static"}),
    }


# --- exactness


def same_noise(device: str, num_tokens: int = 200_000) -> bool:
    """Whether the device computes NumPy's noise, bit by bit."""
    tokens = np.arange(num_tokens)
    on_device = torch.tensor(tokens, device=device)
    for seed in range(3):
        key = noise.key(seed, 0, 17)
        low, high = (torch.tensor(half, device=device) for half in halves(key))
        ours = gumbel(low, high, on_device).cpu().numpy()
        if not np.array_equal(ours, noise.gumbel(key, tokens)):
            return False
    return True


def exact_rows(target: TorchTarget, num_vocab: int, num_trees: int = 40) -> dict[str, float]:
    """Rows of random trees against the same rows of plain decoding: how many have equal bits, and
    the largest difference."""
    rng = np.random.default_rng(1)
    num_rows, num_equal, off = 0, 0, 0.0
    for _ in range(num_trees):
        text = rng.integers(0, num_vocab, int(rng.integers(3, 600))).astype(np.int32)
        width = int(rng.integers(1, 40))
        parents = [int(rng.integers(-1, i)) for i in range(width)]
        tokens = rng.integers(0, num_vocab, width).tolist()
        draft = Draft(tuple(tokens), tuple(parents))
        sampler = Sampler(num_prompt_tokens=len(text))
        in_tree = _logits(target, text, draft, sampler)
        for node in rng.choice(width, min(3, width), replace=False).tolist():
            path = draft.path_tokens(node)
            alone = None
            for length in range(len(path) + 1):  # token by token, as plain decoding goes
                grown = np.concatenate([text, np.array(path[:length], dtype=np.int32)])
                alone = _logits(target, grown, Draft(), sampler)
            assert alone is not None
            num_rows += 1
            num_equal += bool(torch.equal(in_tree[node + 1], alone[0]))
            off = max(off, float((in_tree[node + 1] - alone[0]).abs().max()))
    return {"rows": num_rows, "equal": num_equal, "largest_difference": off}


def _logits(target: TorchTarget, text: Any, draft: Draft, sampler: Sampler) -> torch.Tensor:
    (scores,) = target.score([Query(0, text, draft, sampler)])
    assert isinstance(scores, TorchScores)
    return scores.logits.cpu()
