"""Curves of a forward pass's cost: what is read, what is refused, and where figures come from."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest
from fakes.decoding import proven
from hypothesis import given
from hypothesis import strategies as st

from duodec.backends.curves import CostCurve, interpolated, published
from duodec.cli.app import run
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec_lab.bench.beds.virtual import StepTable
from duodec_lab.bench.plan import BenchPlan


def ms(curve: CostCurve, *rows: int) -> list[float]:
    return [curve.seconds(n) * 1e3 for n in rows]


def test_a_curve_is_linear_between_its_points_and_goes_on_as_at_its_end() -> None:
    curve = CostCurve.parse("8:95,1:47.6,4:64, 2:57")
    assert ms(curve, 1, 2, 3, 4, 6, 8) == pytest.approx([47.6, 57, 60.5, 64, 79.5, 95])
    assert ms(curve, 9, 80) == pytest.approx([95 + 7.75, 95 + 72 * 7.75])
    assert ms(CostCurve.parse("4:10,8:20"), 1, 3, 4) == [10, 10, 10]
    assert ms(CostCurve.parse("1:10"), 1, 300) == [10, 10]


def test_a_number_is_the_flat_limit_and_says_so() -> None:
    curve = CostCurve.parse("25")
    assert curve == CostCurve.parse(25.0) or ms(curve, 1, 81) == ms(CostCurve.parse(25.0), 1, 81)
    assert ms(curve, 1, 2, 81, 162) == [25, 25, 25, 50]
    assert "limit" in curve.origin
    assert curve.words == "25 ms (flat to 81 rows: a limit)"


def test_what_is_published_has_a_source_and_the_figures_of_the_threads() -> None:
    wanted = {"rtx3090-8b-q4_0", "rtx4090-8b-q4_0", "rtx4090-8b-bf16", "mi50-27b-q8_0"}
    assert wanted <= set(published())
    for name, curve in published().items():
        assert CostCurve.parse(name) is curve
        assert curve.text == name
        assert "github.com/" in curve.origin
        assert re.fullmatch(rf"{name} \(measured to \d+ rows\)", curve.words)
        assert curve.points[0][0] == 1
    ratio = {name: published()[name].seconds(8) / published()[name].forward_s for name in wanted}
    assert ratio["rtx3090-8b-q4_0"] == pytest.approx(2.15, abs=0.01)
    assert ratio["rtx4090-8b-bf16"] == pytest.approx(1.08, abs=0.01)
    assert ratio["mi50-27b-q8_0"] == pytest.approx(1.99, abs=0.01)
    mi50 = published()["mi50-27b-q8_0"]
    assert ms(mi50, 8, 9, 32, 33) == pytest.approx([94.5, 152.9, 168.5, 270.8])


def test_a_curve_says_from_where_on_it_is_a_model() -> None:
    record = json.loads(files("duodec.data").joinpath("curves.json").read_text("utf-8"))
    for name, known in record.items():
        last = max(rows for rows, _ in published()[name].points)
        assert ("model" in known) == (known["measured_rows"] < last), name
        assert f"measured to {known['measured_rows']} rows" in published()[name].origin


def test_a_roofline_reads_the_weights_once_until_arithmetic_takes_longer() -> None:
    curve = CostCurve.parse("roofline:1008GB/s,165TFLOPS,4.7GB")
    read, row = 4.7e9 / 1008e9, 2 * 4.7e9 * 8 / 4.5 / 165e12
    ridge = read / row
    assert 40 < ridge < 50
    assert curve.seconds(1) == curve.seconds(int(ridge)) == pytest.approx(read)
    assert curve.seconds(80) == pytest.approx(80 * row)
    assert "model" in curve.origin
    wide = CostCurve.parse("roofline:1.008TB/s,0.165PFLOP/s,4700MB,16bit")
    assert wide.seconds(80) == pytest.approx(read)
    slow = CostCurve.parse("roofline:100GB/s,0.01TFLOPS,1GB")
    assert slow.seconds(8) == pytest.approx(8 * slow.seconds(1))


@proven
@given(
    st.dictionaries(st.integers(1, 128), st.integers(0, 1000), min_size=1),
    st.integers(1, 300),
    st.integers(1, 300),
)
def test_no_curve_falls(points: dict[int, int], few: int, many: int) -> None:
    rows, costs = sorted(points), sorted(points.values())
    text = ",".join(f"{n}:{c / 8}" for n, c in zip(rows, costs, strict=True))
    curve = CostCurve.parse(text)
    few, many = min(few, many), max(few, many)
    assert curve.seconds(few) <= curve.seconds(many) + 1e-12
    for n, c in zip(rows, costs, strict=True):
        assert curve.seconds(n) == pytest.approx(c / 8e3)
    for known in published().values():
        assert known.seconds(few) <= known.seconds(many)


def test_costs_of_draft_steps_are_found_in_the_same_way() -> None:
    points = ((1, 1.0), (4, 2.0), (8, 6.0))
    for n in range(1, 20):
        assert StepTable(points).seconds(n) == interpolated(points, n)


BAD = {
    "-1": "use milliseconds, 0 or more",
    "nan": "use milliseconds",
    "inf": "use milliseconds",
    "rtx9999": "a published curve (rtx3090-8b-q4_0",
    "": "a published curve",
    "x,y": "a published curve",
    "1:10,2:9": "falls from 1 to 2 rows",
    "1:10,8:30,4:31": "falls from 4 to 8 rows",
    "1:10,1:11": "two costs of 1 rows",
    "1:x": "'1:x' is not ROWS:MS",
    "1:10,": "'' is not ROWS:MS",
    "0:10": "'0:10' is not a cost",
    "-2:10": "is not a cost",
    "1.5:10": "is not ROWS:MS",
    "1:nan": "is not a cost",
    "1:-3": "is not a cost",
    "roofline:1008GB/s": "bandwidth, arithmetic, bytes",
    "roofline:1008,165,4.7": "bandwidth, arithmetic, bytes",
    "roofline:0GB/s,165TFLOPS,4.7GB": "bandwidth, arithmetic, bytes",
    "roofline:1..8GB/s,165TFLOPS,4.7GB": "bandwidth, arithmetic, bytes",
    "roofline:1008GB/s,165TFLOPS,4.7GB,16bit,7": "bandwidth, arithmetic, bytes",
}


@pytest.mark.parametrize(("text", "words"), BAD.items())
def test_what_is_no_curve_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(BadOption) as error:
        CostCurve.parse(text, "target-ms")
    assert f"target-ms is {text or 'empty'}; " in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


COMMANDS = [
    ["bench", "--methods", "ar", "--simulate-ms"],
    ["bench", "--methods", "ar", "--replay-ms"],
    ["plan", "--target-ms"],
    ["generate", "hello", "--pace"],
    ["demo", "--pace"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join((c[0], c[-1])))
@pytest.mark.parametrize("text", ["1:10,2:9", "1:10,1:11", "1:x", "rtx9999", "roofline:1GB"])
def test_the_commands_refuse_it_in_one_line(
    command: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*command, text]
    if command[0] == "bench":
        arguments += ["--output", str(tmp_path / "out")]
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_plan_keeps_the_curve_and_what_it_is_worth() -> None:
    settings = BenchPlan(methods=("ar",), simulate_ms="mi50-27b-q8_0").settings("", "", [])
    assert settings["simulate_ms"] == "mi50-27b-q8_0"
    assert settings["curve"]["points_ms"][0] == [1, 47.6]
    assert "mx-llama.cpp" in settings["curve"]["origin"]
    assert "mi50-27b-q8_0 (measured" in settings["notes"][0]
    flat = BenchPlan(methods=("ar",), replay_ms="25").settings("", "", [])
    assert flat["replay_ms"] == 25.0
    assert "a limit" in flat["notes"][0]
    assert BenchPlan(methods=("ar",)).settings("", "", [])["curve"] is None


def test_a_pace_is_seconds_or_a_curve() -> None:
    assert EngineConfig().pace_curve is None
    assert EngineConfig(pace="0").pace_curve is None
    slow = EngineConfig(pace="0.05")
    assert slow.pace == 0.05
    assert slow.pace_curve is not None
    assert slow.pace_curve.seconds(1000) == 0.05
    stepped = EngineConfig(pace="mi50-27b-q8_0").pace_curve
    assert stepped is published()["mi50-27b-q8_0"]
    with pytest.raises(BadOption, match="pace is -1"):
        EngineConfig(pace=-1)
    with pytest.raises(BadOption, match="pace is 1:2,2:1; it falls"):
        EngineConfig(pace="1:2,2:1")


def test_a_record_of_a_curve_gives_the_curve_again() -> None:
    for name, curve in published().items():
        record = json.loads(json.dumps(curve.as_json()))
        again = CostCurve(tuple((rows, value / 1e3) for rows, value in record["points_ms"]), name)
        assert ms(again, 1, 7, 40, 200) == pytest.approx(ms(curve, 1, 7, 40, 200))
    for curve in published().values():
        assert all(a <= b for (_, a), (_, b) in pairwise(curve.points))


def test_a_curve_can_be_in_a_file_that_was_measured(tmp_path: Path) -> None:
    one = {"points": "1:5,8:6.5", "measured_rows": 8, "source": "a card, random weights"}
    file = tmp_path / "curves.json"
    file.write_text(json.dumps({"card-8b": one}))
    curve = CostCurve.parse(str(file))
    assert ms(curve, 1, 8) == [5, 6.5]
    assert "measured to 8 rows: a card" in curve.words
    assert CostCurve.parse(curve.text) == curve
    file.write_text(json.dumps({"card-8b": one, "card-7b": {**one, "points": "1:4"}}))
    assert ms(BenchPlan(simulate_ms=f"{file}:card-7b").latency().forward, 1) == [4]
    refused = {
        str(file): "choose from: card-8b, card-7b",
        f"{file}:other": "no curve 'other'",
        str(tmp_path / "none.json"): "cannot be read",
    }
    (tmp_path / "wrong.json").write_text('{"a": {"points": "1:5"}}')
    refused[str(tmp_path / "wrong.json")] = "is no file of curves"
    for given_text, words in refused.items():
        with pytest.raises(BadOption, match=words) as caught:
            CostCurve.parse(given_text, "simulate-ms")
        assert "\n" not in str(caught.value)
