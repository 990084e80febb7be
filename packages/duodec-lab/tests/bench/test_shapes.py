"""The shapes of backends on the bed, and what the host's work costs there."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.decoding import Session, decode_rounds, plain_text

from duodec.backends.curves import CostCurve, published
from duodec.backends.llamacpp.target.width_choice import WIDTHS
from duodec.backends.widths.choice import WidthChoice
from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec.errors import BadOption
from duodec.methods.registry import METHODS, method
from duodec.testing import TableModel, TableTarget
from duodec_lab.bench.beds.host import HostPrices, on_rows
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.shapes import TORCH_WIDTHS, TREE, Shape
from duodec_lab.bench.beds.virtual import (
    PricedModel,
    SimulatedDrafter,
    SimulatedTarget,
    StepTable,
    VirtualClock,
)
from duodec_lab.bench.plan import BenchPlan

MODEL = TableModel(num_vocab=64, seed=3)
PROMPT = [3, 1, 4, 1, 5]
STEPS = StepTable.parse("1:2,8:6")
SLOPE = CostCurve.parse("1:10,2:12,81:170")
PRICES = HostPrices(copy=1 / 1024, draw=1 / 512, candidates=1 / 256, selection=1 / 128)


def shape(text: str, curve: CostCurve = SLOPE) -> Shape:
    return Shape.parse(text, curve)


def test_a_tree_has_as_many_rows_as_are_wanted() -> None:
    assert shape("tree") == TREE
    assert shape("chain").cut(Draft((1, 2, 3), (-1, 0, 0))).tokens == (1, 2)
    assert shape("chain").seconds(SLOPE, 7) == SLOPE.seconds(7)
    assert [TREE.num_computed(n) for n in (1, 7, 81)] == [1, 7, 81]
    assert TREE.seconds(SLOPE, 7) == SLOPE.seconds(7)


def test_torch_takes_passes_of_one_number_of_rows() -> None:
    torch = shape("torch:32")
    assert torch.widths == Widths.only(32)
    assert (torch.has_branches, torch.draws_on_device) == (True, True)
    assert [torch.num_computed(n) for n in (1, 32, 33, 81)] == [32, 32, 64, 96]
    assert torch.seconds(SLOPE, 1) == torch.seconds(SLOPE, 32) == SLOPE.seconds(32)
    assert torch.seconds(SLOPE, 81) == 3 * SLOPE.seconds(32)
    assert shape("torch:64").seconds(SLOPE, 40) == SLOPE.seconds(64)
    both = shape("torch:8+16")
    assert [both.num_computed(n) for n in (1, 9, 17)] == [8, 16, 24]


def test_torch_has_the_rows_that_it_would_choose() -> None:
    assert shape("torch").widths == Widths.only(8), "rows cost nearly as much as passes"
    assert shape("torch", published()["rtx4090-8b-bf16"]).widths == Widths.only(32)
    assert shape("torch", CostCurve.parse("10")).widths == Widths.only(32), "flat"


def test_the_rows_of_torch_are_those_of_the_backend() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from duodec_torch import width_choice
    from duodec_torch.checkpoint import memory

    assert width_choice.WIDTHS == TORCH_WIDTHS
    assert memory.Extent.on("cuda", 0).num_rows == max(TORCH_WIDTHS), "memory is estimated by it"


@pytest.mark.parametrize("name", sorted(published()))
def test_llama_cpp_has_the_rows_that_it_would_choose(name: str) -> None:
    curve = published()[name]
    seconds = {n: curve.seconds(n) for n in WIDTHS}
    choice = WidthChoice(seconds, seconds, [(n,) for n in WIDTHS])
    chosen = shape("llama.cpp", curve)
    assert chosen.widths == choice.widths == Widths.only(choice.fastest)
    assert not chosen.has_branches


def test_copies_of_rows_count_where_rows_are_chosen() -> None:
    flat = CostCurve.parse("4")
    assert Shape.parse("llama.cpp", flat).widths.most == 32
    assert Shape.parse("llama.cpp", flat, 1e-4).widths.most == 7


def test_widths_that_agree_pad_to_the_next_of_them() -> None:
    found = shape("llama.cpp:4+1+2")
    assert found.widths == Widths((1, 2, 4))
    assert [found.num_computed(n) for n in (1, 2, 3, 4)] == [1, 2, 4, 4]
    assert found.seconds(SLOPE, 1) == SLOPE.seconds(1)
    assert found.max_draft == 3
    assert "1, 2 or 4 rows a pass" in found.words


def test_fixed_rows_are_chains_that_are_cut() -> None:
    fixed = shape("llama.cpp:4")
    assert not fixed.has_branches
    assert fixed.cut(Draft.chain((1, 2, 3, 4, 5))).tokens == (1, 2, 3)
    assert fixed.cut(Draft((1, 2, 3), (-1, -1, 0))).tokens == (1,)
    assert (fixed.max_draft, shape("chain").max_draft, shape("torch").max_draft) == (3, 80, 80)
    assert fixed.seconds(SLOPE, 1) == fixed.seconds(SLOPE, 4) == SLOPE.seconds(4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "torch:",
        "torch:x",
        "tree:8",
        "chain:8",
        "llama.cpp:0",
        "llama.cpp:129",
        "llama.cpp:1+",
        "llama.cpp:1,2",
        "torch:-1",
    ],
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="simulate-as is"):
        shape(text)
    with pytest.raises(BadOption, match="simulate-as is"):
        BenchPlan(methods=("ar",), simulate_ms=25.0, simulate_as=text)


def test_prices_are_read_as_they_are_written() -> None:
    prices = HostPrices.parse("draw:120, copy:8")
    assert (prices.copy, prices.draw, prices.candidates) == pytest.approx((8e-6, 120e-6, 0))
    assert str(prices) == "copy:8,draw:120,candidates:0,selection:0,between:0,handover:300"
    assert HostPrices.parse(str(prices)) == prices
    assert HostPrices.parse("0") == HostPrices()
    priced = HostPrices.parse("draw:1,heads:1500")
    assert priced.heads == pytest.approx(0.0015)
    assert HostPrices.parse(str(priced)) == priced


@pytest.mark.parametrize(
    "text", ["", "copy", "copy:x", "copy:-1", "copy:nan", "row:3", "copy:1,copy:2"]
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="host-us"):
        HostPrices.parse(text)
    with pytest.raises(BadOption, match="host-us"):
        BenchPlan(methods=("ar",), simulate_ms=25.0, host_us=text or "x")


def test_only_a_simulation_has_them() -> None:
    with pytest.raises(BadOption, match="simulate-as is of a simulation"):
        BenchPlan(methods=("ar",), replay_ms=25.0, simulate_as="torch")
    with pytest.raises(BadOption, match="host-us is of a simulation"):
        BenchPlan(methods=("ar",), host_us="0")


def target_of(text: str, host: HostPrices, num_tokens: int = 40) -> SimulatedTarget:
    said = plain_text(MODEL, SamplingParams(), num_tokens, PROMPT)
    recording = np.array([*PROMPT, *said], dtype=np.int32)
    latency = LatencyCurve(SLOPE, shape=shape(text))
    return SimulatedTarget(TableTarget(MODEL), recording, latency, VirtualClock(), host=host)


def test_what_the_host_does_is_charged() -> None:
    bed = target_of("tree", PRICES)
    text = bed.recording[:10]
    right, wrong = int(bed.recording[10]), int(bed.recording[10]) ^ 1
    (scores,) = bed.score([Query(0, text, Draft((right, wrong), (-1, -1)), num_candidates=8)])
    after = SLOPE.seconds(3) + 3 * PRICES.copy + PRICES.selection
    assert bed.clock() == pytest.approx(after)
    scores.draw(0)
    scores.candidates(1)
    scores.candidates(2)  # a refused row that teaches
    assert bed.clock() == pytest.approx(after + PRICES.draw + 2 * PRICES.candidates)


def test_what_a_device_does_is_not() -> None:
    bed = target_of("torch:32", PRICES)
    text, token = bed.recording[:10], int(bed.recording[10])
    (scores,) = bed.score([Query(0, text, Draft((token,), (-1,)), num_candidates=8)])
    scores.draw(0)
    scores.candidates(1)
    assert bed.clock() == pytest.approx(SLOPE.seconds(32) + PRICES.selection)


def test_padding_is_copied_too() -> None:
    bed = target_of("llama.cpp:8", PRICES)
    bed.score([Query(0, bed.recording[:10])])
    assert bed.clock() == pytest.approx(SLOPE.seconds(8) + 8 * PRICES.copy)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("text", ["tree", "chain", "torch", "llama.cpp:8", "llama.cpp:1+2+8"])
def test_every_method_says_the_same_on_every_shape(name: str, text: str) -> None:
    bed = target_of(text, PRICES)
    assert bed.traits.has_branches == (text in ("tree", "torch"))
    model = PricedModel(TableModel(num_vocab=64, seed=3, noise=0.3).load(), STEPS)
    session = Session(
        bed,
        PROMPT,
        len(bed.recording),
        SimulatedDrafter(model, bed.clock),
        Sampler(SamplingParams(), 0, len(PROMPT)),
        clock=bed.clock,
    )
    rounds = list(decode_rounds(method(name), session))
    assert np.array_equal(session.text, bed.recording)
    assert sum(done.end_s - done.start_s for done in rounds) <= bed.clock()
    if text.startswith("llama.cpp"):
        assert all(done.num_accepted <= 7 for done in rounds)


def test_prices_are_measured_on_the_targets_rows() -> None:
    found = on_rows(TableTarget(MODEL), 64, lambda place: sum(range(200)))
    assert all(
        0 < price < 0.1 for price in (found.copy, found.draw, found.candidates, found.selection)
    )
