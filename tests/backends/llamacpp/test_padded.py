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

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.checks.row_trial import RowTrial, try_rows
from duodec.backends.llamacpp.library import digest as library_digest
from duodec.backends.llamacpp.load import chosen_widths
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import width_choice
from duodec.backends.llamacpp.target.chains import NUM_BATCH, LlamaChains
from duodec.backends.llamacpp.target.padded import NUM_PIECE, LlamaPadded
from duodec.backends.llamacpp.target.padded_slots import LlamaPaddedSlots
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.backends.placement import Placement
from duodec.backends.widths.choice import WidthChoice, measure, measure_changing
from duodec.backends.widths.classes import agreeing, num_cells
from duodec.cli.checks.pair import check_rows
from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec.errors import BadOption
from duodec.loading import backends
from duodec.loading.config import EngineConfig
from duodec.loading.load import load_target
from duodec.loading.resolve import resolve_target


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("models") / "dense.gguf"
    with closing(LlamaModel(write_dense(path, kind="Q8_0", num_vocab=512), num_gpu_layers=0)) as m:
        yield m


@pytest.mark.parametrize("each", [(1,), (8,), (32,), (64,), (1, 2, 4), (3, 5, 6, 8), (1, 16, 32)])
def test_a_pass_crosses_no_step_of_the_cells(each: tuple[int, ...]) -> None:
    target = LlamaPadded.__new__(LlamaPadded)
    target.widths = Widths(each)
    most = each[-1]

    def shown(position: int) -> int:
        """To a row, whatever the width of its pass."""
        return -(-(position + most) // 256)

    for begin in range(600):
        room = target._room(begin)
        assert 1 <= room <= most
        assert len({shown(begin + i) for i in range(room)}) == 1
        assert room == most or shown(begin + room) > shown(begin)
        for num_tokens in range(1, room + 1):
            width = target._width(begin, num_tokens)
            assert width in each
            assert width >= num_tokens
            assert -(-(begin + width) // 256) == shown(begin)
            if shown(begin) == -(-(begin + each[0]) // 256):
                assert width == target.widths.padded(num_tokens), "no more padding than needed"


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
    with closing(
        LlamaPadded(model, widths=Widths.only(8), num_context=1200, num_threads=1)
    ) as target:
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


MEASURED = (2, 4, 8, 16, 32)


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
    seconds = dict(zip(MEASURED, milliseconds, strict=True))
    choice = WidthChoice(seconds, seconds, [(n,) for n in MEASURED])
    assert choice.widths == Widths.only(wanted)
    assert choice.fastest == wanted


@pytest.mark.parametrize(
    ("classes", "wanted"),
    [
        ([(1, 2, 4), (8, 16)], (1, 2, 4)),  # plain decoding pays for no padding
        ([(1, 2), (4,), (8, 16)], (4,)),
        ([(1,), (2, 4, 8, 16)], (2, 4, 8, 16)),
        ([(1,), (16,)], (1,)),
    ],
)
def test_of_widths_that_agree_the_best_class_is_chosen(
    classes: list[tuple[int, ...]], wanted: tuple[int, ...]
) -> None:
    seconds = {1: 6.6, 2: 7.1, 4: 8.5, 8: 13.7, 16: 15.0}
    assert WidthChoice(seconds, seconds, classes).widths == Widths(wanted)


def test_one_width_is_kept_where_another_costs_a_graph() -> None:
    seconds = {1: 6.6, 2: 7.1, 4: 8.5}
    changing = {n: each + 4 for n, each in seconds.items()}
    assert WidthChoice(seconds, changing, [(1, 2, 4)]).widths == Widths.only(4)
    device = FakeDevice(seconds, random.Random(0), disturbed=0)
    found = measure_changing(device.run, (1, 2, 4), device)
    assert found == pytest.approx({n: 3 * each for n, each in seconds.items()})


def classes_of(
    model: LlamaModel, widths: tuple[int, ...], depths: tuple[int, ...], **options: Any
) -> list[tuple[int, ...]]:
    most = max(widths)
    target = LlamaPadded(
        model, widths=Widths(widths), num_context=num_cells(depths, most), num_threads=1
    )
    with closing(target):
        return agreeing(target, widths, model.num_vocab, depths=depths, **options)


def test_widths_that_agree_are_found_by_computing_them(model: LlamaModel) -> None:
    assert classes_of(model, (1, 2, 5, 8), (100, 300)) == [(1, 2, 5, 8)]


@pytest.mark.parametrize(
    ("moves", "wanted"),
    [
        (lambda width, row: 0, [(1, 2, 3, 5, 8)]),
        (lambda width, row: width > 4, [(1, 2, 3), (5, 8)]),
        (lambda width, row: width == 1, [(1,), (2, 3, 5, 8)]),
        (lambda width, row: width == 8 and row == 6, [(1, 2, 3, 5)]),
        (lambda width, row: width == 3 and row == 1, [(1, 2, 5, 8)]),
        (lambda width, row: width, [(1,), (2,), (3,), (5,), (8,)]),
    ],
)
def test_a_width_whose_rows_move_is_in_no_class_with_others(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch, moves: Any, wanted: list[tuple[int, ...]]
) -> None:
    rows = LlamaPadded._rows

    def moving(target: LlamaPadded, begun: Any) -> list[np.ndarray]:
        places = range(begun.first_row, begun.first_row + 1 + begun.num_drafted)
        found = zip(rows(target, begun), places, strict=True)
        return [row + np.float32(1e-3 * moves(begun.num_rows, place)) for row, place in found]

    monkeypatch.setattr(LlamaPadded, "_rows", moving)
    assert classes_of(model, (1, 2, 3, 5, 8), (100,)) == wanted


def test_a_slow_device_is_tried_at_fewer_depths(model: LlamaModel) -> None:
    looks = iter((0.0, 30.0))  # and no third one
    found = classes_of(model, (1, 2), (100, 300), clock=lambda: next(looks))
    assert found == [(1, 2)]


def test_a_text_has_the_same_rows_in_each_width_of_a_class(model: LlamaModel) -> None:
    """Drafts of any length, accepted and refused, across the cells that a pass is shown more of."""
    dice = np.random.default_rng(3)
    text = dice.integers(0, 512, 300).astype(np.int32)
    sampler = replace(Sampler(), num_prompt_tokens=240)
    widths: list[int] = []

    def rows_of(target: LlamaPadded, num_drafted: list[int]) -> list[np.ndarray]:
        found, end = [], 240
        for num in num_drafted:
            right = text[end : end + num // 2].tolist()
            wrong = dice.integers(0, 512, num - num // 2).tolist()
            (scores,) = target.score([Query(0, text[:end], Draft.chain(right + wrong), sampler)])
            assert isinstance(scores, LlamaScores)
            kept = min(len(right) + 1, scores.num_rows)  # a step of the cells cuts a chain
            found += [row.copy() for row in scores.rows[:kept]]
            end += kept
        return found

    def target_of(each: tuple[int, ...]) -> LlamaPadded:
        return LlamaPadded(model, widths=Widths(each), num_context=400, num_threads=1)

    with closing(target_of((1, 2, 4, 8))) as target:
        take_pass = target._pass

        def noted(slot: int, begin: int, tokens: list[int]) -> int:
            widths.append(take_pass(slot, begin, tokens))
            return widths[-1]

        target._pass = noted  # type: ignore[method-assign, assignment]
        drafted = rows_of(target, [0, 1, 3, 7, 2, 0, 5, 6, 1, 0, 4])
    with closing(target_of((8,))) as target:
        plain = rows_of(target, [0] * len(drafted))
    assert set(widths) == {1, 2, 4, 8}
    assert (np.array(drafted) == np.array(plain)).all()


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
        assert measure(device.run, MEASURED, device) == pytest.approx(costs)
    calm = FakeDevice(costs, random.Random(0), disturbed=0)
    measure(calm.run, MEASURED, calm)
    turns = [number for number, _ in groupby(calm.seen)]
    assert turns == [*MEASURED] * 3, "interleaved"


def test_what_cannot_win_is_not_measured() -> None:
    device = FakeDevice({2: 10.0, 4: 13.5, 8: 60.0, 16: 900.0, 32: 9000.0}, random.Random(1))
    seconds = measure(device.run, MEASURED, device)
    assert WidthChoice(seconds, seconds, [(2,), (4,)]).widths.most == 2
    assert 16 not in device.seen


def test_a_choice_is_kept_for_the_content_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for its name or its times: a copy has the same rows, another model has its own."""
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    classes = [(2,), (4,)]
    found = iter(
        [
            WidthChoice({2: 1.0, 4: 1.0}, {}, classes),
            WidthChoice({2: 1.0, 4: 2.0}, {}, classes),
        ]
    )
    monkeypatch.setattr(width_choice, "measured", lambda *_: next(found))

    def chosen(name: str, scale: float) -> int:
        path = write_dense(tmp_path / name, kind="Q8_0", num_vocab=512, scale=scale)
        with closing(LlamaModel(path, num_gpu_layers=0)) as model:
            return width_choice.choice_for(model, num_threads=1).widths.most

    assert chosen("one.gguf", 1.0) == 4
    assert chosen("again.gguf", 1.0) == 4, "measured once"
    assert chosen("one.gguf", 2.0) == 2, "another model of the same size"


def test_a_choice_is_kept_for_the_content_of_the_libraries(tmp_path: Path) -> None:
    """One version sums otherwise with other options, another compiler or changed sources."""

    def build(name: str, cuda: bytes) -> str:
        folder = tmp_path / name
        folder.mkdir()
        for file in ("libggml-cuda.so", "libggml-cuda.so.0"):  # a wheel has no links
            (folder / file).write_bytes(cuda)
        (folder / "libllama.so").write_bytes(b"llama")
        (folder / "another.so").write_bytes(name.encode())
        return library_digest(folder)

    plain = bytes(1 << 20)
    assert build("one", plain) == build("installed again", plain)
    assert build("changed", plain[:-1] + b"1") != library_digest(tmp_path / "one")


def test_another_build_has_a_choice_of_its_own(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = width_choice._key(model)
    monkeypatch.setattr(library, "digest", lambda folder: "another")
    assert width_choice._key(model) != first


def test_rows_are_of_a_device(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadOption, match=r"rows is 8, and a CPU's forward"):
        load_target(resolve_target(EngineConfig(str(model.path), draft=None, rows=8)))
    with pytest.raises(BadOption, match=r"rows is 8, which only llama\.cpp"):
        backends.named("torch").check(EngineConfig(rows=8))
    for wrong in (1, 65):
        with pytest.raises(BadOption, match=rf"rows is {wrong}; use 2 to 64"):
            EngineConfig(rows=wrong)
    monkeypatch.setattr(LlamaModel, "placement", Placement.ELSEWHERE)
    assert chosen_widths(EngineConfig(rows=8), model) == (Widths.only(8), {})


@pytest.mark.parametrize("is_width_exact", [True, False])
def test_a_device_is_asked_for_one_shape_of_pass(
    model: LlamaModel, is_width_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is drafted, accepted and refused: two slots, together or in turn."""
    shapes: list[tuple[int, int]] = []  # tokens, rows of logits
    target = LlamaTarget(
        model, num_context=400, num_threads=1, num_slots=2, widths=Widths.only(8),
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
    options: Any = {"num_context": 700, "num_threads": 1, "num_slots": 2, "widths": Widths.only(8)}
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
    with closing(
        LlamaTarget(model, num_context=400, num_threads=1, widths=Widths.only(4))
    ) as target:
        assert not target.traits.keeps_candidates, "on a CPU to find them later saves nothing"
    monkeypatch.setattr(LlamaModel, "placement", Placement.ELSEWHERE)
    with closing(
        LlamaTarget(model, num_context=400, num_threads=1, widths=Widths.only(4))
    ) as target:
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


def reused(model: LlamaModel, target: LlamaPadded) -> int:
    """Graphs of a context that llama.cpp used again."""
    return int(model.lib.llama_perf_context(target.handle).n_reused)


def test_requests_that_alternate_keep_their_graphs(model: LlamaModel) -> None:
    options: Any = {"num_context": 400, "num_threads": 1}
    with closing(LlamaPaddedSlots(2, model, widths=Widths.only(8), **options)) as target:
        texts = [np.arange(40 + slot, dtype=np.int32) for slot in range(2)]
        sampler = replace(Sampler(), num_prompt_tokens=40)
        target.score([Query(slot, texts[slot], sampler=sampler) for slot in range(2)])
        before = [reused(model, each) for each in target._texts]
        for number in range(20):
            slots = (number % 2,) if number < 10 else (0, 1)  # in turn, and at once
            for slot in slots:
                texts[slot] = np.append(texts[slot], np.int32(7))
            target.score([Query(slot, texts[slot], sampler=sampler) for slot in slots])
        after = [reused(model, each) for each in target._texts]
    assert [b - a for a, b in zip(before, after, strict=True)] == [15, 15]


def test_texts_of_several_slots_have_the_rows_that_each_has_alone(model: LlamaModel) -> None:
    dice = np.random.default_rng(2)
    options: Any = {"widths": Widths((1, 4, 8)), "num_context": 400, "num_threads": 1}
    texts = [dice.integers(0, 512, 20 + 30 * i).astype(np.int32) for i in range(3)]
    samplers = [replace(Sampler(), num_prompt_tokens=len(text)) for text in texts]
    with (
        closing(LlamaPaddedSlots(3, model, **options)) as shared,
        closing(LlamaPaddedSlots(1, model, **options)) as alone,
    ):
        for _ in range(4):
            drafts = [Draft.chain(dice.integers(0, 512, 2 * i)) for i in range(3)]
            parts = zip(range(3), texts, drafts, samplers, strict=True)
            queries = [Query(*part) for part in parts]
            for query, scores in zip(queries, shared.score(queries), strict=True):
                assert scores.query.slot == query.slot  # type: ignore[attr-defined]
                (own,) = alone.score([replace(query, slot=0)])
                assert scores.num_rows == own.num_rows
                for row in range(own.num_rows):
                    assert (scores.row_logits(row) == own.row_logits(row)).all()
            texts = [np.append(text, np.int32(9)) for text in texts]
        shared.forget(1)
        assert [shared.num_held(i, texts[i]) > 0 for i in range(3)] == [True, False, True]


def test_a_trial_of_fixed_rows_finds_nothing_that_moves(model: LlamaModel) -> None:
    trial = try_rows(model, widths=Widths.only(8), num_threads=1, num_context=1100)
    assert trial.is_exact, trial.worst
    assert {f"another place among rows after {n} tokens" for n in (100, 1000)} <= set(trial.moved)
    found = check_rows(trial, Widths.only(8), [(1, 2, 4), (3,), (8, 12)], is_fast=False)
    assert found.verdict == "ok"
    assert found.words.endswith("8 rows a forward pass (widths that agree: 1, 2, 4; 3; 8, 12)")


def test_a_trial_finds_a_place_that_moves_a_row(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = LlamaPadded._rows

    def moving(target: LlamaPadded, begun: Any) -> list[np.ndarray]:
        found = rows(target, begun)
        return [*found[:7], *(row + 1e-6 for row in found[7:])]  # the last one of eight

    monkeypatch.setattr(LlamaPadded, "_rows", moving)
    trial = try_rows(model, widths=Widths.only(8), num_threads=1, num_context=1100)
    assert trial.worst[0].startswith("another place")


def test_what_moves_is_a_warning_with_a_remedy() -> None:
    found = check_rows(RowTrial({"2 rows": 0.001, "a tree": 0.02}), Widths.only(8), is_fast=True)
    assert (found.verdict, found.remedy) == ("warn", "leave --fast out")
    assert "0.02 with a tree" in found.words
    found = check_rows(RowTrial({"2 rows": 0.1}), Widths.only(8), is_fast=False)
    assert found.remedy.startswith("try fewer --rows, and report it")
