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

from duodec.backends.torch import kernels, layouts, pick_kernel, picking
from duodec.backends.torch.attention import Scoring
from duodec.backends.torch.draws import draw
from duodec.backends.torch.pick_kernel import fused_pick
from duodec.core.draft import Draft
from duodec.core.protocols import Query
from duodec.core.sampling import Sampler, SamplingParams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets use the kernels on the CPU too."""

    def split_layouts(network: object, num_slots: int, num_region: int, *_: object) -> object:
        return layouts.SplitLayouts(num_slots, num_region)

    monkeypatch.setattr("duodec.backends.torch.target.exact_layouts", split_layouts)


@pytest.fixture(autouse=True)
def _products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter lacks what CUDA's library has."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(pick_kernel, "mul_rn", lambda a, b: a * b)


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


@pytest.mark.parametrize("shape", [(2, 2, 8), (1, 7, 64), (4, 1, 80), (2, 4, 128), (1, 4, 256)])
def test_the_kernels_compute_what_the_oracle_does(shape: tuple[int, int, int]) -> None:
    for num_rows, num_splits in ((5, 2), (32, 3)):
        of = {"num_rows": num_rows, "num_splits": num_splits}
        assert kernels.check(*shape, torch.float32, DEVICE, **of) < 2e-6
        assert kernels.check(*shape, torch.float16, DEVICE, **of) < 2e-3


@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 1, 20, 80, 100, 300, 5000])
def test_the_kernels_score_as_the_oracle_does(window: int | None, cap: float | None) -> None:
    for sinks in (None, torch.tensor([[0.5, -2.0], [3.0, 30.0]])):
        scoring = Scoring(0.3, window, cap, sinks)
        of = {"num_rows": 10, "num_splits": 3, "scorings": [scoring]}
        assert kernels.check(2, 2, 8, torch.float32, DEVICE, **of) < 2e-6


def test_results_that_are_no_numbers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.Rowwise, "attend", lambda self, query, *_: query * torch.nan)
    of = {"num_rows": 5, "num_splits": 1, "scorings": [Scoring(0.3), Scoring(0.3, 20)]}
    assert np.isnan(kernels.check(2, 2, 8, torch.float32, DEVICE, **of))


def test_the_check_stays_within_a_short_context() -> None:
    assert kernels.check(2, 2, 8, torch.float32, DEVICE, num_rows=5, num_splits=1) < 2e-6


@pytest.mark.parametrize("kind", ["llama", *WINDOWED])
@pytest.mark.parametrize("length", [1, 80, 337, 593])
def test_rows_through_the_kernels_are_the_models(kind: str, length: int) -> None:
    target = target_of(kind, num_context=700, num_rows=8)
    text, draft = random_text(length), random_tree(np.random.default_rng(length), 3, 4)
    (rows,) = logits(target, query_of(text, draft, num_prompt=max(1, length - 1)))
    assert np.abs(rows.numpy() - oracle_rows(kind, text, draft)).max() < 2e-4


@pytest.mark.usefixtures("_rows_alone")
@pytest.mark.parametrize(
    ("kind", "length", "has_own_layers"),
    [
        ("llama", 30, False),
        ("llama", 334, True),
        ("gemma2", 334, False),
        ("gemma3_text", 90, False),
    ],
)
def test_a_row_has_the_bits_of_plain_decoding(
    monkeypatch: pytest.MonkeyPatch, kind: str, length: int, has_own_layers: bool
) -> None:
    name = "duodec.backends.torch.network.gains_by_fusing"
    monkeypatch.setattr(name, lambda device: not has_own_layers)
    target = target_of(kind, num_context=700, num_rows=8)
    text, draft = random_text(length), Draft.sequences([[1, 2, 3], [4, 5]])
    (rows,) = logits(target, query_of(text, draft, num_prompt=length))
    for node in range(len(draft)):
        path = draft.path_tokens(node)
        for i in range(len(path)):
            (alone,) = logits(target, query_of([*text, *path[: i + 1]], num_prompt=length))
        assert torch.equal(alone[0], rows[node + 1])


@pytest.mark.usefixtures("_rows_alone")
def test_several_slots_have_the_bits_of_one() -> None:
    target = target_of("llama", num_context=400, num_slots=2, num_rows=8)
    queries = [
        query_of(random_text(n, n), Draft.sequences([[1, 2], [3]]), num_prompt=n - 1, slot=slot)
        for slot, n in enumerate((40, 350))
    ]
    for query, rows in zip(queries, logits(target, *queries), strict=True):
        (alone,) = logits(target_of("llama", num_context=400, num_rows=8), query)
        assert torch.equal(rows, alone)


def test_kernels_that_cannot_be_used_cost_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        device = torch.device("cuda")
        dtype, num_kv_heads, group, head_size = torch.float32, 2, 2, 8
        scorings = (Scoring(0.3),)

    for outcome in (lambda *shape, **of: 0.3, lambda *shape, **of: 1 / 0):
        warnings: list[str] = []
        monkeypatch.setattr(kernels, "check", outcome)
        found = layouts.exact_layouts(OnGpu(), 1, 512, 32, warnings.append)  # type: ignore[arg-type]
        assert isinstance(found, layouts.BlockLayouts)
        assert len(warnings) == 1
        assert warnings[0].startswith("Triton's attention is off")
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(kernels, "check", lambda *shape, **of: asked.append(of) or 0.0)
    found = layouts.exact_layouts(OnGpu(), 1, 512, 32, warnings.append)  # type: ignore[arg-type]
    assert isinstance(found, layouts.SplitLayouts)
    wanted = {"num_rows": 32, "num_splits": 2, "scorings": OnGpu.scorings}
    assert asked == [wanted], "what is checked is what runs"


# --- draws


def some_rows(num_rows: int, num_vocab: int) -> tuple[torch.Tensor, ...]:
    """Logits, some of them equal, some rows with few that are not banned; and how to draw them."""
    maker = torch.Generator().manual_seed(num_vocab)
    logits = 4 * torch.randn((num_rows, num_vocab), generator=maker)
    logits[1::4] = logits[1::4].half().float()
    logits[2::4, :-2] = -torch.inf
    logits[3::4] = 0
    inverse = 0.3 + 2 * torch.rand((num_rows, 1), generator=maker)
    halves = [torch.randint(1 << 32, (num_rows, 1), generator=maker) for _ in range(2)]
    return tuple(part.to(DEVICE) for part in (logits, inverse, *halves))


@pytest.mark.parametrize(("num_rows", "num_vocab"), [(5, 1), (4, 2047), (4, 2048), (8, 50_000)])
def test_the_draws_kernel_has_the_bits_of_its_oracle(num_rows: int, num_vocab: int) -> None:
    asked = some_rows(num_rows, num_vocab)
    tokens, margins = picking.pick(*asked)
    found, found_margins = fused_pick(*asked)
    assert torch.equal(found, tokens)
    assert torch.equal(found_margins, margins)


def test_draws_through_the_kernel_are_numpys() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(-2, 2.2, (4, 30_000)).astype(np.float32)
    for params in (
        SamplingParams(temperature=0.8, seed=5),
        SamplingParams(temperature=1.3, min_p=0.02, seed=6),
        SamplingParams(temperature=0.7, presence_penalty=0.5, logit_bias={7: 30.0}, seed=7),
    ):
        query = Query(0, np.array([5], dtype=np.int32), Draft.chain([5, 6, 5]), Sampler(params))
        logits = torch.as_tensor(rows.copy()).to(DEVICE)
        found = draw(logits, [query], lambda tensor: tensor.cpu().numpy(), fused_pick)
        for row in range(4):
            wanted = query.sampler.draw(rows[row].copy(), query.context(row))
            assert (found.tokens[row], found.margins[row]) == (wanted.token, wanted.margin)


def test_a_draws_kernel_that_is_wrong_costs_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        type = "cuda"

    for agreement in (lambda *_: False, lambda *_: 1 / 0):
        warnings: list[str] = []
        monkeypatch.setattr(picking, "_agree", agreement)
        assert picking.picker(OnGpu(), warnings.append) is picking.pick  # type: ignore[arg-type]
        assert [line.startswith("Triton's draw is off") for line in warnings] == [True]
    monkeypatch.setattr(picking, "_agree", lambda *_: True)
    assert picking.picker(OnGpu(), warnings.append) is fused_pick  # type: ignore[arg-type]


def test_the_check_of_the_draws_kernel_can_fail() -> None:
    assert picking._agree(fused_pick, DEVICE)
    assert not picking._agree(lambda x, t, low, high: fused_pick(x, t, high, low), DEVICE)
