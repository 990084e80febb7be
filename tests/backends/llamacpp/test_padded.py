"""Passes of one number of rows, where no device is: what is kept, cut and padded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.tiny_models import write_dense

from duodec.backends.llamacpp.checks.row_trial import RowTrial, try_rows
from duodec.backends.llamacpp.load import padded_rows
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import row_choice
from duodec.backends.llamacpp.target.chains import NUM_BATCH, LlamaChains
from duodec.backends.llamacpp.target.padded import NUM_PIECE, LlamaPadded
from duodec.backends.llamacpp.target.row_choice import WIDTHS, RowChoice, measure, most_rows
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.backends.placement import Placement
from duodec.cli.checks.pair import check_rows
from duodec.core.draft import Draft
from duodec.core.protocols import Query
from duodec.core.sampling.sampler import Sampler
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec.loading.load import load_target
from duodec.loading.resolve import check_torch, resolve_target


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("models") / "dense.gguf"
    with closing(LlamaModel(write_dense(path, kind="Q8_0", num_vocab=512), num_gpu_layers=0)) as m:
        yield m


@pytest.mark.parametrize("num_rows", [1, 8, 32, 64])
def test_a_pass_crosses_no_step_of_the_cells(num_rows: int) -> None:
    target = LlamaPadded.__new__(LlamaPadded)
    target.num_rows = num_rows

    def shown(position: int) -> int:
        return -(-(position + num_rows) // 256)

    for begin in range(600):
        room = target._room(begin)
        assert 1 <= room <= num_rows
        assert len({shown(begin + i) for i in range(room)}) == 1
        assert room == num_rows or shown(begin + room) > shown(begin)


def test_every_pass_has_one_number_of_rows_and_prompts_begin_at_multiples(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, int]] = []  # first position, tokens, rows
    decode = LlamaPadded._decode

    def spy(target: LlamaPadded, entries: list) -> None:  # type: ignore[type-arg]
        rows = sum(entry.row is not None for entry in entries)
        seen.append((entries[0].position, len(entries), rows))
        decode(target, entries)

    monkeypatch.setattr(LlamaPadded, "_decode", spy)
    text = np.random.default_rng(0).integers(0, 512, 2 * NUM_PIECE + 30).astype(np.int32)
    sampler = replace(Sampler(), num_prompt_tokens=NUM_PIECE + 20)
    with closing(LlamaPadded(model, num_rows=8, num_context=640, num_threads=1)) as target:
        for length, draft in ((NUM_PIECE + 20, (1, 2, 3)), (NUM_PIECE + 22, ()), (len(text), ())):
            target.score([Query(0, text[:length], Draft.chain(draft), sampler)])
        again = replace(sampler, num_prompt_tokens=len(text))
        target.score([Query(0, text, Draft(), again)])
    pieces = [one for one in seen if not one[2]]
    assert pieces == [
        (0, NUM_PIECE, 0), (NUM_PIECE, 19, 0), (NUM_PIECE, NUM_PIECE, 0), (2 * NUM_PIECE, 29, 0),
    ]  # fmt: skip
    passes = [one for one in seen if one[2]]
    assert {one[1:] for one in passes} == {(8, 8)}


@pytest.mark.parametrize(
    ("milliseconds", "wanted"),
    [
        ((10, 10, 10, 10, 10), 32),  # flat
        ((10, 10, 10.1, 10.2, 11.5), 16),
        ((10, 10.2, 10.3, 12, 14), 8),
        ((7.1, 8.5, 13.7, 13.8, 22.3), 4),  # as a consumer's card with a 4-bit model
        ((7.1, 9.5, 13.7, 13.8, 22.3), 2),
        ((10, 10.1, 20, 40, 80), 4),
    ],
)
def test_rows_are_chosen_by_the_tokens_a_second_that_they_yield(
    milliseconds: tuple[float, ...], wanted: int
) -> None:
    seconds = dict(zip(WIDTHS, milliseconds, strict=True))
    assert RowChoice.of(seconds).num_rows == wanted


@dataclass
class FakeDevice:
    """A clock that passes as passes of a given cost run, slowly at first and now and then."""

    milliseconds: dict[int, float]
    dice: random.Random
    disturbed: float = 0.3  # of all passes
    now: float = 0.0
    last: int = 0
    seen: list[int] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def run(self, num_rows: int) -> None:
        is_new = num_rows != self.last  # a graph is rebuilt, and replayed from the third time on
        is_disturbed = self.dice.random() < self.disturbed
        self.now += self.milliseconds[num_rows] * (3 if is_new or is_disturbed else 1)
        self.last = num_rows
        self.seen.append(num_rows)


def test_what_a_pass_costs_is_the_least_of_several_in_turn() -> None:
    costs = {2: 10.0, 4: 10.1, 8: 10.2, 16: 11.0, 32: 12.5}
    for seed in range(20):
        device = FakeDevice(costs, random.Random(seed))
        assert measure(device.run, WIDTHS, device) == pytest.approx(costs)
    calm = FakeDevice(costs, random.Random(0), disturbed=0)
    measure(calm.run, WIDTHS, calm)
    turns = [number for number, _ in groupby(calm.seen)]
    assert turns == [*WIDTHS] * 3, "interleaved"


def test_what_cannot_win_is_not_measured() -> None:
    device = FakeDevice({2: 10.0, 4: 13.5, 8: 60.0, 16: 900.0, 32: 9000.0}, random.Random(1))
    assert RowChoice.of(measure(device.run, WIDTHS, device)).num_rows == 2
    assert 16 not in device.seen


@pytest.mark.parametrize(("grouped", "most"), [(1, 64), (2, 32), (3, 16), (4, 16), (5, 8), (16, 8)])
def test_rows_are_no_more_than_a_tile_of_attention_has(grouped: int, most: int) -> None:
    model = LlamaModel.__new__(LlamaModel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaModel, "num_grouped_heads", grouped)
        assert most_rows(model) == most


def test_a_choice_is_kept_for_the_content_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for its name or its times: a copy has the same rows, another model has its own."""
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    costs = iter([{2: 1.0, 4: 1.0}, {2: 1.0, 4: 2.0}])
    monkeypatch.setattr(row_choice, "measured", lambda *_, **__: next(costs))

    def chosen(name: str, scale: float) -> int:
        path = write_dense(tmp_path / name, kind="Q8_0", num_vocab=512, scale=scale)
        with closing(LlamaModel(path, num_gpu_layers=0)) as model:
            return row_choice.choice_for(model, num_threads=1).num_rows

    assert chosen("one.gguf", 1.0) == 4
    assert chosen("again.gguf", 1.0) == 4, "measured once"
    assert chosen("one.gguf", 2.0) == 2, "another model of the same size"


def test_rows_are_of_a_device(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadOption, match=r"rows is 8, and a CPU's forward"):
        load_target(resolve_target(EngineConfig(str(model.path), draft=None, rows=8)))
    with pytest.raises(BadOption, match=r"rows is 8, which only llama\.cpp"):
        check_torch(EngineConfig(rows=8))
    for wrong in (1, 65):
        with pytest.raises(BadOption, match=rf"rows is {wrong}; use 2 to 64"):
            EngineConfig(rows=wrong)
    said: list[str] = []
    monkeypatch.setattr(LlamaModel, "placement", Placement.ELSEWHERE)
    monkeypatch.setattr(LlamaModel, "num_grouped_heads", 7)
    assert padded_rows(EngineConfig(rows=8), model, said.append) == 8
    assert not said
    assert padded_rows(EngineConfig(rows=16), model, said.append) == 16
    assert "flash attention computes 8 at once" in said[0]


@pytest.mark.parametrize("is_width_exact", [True, False])
def test_a_device_is_asked_for_one_shape_of_pass(
    model: LlamaModel, is_width_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is drafted, accepted and refused: two slots, together or in turn."""
    shapes: list[tuple[int, int]] = []  # tokens, rows of logits
    target = LlamaTarget(
        model, num_context=400, num_threads=1, num_slots=2, num_rows=8,
        is_width_exact=is_width_exact,
    )  # fmt: skip
    decode = LlamaChains._decode

    def spy(target: LlamaChains, entries: list) -> None:  # type: ignore[type-arg]
        shapes.append((len(entries), sum(entry.row is not None for entry in entries)))
        decode(target, entries)

    monkeypatch.setattr(LlamaChains, "_decode", spy)
    dice = np.random.default_rng(1)
    texts = [dice.integers(0, 512, 40).astype(np.int32) for _ in range(2)]
    sampler = replace(Sampler(), num_prompt_tokens=40)
    with closing(target):
        for _ in range(30):
            drafts = [Draft.chain(dice.integers(0, 512, dice.integers(0, 12))) for _ in texts]
            queries = [Query(i, texts[i], drafts[i], sampler) for i in range(2)]
            found = target.score(queries)
            for i, (scores, draft) in enumerate(zip(found, drafts, strict=True)):
                assert scores.num_rows == 1 + min(len(draft), 7)
                taken = draft.tokens[: int(dice.integers(0, scores.num_rows))]
                texts[i] = np.append(texts[i], np.array([*taken, 3], dtype=np.int32))
    passes = {shape for shape in shapes if shape[1]}
    assert passes == ({(8, 8)} if is_width_exact else {(16, 16)})


def test_a_prompt_of_a_shared_pass_can_be_abandoned_and_is_read_on_from_there(
    model: LlamaModel,
) -> None:
    class Gone(Exception):
        pass

    def gone() -> None:
        raise Gone

    text = np.random.default_rng(3).integers(0, 512, NUM_BATCH + 40).astype(np.int32)
    options: Any = {"num_context": 700, "num_threads": 1, "num_slots": 2, "num_rows": 8}
    options["is_width_exact"] = False
    with closing(LlamaTarget(model, **options)) as target:
        (expected,) = target.score([Query(0, text)])
        wanted = expected.row_logits(0).copy()
    with closing(LlamaTarget(model, **options)) as shared:
        shared.score([Query(1, text[:50])])
        shared.on_chunk = gone
        with pytest.raises(Gone):
            shared.score([Query(0, text), Query(1, text[:50])])
        shared.on_chunk = lambda: pytest.fail("it is read again")
        (found,) = shared.score([Query(0, text)])
        assert (found.row_logits(0) == wanted).all()


def test_candidates_of_a_device_outlive_the_next_pass(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = np.random.default_rng(4).integers(0, 512, 20).astype(np.int32)
    query = Query(0, text, Draft.chain([5, 6]), num_candidates=4)
    after = replace(query, text=np.append(text, np.int32(7)))
    with closing(LlamaTarget(model, num_context=400, num_threads=1, num_rows=4)) as target:
        assert not target.traits.keeps_candidates, "on a CPU to find them later saves nothing"
    monkeypatch.setattr(LlamaModel, "placement", Placement.ELSEWHERE)
    with closing(LlamaTarget(model, num_context=400, num_threads=1, num_rows=4)) as target:
        assert target.traits.keeps_candidates
        assert target.traits.max_draft == 3, "the rest of a longer chain would be cut"
        (scores,) = target.score([query])
        wanted = [scores.candidates(row) for row in range(3)]
        kept = [scores.keep(row) for row in range(3)]
        target.score([after])
        assert [scores.candidates(row) for row in range(3)] != wanted, "the rows lie in one place"
        assert [find() for find in kept] == wanted


@pytest.mark.parametrize("num_rows", [2, 8])
def test_shared_passes_give_what_a_text_gets_alone(model: LlamaModel, num_rows: int) -> None:
    dice = np.random.default_rng(2)
    texts = [dice.integers(0, 512, 20 + 30 * i).astype(np.int32) for i in range(3)]
    options: Any = {"num_context": 400, "num_threads": 1, "num_rows": num_rows}
    with (
        closing(LlamaChains(model, num_slots=3, **options)) as shared,
        closing(LlamaChains(model, num_slots=1, **options)) as alone,
    ):
        for _ in range(4):
            drafts = [Draft.chain(dice.integers(0, 512, i)) for i in range(3)]
            queries = [Query(i, texts[i], drafts[i]) for i in range(3)]
            for query, scores in zip(queries, shared.score(queries), strict=True):
                (own,) = alone.score([replace(query, slot=0)])
                assert isinstance(scores, LlamaScores)
                assert isinstance(own, LlamaScores)
                assert (np.array(scores.rows) == np.array(own.rows)).all()
            texts = [np.append(text, np.int32(9)) for text in texts]


def test_a_trial_of_fixed_rows_finds_nothing_that_moves(model: LlamaModel) -> None:
    trial = try_rows(model, num_rows=8, num_threads=1, num_context=1100)
    assert trial.is_exact, trial.worst
    assert {f"another place among rows after {n} tokens" for n in (100, 1000)} <= set(trial.moved)
    assert check_rows(trial, 8, is_fast=False).verdict == "ok"


def test_a_trial_finds_a_place_that_moves_a_row(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = LlamaPadded._rows

    def moving(target: LlamaPadded, begun: Any) -> list[np.ndarray]:
        found = rows(target, begun)
        return [*found[:7], *(row + 1e-6 for row in found[7:])]  # the last one of eight

    monkeypatch.setattr(LlamaPadded, "_rows", moving)
    trial = try_rows(model, num_rows=8, num_threads=1, num_context=1100)
    assert trial.worst[0].startswith("another place")


def test_what_moves_is_a_warning_with_a_remedy() -> None:
    found = check_rows(RowTrial({"2 rows": 0.001, "a tree": 0.02}), 8, is_fast=True)
    assert (found.verdict, found.remedy) == ("warn", "leave --fast out")
    assert "0.02 with a tree" in found.words
    found = check_rows(RowTrial({"2 rows": 0.1}), 8, is_fast=False)
    assert found.remedy.startswith("try fewer --rows, and report it")
