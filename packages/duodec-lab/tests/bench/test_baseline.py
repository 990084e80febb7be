"""Every table says what 1.00 is: the curve, the shape, and the padding."""

from __future__ import annotations

import dataclasses

import pytest
from fakes.runs import run

from duodec.backends.curves import CostCurve, published
from duodec_lab.bench.beds.shapes import Shape
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.reports.baseline import baseline_words, unpadded_share
from duodec_lab.bench.reports.measures import measure
from duodec_lab.bench.reports.sentences import verdict
from duodec_lab.bench.reports.tables import paper_table

CURVE = CostCurve.parse("1:6,4:8,8:10")


def settings(shape: str) -> dict[str, object]:
    return {"curve": CURVE.as_json(), "simulate_as": shape, "host_us": "copy:100,draw:0"}


def test_the_curve_the_shape_and_the_padding_are_named() -> None:
    words = baseline_words(settings("llama.cpp: chains, 4 rows a pass"))
    assert words == (
        "1.00 is plain decoding where a forward pass costs 1:6,4:8,8:10, in the shape of "
        "llama.cpp: chains, 4 rows a pass, padded: 8 ms, of one row 6"
    )
    assert baseline_words(settings("tree: trees, as many rows as wanted")).endswith(", unpadded")
    assert baseline_words({"curve": None}) == ""
    assert "shape" not in baseline_words({"curve": CURVE.as_json()})  # a replay has none


def test_what_padding_costs_is_taken_off() -> None:
    # of 10 ms a token 2 are of padding, and 0.3 of rows that are copied for nothing
    chains = settings("llama.cpp: chains, 4 rows a pass")
    trees = settings("torch: trees, 4 rows a pass")
    assert unpadded_share(chains, 0.010) == pytest.approx(0.77)
    assert unpadded_share(trees, 0.010) == pytest.approx(0.8)
    for none in (settings("tree: trees, as many rows as wanted"), {"curve": None}):
        assert unpadded_share(none, 0.010) is None
    assert unpadded_share(trees, None) is None


@pytest.mark.parametrize("name", sorted(published()))
def test_a_card_is_simulated_in_the_shape_of_its_backend(name: str) -> None:
    plan = BenchPlan(methods=("ar",), simulate_ms=name)
    assert plan.latency().shape.name == ("torch" if "bf16" in name else "llama.cpp")


def test_numbers_are_no_card() -> None:
    for given in ("25", "1:6,4:8"):
        assert Shape.usual(CostCurve.parse(given)) == "tree"
    assert Shape.usual(CostCurve.parse("roofline:1008GB/s,165TFLOPS,4.7GB")) == "llama.cpp"
    assert Shape.usual(CostCurve.parse("roofline:1008GB/s,165TFLOPS,4.7GB,16bit")) == "torch"
    named = BenchPlan(methods=("ar",), simulate_ms="rtx4090-8b-q4_0", simulate_as="tree")
    assert named.latency().shape.name == "tree"


def test_the_first_table_says_what_is_over_unpadded_plain_decoding() -> None:
    padded = settings("torch: trees, 4 rows a pass")
    found = run(num_prompts=10)
    results = dataclasses.replace(found, settings={**found.settings, **padded})
    (measures,) = measure(results)
    share = measures.unpadded_share
    assert share is not None
    table = paper_table(measures)
    assert table.head[-1] == "all tasks, over unpadded plain decoding"
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert cells[measures.baseline][-1] == f"{share:.2f}x"
    ratio = measures.of("duo").ratio
    assert ratio
    assert cells["duo"][-2:] == [f"{ratio.value:.2f}x", f"{share * ratio.value:.2f}x"]
    assert "times unpadded plain decoding" in verdict(measures)
    (plain,) = measure(found)
    assert paper_table(plain).head[-1] == "all tasks"
