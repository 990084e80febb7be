"""The experiment on curves: whose bed a method gets, and what its ratios are."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.decoding.entrants import ALL, OURS, Runs, best_settings, entrants_of
from benchmarks.decoding.kept import KeptRows, Shelf
from benchmarks.decoding.simulated import _bytes_a_second, beds_of, prompts_of
from fakes.decoding import FakeTokenizer

from duodec.backends.curves import CostCurve
from duodec.backends.translation.wrapped import Wrapped
from duodec.core.drafters import DraftModel
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.traits import Widths
from duodec.llm import LLM
from duodec.testing import TableModel, TableTarget
from duodec_lab.bench.beds import Parts
from duodec_lab.bench.beds.host import HostPrices
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.shapes import Shape
from duodec_lab.bench.beds.simulated import SimulatedBed
from duodec_lab.bench.beds.virtual import PricedModel, StepTable
from duodec_lab.bench.recording import Conversation, record
from duodec_lab.bench.tasks import Prompt

CURVE = CostCurve.parse("1:8,2:10,3:13,4:16")
STEP_S = 0.5e-3
HOST = HostPrices(copy=1e-3)
MODEL = TableModel(num_vocab=128, order=1, seed=3)
NAMES = "sps:2@gpu,auto,auto+gpu,lookup:2@free"


def answered(
    sampling: SamplingParams,
    draft: DraftModel | None = None,
    names: str = NAMES,
    forgets: bool = False,
) -> tuple[Runs, list[Conversation]]:
    """Two prompts on a target that is padded to two rows, with a draft as good as it."""
    tokenizer = FakeTokenizer(tuple(bytes([i]) for i in range(128)), chat_template="{{ messages }}")
    parts = Parts(tokenizer, 2000, None, None, sampling, ())
    slow = PricedModel(MODEL.load(), StepTable(((1, 1.0), (2, 1.0))))
    padded = LatencyCurve(CURVE, 0.0, Shape("llama.cpp:2", Widths.only(2), has_branches=False))
    bed = SimulatedBed(parts, TableTarget(MODEL), slow, padded, HOST)
    beds = beds_of(bed, draft or MODEL.load(), STEP_S)
    runs = Runs(beds, entrants_of(names), forgets)
    engine = LLM(TableTarget(MODEL), tokenizer, 2000)
    prompts = [Prompt("qa", str(i), (f"qa {i}?", "and?"), None, None) for i in range(2)]
    found = list(record(engine, prompts, sampling, 25))
    for one in found:
        runs.answer(one, {turn.prompt_tokens + turn.answer: {} for turn in one.turns})
    return runs, found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_on_the_gpu_has_its_own_price_and_waits_for_no_padding(temperature: float) -> None:
    runs, found = answered(SamplingParams(temperature=temperature, seed=1))
    num_tokens = sum(len(turn.answer) - 1 for one in found for turn in one.turns)
    alone_s = num_tokens * (CURVE.seconds(1) + HOST.copy)
    sums = runs.of("sps:2@gpu", ALL).values()
    assert sum(one.num_tokens for one in sums) == num_tokens
    # every draft is right: 24 tokens after the first are 8 rounds of three
    seconds = num_tokens / 3 * (CURVE.seconds(3) + 3 * HOST.copy + 2 * STEP_S)
    assert sum(one.seconds for one in sums) == pytest.approx(seconds, rel=1e-9)
    speedup = runs.speedup("sps:2@gpu", ALL)
    assert speedup.value == pytest.approx(alone_s / seconds, rel=1e-9)
    assert speedup.num_prompts == 2  # its turns stay together
    assert speedup.low == pytest.approx(speedup.high, rel=1e-9)


def test_plain_decoding_without_us_is_not_padded() -> None:
    runs, _ = answered(SamplingParams(seed=1))
    alone_s = CURVE.seconds(1) + HOST.copy
    padded_s = CURVE.seconds(2) + 2 * HOST.copy
    assert runs.speedup("ar", "qa").value == pytest.approx(alone_s / padded_s, rel=1e-9)
    over = runs.default_over("ar", ALL)
    rates = [runs.speedup(name, ALL).value for name in ("auto", "ar")]
    assert over.value == pytest.approx(rates[0] / rates[1], rel=1e-9)


def test_a_bandwidth_is_read_as_it_is_written() -> None:
    assert _bytes_a_second("936GB/s") == 936e9
    assert 1 / _bytes_a_second("") == 0.0


def test_in_our_shape_a_draft_on_the_gpu_takes_turns() -> None:
    runs, _ = answered(SamplingParams(seed=1))
    # a pass of two rows and a step, for two tokens; with steps of a second it drafts none
    (speedup, slow) = (runs.speedup(name, ALL).value for name in ("auto+gpu", "auto"))
    round_s = CURVE.seconds(2) + 2 * HOST.copy + STEP_S
    most = 2 * (CURVE.seconds(1) + HOST.copy) / round_s
    assert 0.9 * most < speedup <= most
    assert speedup > 1.05 * slow


def test_kept_rows_draft_the_same(tmp_path: Path) -> None:
    def seconds(runs: Runs) -> list[float]:
        return [one.seconds for one in runs.of("auto+gpu", ALL).values()]

    plain = seconds(answered(SamplingParams(seed=1, temperature=0.0))[0])
    for expected in (True, False):  # computed, and then read from the file
        shelf = Shelf.of(tmp_path, "draft", "a pair")
        model = KeptRows(MODEL.load(), shelf.values, MODEL.num_vocab)
        num_kept = len(shelf.values)
        kept = seconds(answered(SamplingParams(seed=1, temperature=0.0), model)[0])
        assert kept == pytest.approx(plain, rel=1e-9)
        assert (len(shelf.values) > num_kept) == expected
        shelf.save()


def test_kept_rows_are_of_texts_that_are_read_whole() -> None:
    """Of a long text a draft model in parallel reads the end first, and its rows change with what
    it was asked for before."""

    class Told(Wrapped):
        is_alone = False

        def compute_alone(self, is_alone: bool) -> None:
            self.is_alone = is_alone

    model = Told(MODEL.load())
    KeptRows(model, {}, MODEL.num_vocab)
    assert model.is_alone


def test_what_users_have_waits_for_no_padding() -> None:
    runs, found = answered(SamplingParams(temperature=0.0), names="lookup:2,lookup:2@free")
    ours, free = (runs.of(name, ALL).values() for name in ("lookup:2", "lookup:2@free"))
    assert [one.num_tokens for one in ours] == [one.num_tokens for one in free]
    num_saved = sum(one.seconds for one in ours) - sum(one.seconds for one in free)
    num_alone = sum(1 for one in found for turn in one.turns for _ in turn.answer)
    assert 0 < num_saved < num_alone * (CURVE.seconds(2) - CURVE.seconds(1) + HOST.copy)


def test_settings_in_braces_are_one_entrant() -> None:
    found = entrants_of("lookup:{2:2,4}@free,sps:{1,8:0.75}@gpu,auto,ceiling")
    assert [(one.label, one.settings, one.bed) for one in found] == [
        ("ar", ("ar",), OURS),
        ("lookup@free", ("lookup:2:2", "lookup:4"), "@free"),
        ("sps@gpu", ("sps:1", "sps:8:0.75"), "@gpu"),
        ("auto", ("auto",), OURS),
        ("ceiling", ("auto",), "ceiling"),
    ]
    assert [one.label for one in found[1].alone] == ["lookup:2:2@free", "lookup:4@free"]


def test_the_best_setting_is_that_of_the_most_tokens_a_second() -> None:
    (entrant,) = (one for one in entrants_of("sps:{1,2,8}@gpu") if one.bed)
    tried, _ = answered(SamplingParams(seed=1), names="sps:1@gpu,sps:2@gpu,sps:8@gpu")
    rates = {one.settings[0]: tried.rate(one.label) for one in entrant.alone}
    (best,) = best_settings(tried, [entrant])
    assert best.label == "sps@gpu"
    assert best.settings == (max(rates, key=lambda name: rates[name]),)
    assert len(set(rates.values())) == 3


def test_cold_nothing_is_known_of_the_prompt_before() -> None:
    names, sampling = "recycling:7@free,ar", SamplingParams(temperature=0.0)
    (warm, _), (cold, found) = (
        answered(sampling, names=names, forgets=forgets) for forgets in (False, True)
    )
    first, second = found[0].prompt.prompt_id, found[1].prompt.prompt_id
    sums = [run.of("recycling:7@free", ALL) for run in (warm, cold)]
    assert sums[0]["qa", first] == sums[1]["qa", first]
    assert sums[0]["qa", second].num_forwards < sums[1]["qa", second].num_forwards


def test_settings_are_chosen_on_other_prompts() -> None:
    reported, others = prompts_of(None, ["qa", "rag"], 2, 1, 0)
    assert [one.task for one in others] == ["qa", "rag"]
    assert not {one.prompt_id for one in reported} & {one.prompt_id for one in others}
