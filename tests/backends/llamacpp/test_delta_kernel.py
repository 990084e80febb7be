"""The delta rule of recurrent layers: what it finds, and the same bits however it is computed."""

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

PROBE = Path(__file__).with_name("delta_probe.cpp")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """An operation; what its arrays are is said in the probe."""

    queries: Floats
    keys: Floats
    values: Floats
    decays: Floats
    rates: Floats
    states: Floats
    num_kept: int = 1
    num_threads: int = 1

    @property
    def num_tokens(self) -> int:
        return int(self.values.shape[1])

    @property
    def kept_shape(self) -> tuple[int, ...]:
        return (self.num_kept, *self.states.shape)

    def packed(self) -> bytes:
        streams, tokens, heads, size = self.values.shape
        numbers = [streams, tokens, heads, self.keys.shape[2], size, self.num_kept]
        head = np.array([*numbers, self.num_threads], np.int64)
        arrays = (self.queries, self.keys, self.values, self.decays, self.rates, self.states)
        return b"".join(np.ascontiguousarray(array).tobytes() for array in (head, *arrays))

    def tokens(self, begin: int, end: int, states: Floats) -> Case:
        """Some of its tokens as an operation of its own, from these states on."""
        own = {
            name: getattr(self, name)[:, begin:end]
            for name in ("queries", "keys", "values", "decays", "rates")
        }
        return replace(self, **own, states=states)


@dataclass(frozen=True)
class Probe:
    """The kernel of one instruction set, as a program."""

    command: Command

    def find(self, *cases: Case) -> list[tuple[Floats, Floats]]:
        """Rows and kept states of each case."""
        sent = b"".join(case.packed() for case in cases)
        run = subprocess.run(self.command, input=sent, capture_output=True, timeout=250)
        assert run.returncode == 0, run.stderr.decode()[-2000:]
        assert not run.stderr, run.stderr.decode()[-2000:]
        found, at, results = np.frombuffer(run.stdout, np.float32), 0, []
        for case in cases:
            shapes = (case.values.shape, case.kept_shape)
            parts = []
            for shape in shapes:
                size = int(np.prod(shape))
                parts.append(found[at : at + size].reshape(shape))
                at += size
            results.append((parts[0], parts[1]))
        assert at == len(found)
        return results


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> Callable[..., Probe]:
    probes = Probes(PROBE, request.config.cache.mkdir("kernels"))
    return lambda name, *options: Probe(probes.command(name, *options))


def case_of(
    rng: np.random.Generator,
    num_tokens: int,
    heads: tuple[int, int] = (4, 2),  # of values, and of queries and keys
    size: int = 64,
    num_streams: int = 1,
    num_kept: int = 1,
    num_threads: int = 1,
) -> Case:
    def normal(*shape: int) -> Floats:
        return rng.standard_normal(shape).astype(np.float32)

    rows = (num_streams, num_tokens)
    keys = normal(*rows, heads[1], size)
    return Case(
        queries=normal(*rows, heads[1], size),
        keys=keys / np.linalg.norm(keys, axis=-1, keepdims=True),
        values=normal(*rows, heads[0], size),
        decays=-np.abs(normal(*rows, heads[0])),
        rates=rng.random((*rows, heads[0])).astype(np.float32),
        states=normal(num_streams, heads[0], size, size),
        num_kept=num_kept,
        num_threads=num_threads,
    )


def expected(case: Case) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """In float64: rows, and the states after each token. A matrix lies with its keys as columns."""
    times = case.values.shape[2] // case.keys.shape[2]
    queries, keys = (  # head h of the values goes with head h modulo their number
        np.concatenate([rows.astype(np.float64)] * times, axis=2)
        for rows in (case.queries, case.keys)
    )
    state, found, states = case.states.astype(np.float64), [], []
    for t in range(case.num_tokens):
        state = state * np.exp(case.decays[:, t].astype(np.float64))[..., None, None]
        told = np.einsum("shvk,shk->shv", state, keys[:, t])
        corrected = (case.values[:, t] - told) * case.rates[:, t, :, None]
        state = state + corrected[..., None] * keys[:, t][..., None, :]
        found.append(np.einsum("shvk,shk->shv", state, queries[:, t]) / np.sqrt(state.shape[-1]))
        states.append(state)
    return np.stack(found, axis=1), np.stack(states)


def cases(rng: np.random.Generator) -> list[Case]:
    return [
        case_of(rng, num_tokens, heads, size, num_streams, num_kept, num_threads)
        for num_tokens, num_kept in ((1, 1), (5, 1), (3, 8), (9, 4), (33, 2))
        for heads, size, num_streams, num_threads in (
            ((4, 2), 64, 1, 1),
            ((3, 3), 128, 1, 2),
            ((2, 1), 16, 3, 5),
        )
    ]


each_set = pytest.mark.parametrize("name", SETS)


@each_set
def test_rows_and_states_are_those_of_the_rule(name: str, compiled: Callable[..., Probe]) -> None:
    own = cases(np.random.default_rng(1))
    for case, (rows, kept) in zip(own, compiled(name).find(*own), strict=True):
        wanted, states = expected(case)
        assert np.abs(rows - wanted).max() < 1e-5
        num = min(case.num_kept, case.num_tokens)
        assert np.abs(kept[:num] - states[::-1][:num]).max() < 1e-5
        assert (kept[num:] == 7).all(), "what lies before the first token is not touched"


@each_set
def test_a_token_has_the_same_bits_in_any_company(
    name: str, compiled: Callable[..., Probe]
) -> None:
    """Wherever a text is cut, whatever is kept, and whoever computes it."""
    rng = np.random.default_rng(2)
    for case in cases(rng):
        ((rows, kept),) = compiled(name).find(case)
        cut = int(rng.integers(0, case.num_tokens))
        states, parts = case.states, []
        for begin, end in ((0, cut), (cut, case.num_tokens)):
            if begin < end:
                part = replace(case.tokens(begin, end, states), num_kept=1, num_threads=3)
                ((found, (states,)),) = compiled(name).find(part)
                parts.append(found)
        assert np.array_equal(rows, np.concatenate(parts, axis=1))
        assert np.array_equal(kept[0], states)


@each_set
def test_a_stream_has_the_same_bits_in_any_company(
    name: str, compiled: Callable[..., Probe]
) -> None:
    case = case_of(np.random.default_rng(3), 6, num_streams=3, num_kept=2)
    ((rows, kept),) = compiled(name).find(case)
    for stream in range(3):
        own = slice(stream, stream + 1)
        fields = ("queries", "keys", "values", "decays", "rates", "states")
        alone = replace(case, **{field: getattr(case, field)[own] for field in fields})
        ((found, states),) = compiled(name).find(alone)
        assert np.array_equal(found, rows[own])
        assert np.array_equal(states, kept[:, own])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in SETS if name != "neon"])
def test_nothing_undefined_is_done(name: str, compiled: Callable[..., Probe]) -> None:
    """Under the address and the undefined behaviour sanitizer."""
    own = cases(np.random.default_rng(4))
    probe = compiled(name, "-O1", *SANITIZERS)
    for one, other in zip(probe.find(*own), compiled(name).find(*own), strict=True):
        assert np.array_equal(one[0], other[0])
        assert np.array_equal(one[1], other[1])
