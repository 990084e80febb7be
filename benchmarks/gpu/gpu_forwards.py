"""Time single forward passes of a target and compare their bits, for `benchmarks gpu`: of llama.cpp
and of torch alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.targets import Query, Scores, Target

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
_WIDTHS = (2, 4, 8, 16, 32)  # of passes whose bits are compared
_RUNS, _WARM_UPS, _POINT_S = 15, 3, 1.0  # for one point, at most
_ROUNDS, _FIRST, _LATER = 3, 2, 5  # passes of a width in a round: a graph is used from the third on
_RAMP_S = 1.0  # an idle card is slow
_CURVE_S = 12.0  # after which no further round begins
_COPIED_BYTES = 2 << 30

Logits = NDArray[np.float32]


class Passes(Protocol):
    """Forward passes over a text's last token and a chain of drafted ones."""

    def run(self, text: Tokens, num_prompt: int, chain: Sequence[int]) -> object:
        """Until their results are on the host, as a round has them. The first ``num_prompt`` tokens
        of the text are its prompt."""

    def logits(self, text: Tokens, num_prompt: int, chain: Sequence[int]) -> Logits:
        """(rows, vocab): one row after the text, one after each token of the chain."""


class LlamaPasses:
    """llama.cpp's, of any number of rows, whose logits cross to the host."""

    def __init__(self, model: LlamaModel, num_context: int, num_threads: int) -> None:
        self._context = LlamaContext(
            model, num_context=num_context, num_sequences=4, num_threads=num_threads,
            max_rows=max(ROWS),
        )  # fmt: skip

    def run(self, text: Tokens, num_prompt: int, chain: Sequence[int]) -> object:
        rows = tuple(range(len(chain) + 1))
        return self._context.rows([RowQuery(0, text, Draft.chain(chain), rows)])[0]

    def logits(self, text: Tokens, num_prompt: int, chain: Sequence[int]) -> Logits:
        rows: Any = self.run(text, num_prompt, chain)
        return np.stack(rows)

    def close(self) -> None:
        self._context.close()


class TargetPasses:
    """Any target's, which draws on its device."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def run(self, text: Tokens, num_prompt: int, chain: Sequence[int]) -> object:
        return self._scores(text, num_prompt, Draft.chain(chain)).draw(0)

    def logits(self, text: Tokens, num_prompt: int, chain: Sequence[int]) -> Logits:
        return self.rows(text, num_prompt, Draft.chain(chain))

    def rows(self, text: Tokens, num_prompt: int, draft: Draft) -> Logits:
        scores = self._scores(text, num_prompt, draft)
        return np.stack([scores.row_logits(row) for row in range(scores.num_rows)])

    def _scores(self, text: Tokens, num_prompt: int, draft: Draft) -> Scores:
        sampler = Sampler(num_prompt_tokens=num_prompt)
        (scores,) = self._target.score([Query(0, text, draft, sampler)])
        return scores


def words(num_tokens: int, num_vocab: int) -> Tokens:
    return np.random.default_rng(0).integers(0, num_vocab, num_tokens).astype(np.int32)


def timed_s(work: Callable[[], object], runs: int = _RUNS) -> list[float]:
    """Seconds of some runs after others that only warm up."""
    seconds: list[float] = []
    begin_s = perf_counter()
    for i in range(runs + _WARM_UPS):
        start_s = perf_counter()
        work()
        if i >= _WARM_UPS:
            seconds.append(perf_counter() - start_s)
            if perf_counter() - begin_s > _POINT_S:
                break
    return seconds


def times(
    passes: Passes, num_vocab: int, depth: int, rows: Sequence[int] = ROWS
) -> list[dict[str, float]]:
    """T(n) after so many tokens, in rounds over all widths, since a card changes its pace: of
    passes that follow others of their width, and of those that follow others (``changing_s``)."""
    text = words(depth + max(rows), num_vocab)
    passes.run(text[:depth], depth, ())  # reads the text
    end_s = perf_counter() + _RAMP_S
    while perf_counter() < end_s:
        passes.run(text[:depth], depth, ())
    steady: dict[int, list[float]] = {n: [] for n in rows}
    changing: dict[int, list[float]] = {n: [] for n in rows}
    end_s = perf_counter() + _CURVE_S
    for number in range(_ROUNDS):
        if number and perf_counter() > end_s:
            break
        for num_rows in rows:
            chain = text[depth : depth + num_rows - 1].tolist()
            work = partial(passes.run, text[:depth], depth, chain)
            seconds = [_once_s(work) for _ in range(_FIRST + _LATER)]
            changing[num_rows].append(seconds[0])
            steady[num_rows] += seconds[_FIRST:]
    return [
        {
            "rows": n,
            "min_s": min(steady[n]),
            "median_s": median(steady[n]),
            "changing_s": min(changing[n]),
        }
        for n in rows
    ]


def _once_s(work: Callable[[], object]) -> float:
    begin_s = perf_counter()
    work()
    return perf_counter() - begin_s


def curve(points: Sequence[dict[str, float]], source: str) -> dict[str, Any]:
    """T(n) as `duodec bench --simulate-ms FILE` reads it: medians, which may not fall."""
    risen = accumulate((point["median_s"] for point in points), max)
    return {
        "points": ",".join(
            f"{point['rows']:.0f}:{1e3 * seconds:.4g}"
            for point, seconds in zip(points, risen, strict=True)
        ),
        "measured_rows": int(points[-1]["rows"]),
        "source": source,
    }


def moved_bits(passes: Passes, num_vocab: int, depth: int) -> dict[str, Any]:
    """By how much logits differ from those of single rows, by the width of the pass; and in passes
    of one width, by the row's index in them from the same row as the first."""
    text = words(depth + 2 * max(_WIDTHS), num_vocab)
    other = ((text + 1) % num_vocab).tolist()
    alone = [passes.logits(text[: depth + i], depth, ())[0] for i in range(max(_WIDTHS))]
    by_width: dict[int, float] = {}
    by_index: dict[int, dict[int, float]] = {}
    for width in _WIDTHS:
        chain = text[depth : depth + width - 1].tolist()
        together = passes.logits(text[:depth], depth, chain)
        by_width[width] = max(_off(together[i], alone[i]) for i in range(width))
        by_index[width] = {}
        for i in sorted({1, width // 2, width - 1}):
            # what follows the row must not matter
            first = passes.logits(text[: depth + i], depth, other[: width - 1])[0]
            by_index[width][i] = _off(together[i], first)
    spread = float(np.std(np.stack(alone)))
    return {"by_width": by_width, "by_row_index": by_index, "spread_of_logits": spread}


def _off(found: Logits, expected: Logits) -> float:
    return float(np.abs(found - expected).max())


def bandwidth(device: str, num_bytes: int = _COPIED_BYTES) -> dict[str, float]:
    """Bytes a second that a copy moves (read and written), that a sum reads, and that cross to the
    device and back, after a second of work that warms it up."""
    import torch

    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    num_crossing = num_bytes // 8
    on_host = torch.ones(num_crossing // 4, dtype=torch.float32, pin_memory=device != "cpu")
    crossing = source[: num_crossing // 4]

    def waited(work: Callable[[], object]) -> float:
        def run() -> None:
            work()
            if device != "cpu":
                torch.cuda.synchronize()

        return median(timed_s(run))

    end_s = perf_counter() + _RAMP_S
    while perf_counter() < end_s:
        waited(lambda: target.copy_(source))
    return {
        "copy_bytes_s": 2 * num_bytes / waited(lambda: target.copy_(source)),
        "read_bytes_s": num_bytes / waited(source.sum),
        "to_device_bytes_s": num_crossing / waited(lambda: crossing.copy_(on_host)),
        "to_host_bytes_s": num_crossing / waited(lambda: on_host.copy_(crossing)),
    }


# --- of torch


def same_noise(device: str, num_tokens: int = 200_000) -> bool:
    """Whether the device computes NumPy's noise, bit by bit."""
    import torch

    from duodec.core.sampling import noise
    from duodec_torch.sampling.noise import gumbel, halves

    tokens = np.arange(num_tokens)
    on_device = torch.tensor(tokens, device=device)
    for seed in range(3):
        key = noise.key(seed, 0, 17)
        low, high = (torch.tensor(half, device=device) for half in halves(key))
        ours = gumbel(low, high, on_device).cpu().numpy()
        if not np.array_equal(ours, noise.gumbel(key, tokens)):
            return False
    return True


def exact_rows(passes: TargetPasses, num_vocab: int, num_trees: int) -> dict[str, float]:
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
        in_tree = passes.rows(text, len(text), draft)
        for node in rng.choice(width, min(3, width), replace=False).tolist():
            path = draft.path_tokens(node)
            for length in range(len(path) + 1):  # token by token, as plain decoding goes
                grown = np.concatenate([text, np.array(path[:length], dtype=np.int32)])
                (alone,) = passes.rows(grown, len(text), Draft())
            num_rows += 1
            num_equal += bool(np.array_equal(in_tree[node + 1], alone))
            off = max(off, _off(in_tree[node + 1], alone))
    return {"rows": num_rows, "equal": num_equal, "largest_difference": off}


def generate_s(model: Any, num_vocab: int, device: str) -> dict[str, Callable[[], float]]:
    """Seconds a token of transformers' own `generate`, by kind of cache: dynamic, and static, which
    it compiles."""
    import torch

    prompt = torch.randint(0, min(1000, num_vocab), (1, 128), device=device)

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
        if device != "cpu":
            torch.cuda.synchronize()
        return perf_counter() - begin_s

    def seconds(how: dict[str, str]) -> float:
        run(72, how)  # compiles for the longest cache needed, and keeps it
        short_s, long_s = (min(run(n, how) for _ in range(3)) for n in (8, 72))
        return (long_s - short_s) / 64

    return {
        "dynamic cache": lambda: seconds({}),
        "static cache": lambda: seconds({"cache_implementation": "static"}),
    }
