"""Passes of one number of rows, where no device is: what is kept, cut and padded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from fakes.tiny_models import write_dense

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.padded import NUM_PIECE, LlamaPadded
from duodec.backends.llamacpp.row_choice import RowChoice
from duodec.backends.llamacpp.row_trial import RowTrial, try_rows
from duodec.cli.checks.pair import check_rows
from duodec.core.draft import Draft
from duodec.core.protocols import Query
from duodec.core.sampling import Sampler


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


def test_rows_are_chosen_by_their_price() -> None:
    cheap = {1: 1.0, 8: 1.01, 16: 1.04, 32: 1.3}
    assert RowChoice.of(cheap).num_rows == 16
    assert RowChoice.of({1: 1.0, 8: 1.2}).num_rows == 8
    assert RowChoice.of({1: 1.0, 8: 1.2, 16: 1.21, 32: 1.3}).num_rows == 16  # a plateau
    assert RowChoice.of({1: 1.0, 8: 1.08, 16: 1.15, 32: 1.25}).num_rows == 8
    dear = RowChoice.of({1: 1.0, 8: 2.5})
    assert (dear.num_rows, dear.price) == (None, 2.5)


def test_a_trial_of_fixed_rows_finds_nothing_that_moves(model: LlamaModel) -> None:
    trial = try_rows(model, num_rows=8, num_threads=1)
    assert trial.is_exact, trial.worst
    assert check_rows(trial, 8).verdict == "ok"


def test_what_moves_is_a_warning_with_a_remedy() -> None:
    found = check_rows(RowTrial({"2 rows": 0.001, "a tree": 0.02}), None)
    assert (found.verdict, found.remedy) == ("warn", "use --exact, which pads forward passes")
    assert "0.02 with a tree" in found.words
    assert "report it" in check_rows(RowTrial({"2 rows": 0.1}), 8).remedy
