"""The Triton kernels against their oracle, in Triton's interpreter: no GPU, no compiler.

Half precision is float16 here: the interpreter cannot multiply matrices of bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import torch

pytest.importorskip("triton", reason="triton is not installed: it comes with torch for CUDA")

from fakes.torch_models import (
    WINDOWED,
    logits,
    oracle_rows,
    query_of,
    random_text,
    random_tree,
    target_of,
)

from duodec.core.draft import Draft
from duodec.core.rows import top
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec_torch.forward import kernels, layouts
from duodec_torch.forward.attention import Scoring
from duodec_torch.sampling import draws, summaries, summary_kernel
from duodec_torch.sampling.draws import draw
from duodec_torch.sampling.summaries import Drawers
from duodec_torch.sampling.summary_kernel import fused_pick, fused_summarise

ALL_KINDS = ("llama", *WINDOWED)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def _on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets attend by the kernels on the CPU too."""

    def split_layouts(network: object, num_slots: int, num_region: int, *_: object) -> object:
        return layouts.SplitLayouts(num_slots, num_region)

    monkeypatch.setattr("duodec_torch.target.exact_layouts", split_layouts)


@pytest.fixture(autouse=True)
def _products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter lacks what CUDA's library has."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(summary_kernel, "mul_rn", lambda a, b: a * b)


def rarely(value: object) -> Any:
    """A case that takes long in the interpreter: one of many that differ in a number."""
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture
def _rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's matrix product is NumPy's, whose bits depend on a row's place in the
    matrix; a GPU's do not. So here each row is multiplied alone."""
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    def create_dot(self: object, a: Any, b: Any, d: Any, *options: object) -> object:
        rows = [np.einsum("k,kn->n", row.copy(), b.data) for row in a.data]
        return interpreter.TensorHandle(np.stack(rows) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.parametrize(
    "shape",
    [(2, 2, 8), (1, 7, 64), *(rarely(one) for one in ((4, 1, 80), (2, 4, 128), (1, 4, 256)))],
)
@pytest.mark.parametrize(
    ("num_rows", "num_splits", "dtype"),
    [
        (5, 2, torch.float32), (32, 3, torch.float16),
        *(pytest.param(*one, marks=pytest.mark.slow)
          for one in ((5, 2, torch.float16), (32, 3, torch.float32))),
    ],
)  # fmt: skip
def test_the_kernels_compute_what_the_oracle_does(
    shape: tuple[int, int, int], num_rows: int, num_splits: int, dtype: torch.dtype
) -> None:
    of = {"num_rows": num_rows, "num_splits": num_splits}
    most = 2e-6 if dtype == torch.float32 else 2e-3
    assert kernels.check(*shape, dtype, DEVICE, **of) < most


@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 20, 300, *map(rarely, (1, 80, 100, 5000))])
@pytest.mark.parametrize(
    ("num_rows", "num_splits"), [(5, 2), pytest.param(10, 3, marks=pytest.mark.slow)]
)
def test_the_kernels_score_as_the_oracle_does(
    num_rows: int, num_splits: int, window: int | None, cap: float | None
) -> None:
    """A row at each of the check's places, the last of which are beyond a split and a window."""
    sinks = torch.tensor([[0.5, -2.0], [3.0, 30.0]])
    scorings = [Scoring(0.3, window, cap, one) for one in (None, sinks)]
    of = {"num_rows": num_rows, "num_splits": num_splits, "scorings": scorings}
    assert kernels.check(2, 2, 8, torch.float32, DEVICE, **of) < 2e-6


def test_results_that_are_no_numbers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.Rowwise, "attend", lambda self, query, *_: query * torch.nan)
    of = {"num_rows": 5, "num_splits": 1, "scorings": [Scoring(0.3), Scoring(0.3, 20)]}
    assert np.isnan(kernels.check(2, 2, 8, torch.float32, DEVICE, **of))


def test_the_check_stays_within_a_short_context() -> None:
    assert kernels.check(2, 2, 8, torch.float32, DEVICE, num_rows=5, num_splits=1) < 2e-6


@pytest.mark.usefixtures("_on_any_device")
@pytest.mark.parametrize(
    ("kind", "length"),
    [
        *((kind, 1) for kind in ALL_KINDS),
        *((kind, 80) for kind in ALL_KINDS if kind != "mistral"),
        pytest.param("mistral", 80, marks=pytest.mark.slow),  # whose window is longer
        *(pytest.param(kind, 337, marks=pytest.mark.slow) for kind in ALL_KINDS),
        *(pytest.param(kind, 593, marks=pytest.mark.soak) for kind in ALL_KINDS),
    ],
)
def test_rows_through_the_kernels_are_the_models(kind: str, length: int) -> None:
    target = target_of(kind, num_context=700, widths=Widths.only(8))
    text, draft = random_text(length), random_tree(np.random.default_rng(length), 3, 4)
    (rows,) = logits(target, query_of(text, draft, num_prompt=max(1, length - 1)))
    assert np.abs(rows.numpy() - oracle_rows(kind, text, draft)).max() < 2e-4


@pytest.mark.usefixtures("_on_any_device", "_rows_alone")
@pytest.mark.parametrize(
    ("kind", "length", "has_own_layers", "chains"),
    [
        ("llama", 30, False, [[1, 2], [4]]),
        pytest.param("llama", 30, False, [[1, 2, 3], [4, 5]], marks=pytest.mark.slow),
        ("llama", 334, True, [[1, 2, 3], [4, 5]]),
        pytest.param("gemma2", 334, False, [[1, 2, 3], [4, 5]], marks=pytest.mark.soak),
        pytest.param("gemma3_text", 90, False, [[1, 2, 3], [4, 5]], marks=pytest.mark.slow),
    ],
)
def test_a_row_has_the_bits_of_plain_decoding(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    length: int,
    has_own_layers: bool,
    chains: list[list[int]],
) -> None:
    name = "duodec_torch.forward.network.gains_by_fusing"
    monkeypatch.setattr(name, lambda device: not has_own_layers)
    text, draft = random_text(length), Draft.sequences(chains)
    target = target_of(kind, num_context=700, widths=Widths.only(len(draft) + 1))
    (rows,) = logits(target, query_of(text, draft, num_prompt=length))
    for node in range(len(draft)):
        said = [*text, *draft.path_tokens(node)]
        (alone,) = logits(target, query_of(said, num_prompt=length))
        assert torch.equal(alone[0], rows[node + 1])


@pytest.mark.usefixtures("_on_any_device", "_rows_alone")
def test_several_slots_have_the_bits_of_one() -> None:
    target = target_of("llama", num_context=400, num_slots=2, widths=Widths.only(8))
    queries = [
        query_of(random_text(n, n), Draft.sequences([[1, 2], [3]]), num_prompt=n - 1, slot=slot)
        for slot, n in enumerate((40, 350))
    ]
    for query, rows in zip(queries, logits(target, *queries), strict=True):
        (alone,) = logits(target_of("llama", num_context=400, widths=Widths.only(8)), query)
        assert torch.equal(rows, alone)


def test_kernels_that_cannot_be_used_cost_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        device = torch.device("cuda")
        dtype, num_kv_heads, group, head_size = torch.float32, 2, 2, 8
        scorings = (Scoring(0.3),)

    for outcome in (lambda *shape, **of: 0.3, lambda *shape, **of: 1 / 0):
        warnings: list[str] = []
        monkeypatch.setattr(kernels, "check", outcome)
        found = layouts.exact_layouts(OnGpu(), 1, 512, Widths.only(32), warnings.append)  # type: ignore[arg-type]
        assert isinstance(found, layouts.BlockLayouts)
        assert len(warnings) == 1
        assert warnings[0].startswith("Triton's attention is off")
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(kernels, "check", lambda *shape, **of: asked.append(of) or 0.0)
    found = layouts.exact_layouts(OnGpu(), 1, 512, Widths.only(32), warnings.append)  # type: ignore[arg-type]
    assert isinstance(found, layouts.SplitLayouts)
    wanted = {"num_rows": 32, "num_splits": 2, "scorings": OnGpu.scorings}
    assert asked == [wanted], "what is checked is what runs"


# --- draws

FUSED = Drawers(fused_pick, fused_summarise)
# of one token, fewer than are listed, around a program's part, and of models: GPT-2's is odd
SIZES = [1, 2, 7, 8, 9, 2047, 2048, 2049, 6143, 50_257]


def some_rows(num_rows: int, num_vocab: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, some of them equal, some rows with few that are not banned; and how to draw them."""
    maker = torch.Generator().manual_seed(1000 * num_vocab + seed)
    logits = 4 * torch.randn((num_rows, num_vocab), generator=maker)
    logits[1::5] = logits[1::5].half().float()
    logits[2::5, :-2] = -torch.inf
    logits[3::5] = -0.0
    logits[4::5] = logits[4::5].round()  # with zeros of both signs
    inverse = 0.3 + 2 * torch.rand(num_rows, generator=maker)
    inverse[torch.rand(num_rows, generator=maker) < 0.4] = summaries.GREEDY
    inverse[:2] = 1
    halves = torch.randint(1 << 32, (num_rows, 2), generator=maker)
    ways = torch.cat([inverse.view(torch.int32).long()[:, None], halves], -1)
    return logits.to(DEVICE), ways.to(DEVICE)


def both(logits: torch.Tensor, ways: torch.Tensor) -> list[torch.Tensor]:
    """The summaries by the oracle and by the kernels."""
    found = []
    for way in (summaries.summarise, fused_summarise):
        out = torch.zeros((len(logits), summaries.NUM_COLUMNS), dtype=torch.float64, device=DEVICE)
        way(logits, ways, out)
        num_top = min(summaries.NUM_TOP, logits.shape[-1])
        found.append(
            torch.cat(
                [out[:, : summaries.TOP + num_top], out[:, -summaries.NUM_TOP :][:, :num_top]], 1
            )
        )
    return found


@pytest.mark.parametrize("num_vocab", SIZES)
def test_summaries_by_the_kernels_have_the_bits_of_their_oracle(num_vocab: int) -> None:
    expected, found = both(*some_rows(10 if num_vocab < 9000 else 5, num_vocab))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("seed", [*range(5), *map(rarely, range(5, 20))])
def test_many_draws_by_the_kernels_are_their_oracles(seed: int) -> None:
    expected, found = both(*some_rows(16, 257 + 101 * seed, seed))
    assert torch.equal(found, expected)


def test_summaries_are_read_and_written_where_the_target_has_them() -> None:
    """Rows of buffers that are wider, and do not begin where memory is aligned."""
    logits, ways = some_rows(6, 2051)
    wide = torch.zeros((7, 2053), device=DEVICE)
    wide[1:, 1:-1] = logits
    lines = torch.full((7, 87), -5, device=DEVICE)
    lines[1:, 4:7] = ways
    out = torch.full((7, summaries.NUM_COLUMNS), -1.0, dtype=torch.float64, device=DEVICE)
    fused_summarise(wide[1:, 1:-1], lines[1:, 4:7], out[1:])
    expected = torch.zeros_like(out[1:])
    summaries.summarise(logits, ways, expected)
    assert torch.equal(out[1:], expected)
    assert (out[0] == -1).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, the interpreter
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 2047, 4999])
def test_a_row_of_no_numbers_is_noticed_by_the_kernels(value: float, place: int) -> None:
    logits, ways = some_rows(5, 5000)
    logits[0, place] = logits[4, place] = value
    logits[1] = value
    expected, found = both(logits, ways)
    for way in (expected, found):
        largest = way[:, summaries.LARGEST].isfinite().tolist()
        assert largest == [value < 0, False, True, True, value < 0]
    kept = [0, 2, 3, 4] if value < 0 else [2, 3]
    assert torch.equal(found[kept], expected[kept])


@pytest.mark.parametrize("num_vocab", [5, 2049])
def test_draws_through_the_kernels_are_numpys(num_vocab: int) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(-2, 2.2, (4 * len(SAMPLINGS), num_vocab)).astype(np.float32)
    text = np.array([1], dtype=np.int32)
    queries = [
        Query(slot, text, Draft.chain([1, 2, 1]), Sampler(params), slot)
        for slot, params in enumerate(SAMPLINGS)
    ]
    logits = torch.as_tensor(rows.copy()).to(DEVICE)
    found = draw(logits, queries, lambda tensor: tensor.cpu().numpy(), FUSED)
    for at, own in enumerate(rows):
        query, row = queries[at // 4], at % 4
        wanted = query.sampler.draw(own.copy(), query.context(row))
        assert (found.tokens[at], found.margins[at]) == (wanted.token, wanted.margin)
        best = top(own, query.num_candidates)
        assert found.candidates[at, : len(best)].tolist() == best.tolist()
        assert found.likely[at, : len(best)].tolist() == own[best].tolist()


SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=5),
    SamplingParams(temperature=1.3, min_p=0.02, seed=6),
    SamplingParams(temperature=0.7, presence_penalty=0.5, logit_bias={4: 30.0}, seed=7),
    SamplingParams(temperature=0.7, top_p=0.9, top_k=40, seed=8),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(temperature=1e30, seed=9),
)


def test_rows_that_are_drawn_in_the_forward_pass_are_not_sorted_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _draw_by(monkeypatch, FUSED)
    for name in ("top", "best"):
        monkeypatch.setattr(draws, name, lambda *_: pytest.fail("a pass over the rows"))
    target = target_of("llama", widths=Widths.only(8))
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        sampler = Sampler(params, num_prompt_tokens=5)
        text = np.array(random_text(5), dtype=np.int32)
        (scores,) = target.score([Query(0, text, Draft.chain([1, 2]), sampler, 8)])
        assert len(scores.candidates(2).tokens) == 8


def _draw_by(monkeypatch: pytest.MonkeyPatch, way: Drawers) -> None:
    monkeypatch.setattr("duodec_torch.target.drawers", lambda *_: way)


@pytest.mark.parametrize("num_slots", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_what_a_target_draws_in_its_forward_passes_is_numpys(
    monkeypatch: pytest.MonkeyPatch, num_slots: int
) -> None:
    """Prompts that end in a chunk, trees over several passes, all ways to draw."""
    _draw_by(monkeypatch, FUSED)
    target = target_of("llama", widths=Widths.only(8), num_slots=num_slots)
    rng = np.random.default_rng(num_slots)
    for number, params in enumerate(SAMPLINGS[num_slots - 1 :: 2]):
        queries = []
        for slot in range(num_slots):
            text = np.array(random_text(20 + 13 * slot + number), dtype=np.int32)
            sampler = Sampler(params, num_prompt_tokens=len(text) - (number % 3))
            queries.append(Query(slot, text, random_tree(rng, 5, 3), sampler, 8))
        for scores, query in zip(target.score(queries), queries, strict=True):
            for row in range(len(query.draft) + 1):
                own = scores.row_logits(row)
                assert scores.draw(row) == query.sampler.draw(own, query.context(row))
                assert list(scores.candidates(row).tokens) == top(own, 8).tolist()


def test_draws_kernels_that_are_wrong_cost_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        type = "cuda"

    device: Any = OnGpu()
    for agreement in (lambda *_: False, lambda *_: 1 / 0):
        warnings: list[str] = []
        monkeypatch.setattr(summaries, "agree", agreement)
        assert summaries.drawers(device, 96, warnings.append) == Drawers()
        assert [line.startswith("Triton's draw is off") for line in warnings] == [True]
    monkeypatch.setattr(summaries, "agree", lambda *_: True)
    assert summaries.drawers(device, 96, warnings.append) == FUSED


@pytest.mark.parametrize("num_vocab", [3, 96, 5000])
def test_the_check_of_the_draws_kernels_can_fail(num_vocab: int) -> None:
    assert summaries.agree(fused_summarise, DEVICE, num_vocab)

    def other_way(logits: torch.Tensor, ways: torch.Tensor, out: torch.Tensor) -> None:
        fused_summarise(logits, ways[:, [0, 2, 1]], out)

    def other_column(column: int) -> Any:
        def wrong(logits: torch.Tensor, ways: torch.Tensor, out: torch.Tensor) -> None:
            fused_summarise(logits, ways, out)
            out[:-1, column] += 1

        return wrong

    assert not summaries.agree(other_way, DEVICE, num_vocab)
    for column in (summaries.TOP, summaries.TOP + summaries.NUM_TOP, summaries.LARGEST):
        assert not summaries.agree(other_column(column), DEVICE, num_vocab)

    def deaf(logits: torch.Tensor, ways: torch.Tensor, out: torch.Tensor) -> None:
        fused_summarise(logits, ways, out)
        out[-1, summaries.LARGEST] = 0

    assert not summaries.agree(deaf, DEVICE, num_vocab), "it misses what is no number"
