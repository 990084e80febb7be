"""Attention over a cache in 16 bits: what it finds, and the same bits however it is computed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from fakes.instruction_sets import SETS
from fakes.kernel_probes import SANITIZERS, Command, Probes

PROBE = Path(__file__).with_name("attention_probe.cpp")
HIDDEN = np.float16(-np.inf)

Floats = npt.NDArray[np.float32]
Shorts = npt.NDArray[np.uint16]
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Case:
    """An operation; what its arrays are is said in the probe."""

    queries: Floats
    keys: Shorts
    values: Shorts
    mask: Halves
    are_bfloats: tuple[bool, bool] = (False, False)
    num_threads: int = 1
    cap: float = 0.0
    most_bias: float = 0.0
    sinks: Floats | None = None  # (query heads,)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.queries.shape[:3], self.values.shape[3])

    def packed(self) -> bytes:
        streams, rows, heads, size = self.queries.shape
        _, cells, cached, value_size = self.values.shape
        numbers = [rows, streams, heads, cached, cells, size, value_size]
        has_sinks = self.sinks is not None
        head = np.array([*numbers, *self.are_bfloats, self.num_threads, has_sinks], np.int64)
        bends = np.array([self.cap, self.most_bias], np.float32)
        sinks = np.empty(0, np.float32) if self.sinks is None else self.sinks
        arrays = (head, bends, sinks, self.queries, self.keys, self.values, self.mask)
        return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)

    def row(self, stream: int, row: int) -> Case:
        """One row as an operation of its own, over no cell that it does not see."""
        sees = self.mask[stream, row] != HIDDEN
        caches = (cache[stream : stream + 1, sees] for cache in (self.keys, self.values))
        queries = self.queries[stream : stream + 1, row : row + 1]
        keys, values = caches
        mask = self.mask[None, None, stream, row, sees]
        return replace(self, queries=queries, keys=keys, values=values, mask=mask, num_threads=1)

    @property
    def slopes(self) -> npt.NDArray[np.float64]:
        """Of ALiBi, by query head."""
        num = self.queries.shape[2]
        power = 1 << (num.bit_length() - 1)
        halves = 2 ** (-self.most_bias / 2 / power)
        first = (halves**2) ** np.arange(1, power + 1)
        return np.concatenate([first, halves ** np.arange(1, 2 * (num - power), 2)])


@dataclass(frozen=True)
class Probe:
    """The kernel of one instruction set, as a program."""

    command: Command

    def find(self, *cases: Case) -> list[Floats]:
        sent = b"".join(case.packed() for case in cases)
        run = subprocess.run(self.command, input=sent, capture_output=True, timeout=250)
        assert run.returncode == 0, run.stderr.decode()[-2000:]
        assert not run.stderr, run.stderr.decode()[-2000:]
        found = np.frombuffer(run.stdout, np.float32)
        ends = np.cumsum([np.prod(case.shape) for case in cases])
        assert len(found) == ends[-1]
        parts = np.split(found, ends[:-1])
        return [part.reshape(case.shape) for part, case in zip(parts, cases, strict=True)]


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> Callable[..., Probe]:
    probes = Probes(PROBE, request.config.cache.mkdir("kernels"))
    return lambda name, *options: Probe(probes.command(name, *options))


def shorts(x: npt.NDArray[np.floating], is_bfloat: bool) -> Shorts:
    if not is_bfloat:
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def doubles(x: Shorts, is_bfloat: bool) -> npt.NDArray[np.float64]:
    if not is_bfloat:
        return x.view(np.float16).astype(np.float64)
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def drafts(rng: np.random.Generator, num_rows: int, num_cells: int) -> npt.NDArray[np.bool_]:
    """What rows of a tree see: the text, whose cells lie anywhere, and those above them."""
    order = rng.permutation(num_cells)
    text, own = order[num_rows:], order[:num_rows]
    sees = np.zeros((num_rows, num_cells), bool)
    for row in range(num_rows):
        above = rng.integers(-1, row)  # a row before it, or the text
        sees[row] = sees[above] if above >= 0 else np.isin(np.arange(num_cells), text)
        sees[row, own[row]] = True
    return sees


def chain(num_rows: int, num_cells: int) -> npt.NDArray[np.bool_]:
    return np.tri(num_rows, num_cells, num_cells - num_rows, dtype=bool)


def case_of(
    rng: np.random.Generator,
    sees: npt.NDArray[np.bool_],
    heads: tuple[int, int] = (6, 2),
    sizes: tuple[int, int] = (64, 64),
    are_bfloats: tuple[bool, bool] = (False, False),
    num_threads: int = 1,
) -> Case:
    """``sees``: (rows, cells), or (streams, rows, cells)."""
    sees = sees if sees.ndim == 3 else sees[None]
    streams, rows, cells = sees.shape
    queries = 3 * rng.standard_normal((streams, rows, heads[0], sizes[0])).astype(np.float32)
    caches = (
        shorts(rng.standard_normal((streams, cells, heads[1], size)), is_bfloat)
        for size, is_bfloat in zip(sizes, are_bfloats, strict=True)
    )
    added = np.where(rng.random(sees.shape) < 0.9, 0, rng.standard_normal(sees.shape))
    mask = np.where(sees, added, HIDDEN).astype(np.float16)
    return Case(queries, *caches, mask, are_bfloats, num_threads)


def expected(case: Case) -> npt.NDArray[np.float64]:
    """In float64; zero where a row sees nothing."""
    group = case.queries.shape[2] // case.keys.shape[2]
    keys, values = (
        np.repeat(doubles(cache, is_bfloat), group, axis=2)
        for cache, is_bfloat in zip((case.keys, case.values), case.are_bfloats, strict=True)
    )
    scores = np.einsum("srhd,schd->srhc", case.queries.astype(np.float64), keys)
    scores = scores / np.sqrt(keys.shape[3])
    if case.cap:
        scores = case.cap * np.tanh(scores / case.cap)
    scores += case.mask[:, :, None].astype(np.float64) * case.slopes[None, None, :, None]
    most = scores.max(axis=3, keepdims=True, initial=-1e30)
    weights = np.exp(scores - most)
    total = weights.sum(axis=3, keepdims=True)
    if case.sinks is not None:
        total += np.exp(case.sinks[None, None, :, None] - most)
    return np.einsum("srhc,schd->srhd", weights / np.where(total == 0, 1, total), values)


def assert_each_row_is_as_alone(probe: Probe, *cases: Case) -> None:
    """To the bit, however many others are computed with it, and whatever cells lie between."""
    alone = [
        case.row(stream, row)
        for case in cases
        for stream in range(case.shape[0])
        for row in range(case.shape[1])
    ]
    together = probe.find(*cases)
    rows = [row for found in together for row in found.reshape(-1, *found.shape[2:])]
    for row, one in zip(rows, probe.find(*alone), strict=True):
        assert np.array_equal(row.view(np.uint32), one[0, 0].view(np.uint32))


each_set = pytest.mark.parametrize("name", SETS)


@each_set
def test_what_is_found_is_the_mean_of_the_values(name: str, compiled: Callable[..., Probe]) -> None:
    rng = np.random.default_rng(1)
    cases = [
        case_of(rng, sees, (group * cached, cached), sizes, are_bfloats, num_threads=threads)
        for group in (1, 2, 3, 4, 5, 7, 8)
        for cached, sizes, are_bfloats, threads, sees in (
            (2, (64, 64), (False, False), 1, drafts(rng, 7, 150)),
            (1, (128, 96), (True, False), 2, chain(9, 70)),
            (3, (16, 80), (False, True), 3, rng.random((5, 40)) < 0.5),
            (1, (48, 16), (True, True), 1, rng.random((2, 3, 33)) < 0.8),
        )
    ]
    for case, found in zip(cases, compiled(name).find(*cases), strict=True):
        wanted = expected(case)
        assert (
            np.abs(found - wanted).max()
            < 4e-6 * np.abs(doubles(case.values, case.are_bfloats[1])).max()
        )


def bent_cases(rng: np.random.Generator) -> list[Case]:
    """As of models that bend scores: soft caps, ALiBi, sinks, and all of them."""
    cases = []
    for bends in ({"cap": 5.0}, {"cap": 0.5}, {"most_bias": 8.0}, {"sinks": True},
                  {"cap": 5.0, "most_bias": 8.0, "sinks": True}):  # fmt: skip
        for heads, threads, sees in (((6, 2), 1, drafts(rng, 7, 90)), ((12, 2), 3, chain(9, 70))):
            case = case_of(rng, sees, heads, num_threads=threads)
            sinks = 4 * rng.standard_normal(heads[0]).astype(
                np.float32
            )  # above the most, and below
            sinks[0] = 100.0  # next to nothing is left to that head, and no power of e overflows
            own = {"sinks": sinks} if "sinks" in bends else {}
            cases.append(replace(case, **{**bends, **own}))
    return cases


@each_set
def test_scores_are_bent_as_the_model_says(name: str, compiled: Callable[..., Probe]) -> None:
    cases = bent_cases(np.random.default_rng(7))
    for case, found in zip(cases, compiled(name).find(*cases), strict=True):
        wanted = expected(case)
        assert np.abs(found - wanted).max() < 1e-5
        assert (
            np.abs(expected(replace(case, cap=0.0, most_bias=0.0, sinks=None)) - wanted).max()
            > 1e-3
        )
    assert_each_row_is_as_alone(compiled(name), *cases)


@each_set
def test_a_row_has_the_same_bits_in_any_company(name: str, compiled: Callable[..., Probe]) -> None:
    rng = np.random.default_rng(2)
    cases = [
        case_of(rng, sees(num), heads, (64, 128), num_threads=threads)
        for heads in ((3, 3), (4, 2), (6, 2), (8, 2), (7, 1))
        for num, threads in ((1, 1), (2, 3), (3, 1), (4, 2), (5, 5), (8, 1), (13, 4), (33, 2))
        for sees in (lambda num: drafts(rng, num, 120), lambda num: chain(num, 77))
    ]
    cases.append(case_of(rng, rng.random((3, 6, 50)) < 0.7, num_threads=2))
    assert_each_row_is_as_alone(compiled(name), *cases)


@each_set
def test_without_a_mask_all_is_seen(name: str, compiled: Callable[..., Probe]) -> None:
    rng = np.random.default_rng(6)
    masked = case_of(rng, np.ones((5, 70), bool))
    case = replace(masked, mask=np.zeros_like(masked.mask))
    (found,) = compiled(name).find(case)
    assert np.abs(found - expected(case)).max() < 1e-5
    assert_each_row_is_as_alone(compiled(name), case)


@each_set
def test_rows_that_see_next_to_nothing(name: str, compiled: Callable[..., Probe]) -> None:
    rng = np.random.default_rng(3)
    sees = np.zeros((6, 40), bool)
    sees[1, 7] = sees[4, :16] = sees[5, 17] = True  # two see one cell, one a whole vector of them
    case = case_of(rng, sees)
    (found,) = compiled(name).find(case)
    assert not found[0, [0, 2, 3]].any()
    assert np.abs(found - expected(case)).max() < 1e-5
    assert_each_row_is_as_alone(compiled(name), case)


@each_set
def test_what_is_not_finite_stays_in_its_row(name: str, compiled: Callable[..., Probe]) -> None:
    rng = np.random.default_rng(4)
    case = case_of(rng, chain(8, 90))
    (before,) = compiled(name).find(case)
    for value in (np.nan, np.inf):
        queries = case.queries.copy()
        queries[0, 2, 3, 5] = value
        found = compiled(name).find(replace(case, queries=queries))[0].copy()
        assert np.isnan(found[0, 2, 3]).all()
        found[0, 2, 3] = before[0, 2, 3]
        assert np.array_equal(found.view(np.uint32), before.view(np.uint32))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in SETS if name != "neon"])
def test_nothing_undefined_is_done(name: str, compiled: Callable[..., Probe]) -> None:
    """Under the address and the undefined behaviour sanitizer."""
    rng = np.random.default_rng(5)
    cases = [
        case_of(rng, drafts(rng, num, num + cells), (heads, 1), (48, 80), num_threads=threads)
        for num in (1, 2, 3, 4, 7)
        for cells in (1, 31, 32, 33, 64, 100)
        for heads, threads in ((1, 1), (4, 2), (5, 3))
    ]
    cases += [case_of(rng, np.zeros((3, 16), bool)), *bent_cases(rng)]
    probe = compiled(name, "-O1", *SANITIZERS)
    for one, other in zip(probe.find(*cases), compiled(name).find(*cases), strict=True):
        assert np.array_equal(one.view(np.uint32), other.view(np.uint32))
