"""The kernels for few rows: what the weights stand for, and the same bits however they compute.

Plain C++ is held against NumPy, every instruction set against plain C++. A set that cannot be
compiled, or that this processor has not, is skipped with its reason.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from fakes.instruction_sets import FAST, SETS
from fakes.kernel_probes import SANITIZERS, Probes
from fakes.quantised import FORMATS, Bytes, Format

PROBE = Path(__file__).with_name("kernels_probe.cpp")

ULP = 2.0**-24  # of a float32, relative: what one rounding may move
LEAST = np.float32(1e-30)  # blocks of smaller activations are zero

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A matrix of weights, (rows, bytes), and rows of activations, (m, columns)."""

    kind: Format
    weights: Bytes
    x: Floats
    splits: Sequence[int] = ()  # where the rows of activations are divided into operations
    tiles_at_once: int = 1 << 20


@dataclass(frozen=True)
class Probe:
    """The kernels of one instruction set, as a program."""

    command: tuple[str, ...]

    def products(self, *cases: Case) -> list[Floats]:
        """Of each case, (m, rows); one run for all."""
        sent = []
        for case in cases:
            ends = [0, *case.splits, len(case.x)]
            sizes = [len(case.weights), case.x.shape[1], len(case.x), len(ends)]
            head = np.array([case.kind.type, *sizes, case.tiles_at_once, *ends], np.int64)
            sent += [head.tobytes(), case.weights.tobytes(), case.x.tobytes()]
        run = subprocess.run(self.command, input=b"".join(sent), capture_output=True, timeout=250)
        assert run.returncode == 0, run.stderr.decode()[-2000:]
        assert not run.stderr, run.stderr.decode()[-2000:]
        products = np.frombuffer(run.stdout, np.float32)
        shapes = [(len(case.x), len(case.weights)) for case in cases]
        ends = np.cumsum([m * n for m, n in shapes])
        assert len(products) == ends[-1]
        parts = np.split(products, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


Compile = Callable[..., Probe]


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> Compile:
    """The probe of an instruction set."""
    probes = Probes(PROBE, request.config.cache.mkdir("kernels"))

    def compile_(name: str, *options: str, compiler: Sequence[str] = ()) -> Probe:
        return Probe(probes.command(name, *options, compiler=compiler))

    return compile_


@pytest.fixture(scope="session")
def plain(compiled: Compile) -> Probe:
    return compiled("plain")


@pytest.fixture(scope="session", params=FAST)
def fast(request: pytest.FixtureRequest, compiled: Compile) -> Probe:
    return compiled(request.param)


each_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)


def columns_of(kind: Format, num_blocks: int) -> int:
    """An odd number of blocks, of pairs and of weights, which no vector divides."""
    return 37 if kind.is_float else num_blocks * kind.block_columns


def ordinary(rng: np.random.Generator, num_rows: int, num_columns: int) -> Floats:
    """Rows of very different size, with outliers as activations have them."""
    x = rng.standard_normal((num_rows, num_columns)) * 10.0 ** rng.integers(-4, 4, (num_rows, 1))
    x[rng.random(x.shape) < 0.01] *= 50
    return x.astype(np.float32)


def edges(num_columns: int) -> dict[str, Floats]:
    """Rows of activations that kernels trip over, each by its name."""
    rng = np.random.default_rng(5)

    def base() -> Floats:
        return rng.standard_normal(num_columns).astype(np.float32)

    def with_one(value: float, at: int) -> Floats:
        x = base()
        x[at % num_columns] = value
        return x

    ones = np.ones(num_columns, np.float32)
    signs = np.where(rng.integers(0, 2, num_columns), ones, -ones)
    ties = (np.arange(num_columns) % 127 + 0.5).astype(np.float32)
    ties[::16] = 127
    most = np.finfo(np.float32).max
    return {
        "before": base(),
        "zero": 0 * ones,
        "minus zero": -0.0 * ones,
        "infinity": with_one(np.inf, 0),
        "minus infinity": with_one(-np.inf, num_columns - 1),
        "nan": with_one(np.nan, num_columns // 2),
        "nan and infinities": np.where(signs > 0, np.float32(np.inf), np.float32(np.nan)),
        "between": base(),
        "subnormal": (rng.standard_normal(num_columns) * 1e-40).astype(np.float32),
        "one subnormal": with_one(1e-45, 3),
        "below the least": np.nextafter(LEAST, np.float32(0)) * signs,
        "the least": LEAST * signs,
        "large": base() * np.float32(1e30),
        "largest": most * signs,
        "one largest": with_one(-most, num_columns // 3),
        "all codes at their ends": signs,
        "all codes the largest": ones,
        "all codes the least": -ones,
        "ties": ties,
        "negative ties": -ties,
        "after": base(),
    }


def rounded(kind: Format, x: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What the kernels multiply in place of ``x``, and by how much it may be off."""
    if kind.is_float:
        return x.astype(np.float64), np.zeros(x.shape)
    blocks = x.reshape(len(x), -1, 32)
    most = np.abs(blocks).max(axis=-1, keepdims=True)
    is_zero = most < LEAST
    inverse = np.float32(127) / np.where(is_zero, np.float32(1), most)
    scale = (most / np.float32(127)).astype(np.float64)
    codes = np.where(is_zero, 0, np.rint(blocks * inverse))
    off = np.where(is_zero, most, scale * 0.5001)
    return (codes * scale).reshape(x.shape), np.broadcast_to(off, blocks.shape).reshape(x.shape)


def check(kind: Format, weights: Bytes, x: Floats, products: Floats) -> None:
    """Holds products against exact ones of the rounded activations, and of those given."""
    scaled, minima = kind.parts(weights)
    near, off = rounded(kind, x)
    # each block's product, its minimum and its scale are rounded, and so is the sum after each
    roundings = x.shape[1] + 2 if kind.is_float else 2 * x.shape[1] / 16 + 4
    size = np.abs(near) @ (np.abs(scaled) + np.abs(minima)).T
    room = roundings * (ULP * size + 2.0**-149)
    if kind.name == "MXFP4":  # whose two least scales, 2^-127 and half of it, are taken for zero
        room = room + 6 * 2.0**-126 * np.abs(near).sum(axis=1, keepdims=True)
    fits = size < 1e37  # others may overflow on their way
    exact = near @ (scaled + minima).T
    wrong = fits & ~(np.abs(products - exact) <= room)
    assert not wrong.any(), _first(wrong, products, exact, room)
    given = x.astype(np.float64) @ (scaled + minima).T
    room = room + off @ np.abs(scaled + minima).T
    wrong = fits & ~(np.abs(products - given) <= room)
    assert not wrong.any(), _first(wrong, products, given, room)
    assert fits.any()


def _first(wrong: npt.NDArray[np.bool_], *arrays: npt.NDArray[np.floating]) -> str:
    at = tuple(np.argwhere(wrong)[0])
    got, exact, room = (array[at] for array in arrays)
    where = f"{wrong.sum()} of {wrong.size}; row {at[0]}, weight {at[1]}"
    return f"{where}: {got}, not {exact} +- {room}"


def assert_same_bits(a: Floats, b: Floats) -> None:
    """NaN is one value: which of its bits are set is the processor's choice."""
    is_nan = np.isnan(a)
    assert np.array_equal(is_nan, np.isnan(b))
    differ = (a.view(np.uint32) != b.view(np.uint32)) & ~is_nan
    assert not differ.any(), _first(differ, a, b, np.zeros_like(a))


@each_format
def test_weights_stand_for_what_the_specification_says(kind: Format) -> None:
    quants = gguf.quants
    numbered = {number.value: number for number in gguf.GGMLQuantizationType}.get(kind.type)
    if numbered is None or kind.name == "Q1_0":
        pytest.skip(f"the gguf package does not read {kind.name}")
    assert numbered.name == kind.name
    assert gguf.GGML_QUANT_SIZES[numbered] == (kind.block_columns, kind.block_bytes)
    raw = np.concatenate([kind.draw(np.random.default_rng(1), 40, 768), kind.every_byte(768)])
    typed = raw if kind.name != "F32" else raw.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        theirs = quants.dequantize(typed, numbered).astype(np.float64)
        scaled, minima = kind.parts(raw)
        size = np.abs(scaled) + np.abs(minima)
        fits = size < 1e38
        assert fits.mean() > 0.9
        assert (np.abs(theirs - scaled - minima) <= 4 * ULP * size)[fits].all()


@each_format
def test_products_are_those_of_the_weights_in_the_file(kind: Format, plain: Probe) -> None:
    rng = np.random.default_rng(kind.type)
    for num_rows, num_blocks in ((1, 1), (15, 2), (17, 3), (33, 5)):
        num_columns = columns_of(kind, num_blocks)
        weights = kind.draw(rng, num_rows, num_columns)
        x = ordinary(rng, 5, num_columns)
        check(kind, weights, x, *plain.products(Case(kind, weights, x)))


@pytest.mark.parametrize("kind", [f for f in FORMATS if not f.is_float], ids=lambda kind: kind.name)
def test_every_byte_of_a_block_is_read_as_it_is_meant(kind: Format, plain: Probe) -> None:
    rng = np.random.default_rng(1)
    # one column after the other, so that no two codes can change places
    x = np.concatenate([np.eye(kind.block_columns), rng.standard_normal((4, kind.block_columns))])
    x = x.astype(np.float32)
    for weights in (kind.every_byte(kind.block_columns), kind.draw(rng, 64, kind.block_columns)):
        check(kind, weights, x, *plain.products(Case(kind, weights, x)))


def test_exponents_reach_both_ends(plain: Probe) -> None:
    kind = next(kind for kind in FORMATS if kind.name == "MXFP4")
    rng = np.random.default_rng(2)
    weights = kind.draw(rng, 255, 32)
    weights[:, 0] = np.arange(255)
    x = rng.standard_normal((3, 32)).astype(np.float32)
    check(kind, weights, x, *plain.products(Case(kind, weights, x)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_number_of_16_bits_is_exact(name: str, compiled: Compile) -> None:
    probe = compiled(name)
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    one = np.ones((1, 1), np.float32)
    for kind in FORMATS:
        if kind.name in {"F16", "BF16"}:
            with np.errstate(invalid="ignore"):  # NaN
                exact = kind.weights(numbers).astype(np.float32)
            (products,) = probe.products(Case(kind, numbers, one))
            assert np.array_equal(products[0], exact[:, 0], equal_nan=True)


SIZES = ((1, 1), (15, 3), (17, 5), (33, 2), (0, 1))  # rows of weights, blocks of columns


@each_format
def test_an_instruction_set_changes_no_bit(kind: Format, fast: Probe, plain: Probe) -> None:
    cases = hard_cases(kind, [0, 1, 7, 19, 40])
    for one, other in zip(fast.products(*cases), plain.products(*cases), strict=True):
        assert_same_bits(one, other)


def hard_cases(kind: Format, widths: Sequence[int]) -> list[Case]:
    """Sizes that no vector divides, extreme weights and extreme activations."""
    rng = np.random.default_rng(3)
    cases = []
    for num_rows, num_blocks in SIZES:
        num_columns = columns_of(kind, num_blocks)
        weights = kind.draw(rng, num_rows, num_columns)
        x = np.stack([*edges(num_columns).values(), *ordinary(rng, 40, num_columns)])
        cases += [Case(kind, weights, x[:width], (), 1) for width in (*widths, len(x))]
    num_columns = columns_of(kind, 1)
    x = np.stack(list(edges(num_columns).values()))
    cases.append(Case(kind, kind.every_byte(num_columns), x, (), 3))
    return cases


@each_format
@pytest.mark.parametrize("name", SETS)
def test_a_row_has_the_same_bits_in_any_company(kind: Format, name: str, compiled: Compile) -> None:
    rng = np.random.default_rng(4)
    num_columns = columns_of(kind, 3)
    weights = kind.draw(rng, 17, num_columns)
    x = ordinary(rng, 40, num_columns)
    cases = [Case(kind, weights, x, range(1, 40), 1)]
    cases += [Case(kind, weights, x[:width]) for width in range(1, 41)]
    for _ in range(5):
        splits = np.sort(rng.choice(np.arange(1, 40), 6, replace=False)).tolist()
        cases.append(Case(kind, weights, x, splits, int(rng.integers(1, 3))))
    alone, *others = compiled(name).products(*cases)
    for other in others:
        assert_same_bits(other, alone[: len(other)])


@each_format
@pytest.mark.parametrize("name", SETS)
def test_what_is_not_finite_stays_in_its_row(kind: Format, name: str, compiled: Compile) -> None:
    num_columns = columns_of(kind, 3)
    weights = kind.draw(np.random.default_rng(6), 33, num_columns)
    rows = edges(num_columns)
    x = np.stack(list(rows.values()))
    together, alone = Case(kind, weights, x), Case(kind, weights, x, range(1, len(x)))
    products, others = compiled(name).products(together, alone)
    assert_same_bits(products, others)
    # these may overflow where weights are large
    is_huge = np.array(["largest" in label for label in rows])
    is_finite = np.isfinite(x).all(axis=1)
    assert np.isfinite(products[is_finite & ~is_huge]).all()
    assert not np.isfinite(products[~is_finite]).any()
    if not kind.is_float:
        assert np.isnan(products[~is_finite]).all()
    check(kind, weights, x[is_finite & ~is_huge], products[is_finite & ~is_huge])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in SETS if name != "neon"])
def test_nothing_undefined_is_done(name: str, compiled: Compile, plain: Probe) -> None:
    """Under the address and the undefined behaviour sanitizer."""
    probe = compiled(name, "-O1", *SANITIZERS)
    for kind in FORMATS:
        cases = hard_cases(kind, [0, 1, 3, 19])
        for one, other in zip(probe.products(*cases), plain.products(*cases), strict=True):
            assert_same_bits(one, other)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["plain", "avx2", "avx512"])
def test_another_compiler_changes_no_bit(name: str, compiled: Compile, plain: Probe) -> None:
    clang = shutil.which("clang++")
    if not clang:
        pytest.skip("there is no clang++")
    probe = compiled(name, compiler=[clang])
    for kind in FORMATS:
        sweep(kind, probe, plain, num_rows=17, num_blocks=5, num_x=21)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAST)
def test_what_is_shipped_has_the_same_bits(name: str, compiled: Compile, plain: Probe) -> None:
    """Compiled as llama.cpp is built."""
    probe = compiled(name, "-O3")
    for kind in FORMATS:
        sweep(kind, probe, plain, num_rows=17, num_blocks=5, num_x=21)


@pytest.mark.slow
@each_format
def test_bits_of_whole_matrices(kind: Format, fast: Probe, plain: Probe) -> None:
    for num_rows, num_blocks, num_x in ((100, 7, 64), (47, 48, 33), (257, 1, 40)):
        sweep(kind, fast, plain, num_rows=num_rows, num_blocks=num_blocks, num_x=num_x)


def sweep(
    kind: Format, probe: Probe, plain: Probe, *, num_rows: int, num_blocks: int, num_x: int
) -> None:
    """Any division of the rows: each has the bits that plain C++ gives it."""
    rng = np.random.default_rng(num_rows)
    num_columns = num_blocks * (33 if kind.is_float else kind.block_columns)
    weights = kind.draw(rng, num_rows, num_columns)
    x = ordinary(rng, num_x, num_columns)
    (wanted,) = plain.products(Case(kind, weights, x))
    check(kind, weights, x, wanted)
    cases = [Case(kind, weights, x[:width]) for width in range(1, num_x + 1)]
    for _ in range(20):
        inner = rng.choice(np.arange(1, num_x), rng.integers(1, num_x - 1), replace=False)
        cases.append(Case(kind, weights, x, np.sort(inner).tolist(), int(rng.integers(1, 9))))
    for one in probe.products(*cases):
        assert_same_bits(one, wanted[: len(one)])
