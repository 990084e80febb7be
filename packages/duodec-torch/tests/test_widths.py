"""Widths that agree on torch: found by computing them, chosen by their cost, with one text each.

On the CPU, whose passes stand in for a card's; what a card's kernels move is injected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")

import torch
from fakes.torch_models import logits, query_of, random_text, random_tree, target_of

from duodec.backends.widths.choice import TREES, WidthChoice
from duodec.backends.widths.classes import agreeing, num_cells
from duodec.core.draft import Draft
from duodec.core.traits import Widths
from duodec.loading.config import EngineConfig
from duodec_torch import load as loading
from duodec_torch import width_choice
from duodec_torch.checkpoint.blueprint import Blueprint
from duodec_torch.checkpoint.model import TorchModel
from duodec_torch.checkpoint.placing import DevicePlacement
from duodec_torch.forward import network
from duodec_torch.forward.forwards import Forwards, InputRows
from duodec_torch.forward.layouts import BlockLayouts, Layout, SplitLayouts
from duodec_torch.target import TorchTarget
from duodec_torch.width_choice import WIDTHS, choice_for

CLASS = Widths(WIDTHS)
COSTS = {8: 10.0, 16: 10.3, 32: 12.5}  # as a 4090 with an 8B in BF16


def moving(monkeypatch: pytest.MonkeyPatch, moves: Callable[[int, int], float]) -> None:
    """Move the logits of a row by its place and the width of its pass, as a card's kernels may."""
    score = Forwards.score

    def moved(
        self: Forwards, inputs: InputRows, num_rows: int, layout: Layout, *, can_repeat: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found, summaries = score(self, inputs, num_rows, layout, can_repeat=can_repeat)
        by = torch.tensor([float(moves(num_rows, place)) for place in range(len(found))])
        return found + 1e-3 * by[:, None], summaries

    monkeypatch.setattr(Forwards, "score", moved)


def classes_of(depths: tuple[int, ...] = (100, 300)) -> list[tuple[int, ...]]:
    most = max(WIDTHS)
    target = target_of("llama", num_context=num_cells(depths, most), widths=CLASS)
    return agreeing(target, WIDTHS, 96, depths=depths)


@pytest.mark.parametrize(
    ("moves", "parts"),
    [
        (lambda width, place: width, [(8,), (16,), (32,)]),
        (lambda width, place: width == 8, [(8,), (16, 32)]),
        (lambda width, place: width == 32, [(8, 16), (32,)]),
        (lambda width, place: width == 16 and place == 15, [(8, 32)]),  # by its place: left out
        (lambda width, place: width == 32 and place == 3, [(8, 16)]),
        (lambda width, place: width == 8 and place == 7, [(16, 32)]),
    ],
)
def test_a_width_whose_rows_move_is_in_no_class_with_others(
    monkeypatch: pytest.MonkeyPatch, moves: Any, parts: list[tuple[int, ...]]
) -> None:
    """``parts``: of widths that agree unless they are moved."""
    agreed = classes_of((100,))
    moving(monkeypatch, moves)
    found = classes_of((100,))
    wanted = [tuple(sorted(set(part) & set(own))) for part in parts for own in agreed]
    assert found == sorted(filter(None, wanted))


def test_a_row_has_the_same_bits_in_each_width_of_a_class() -> None:
    """Trees of any size, accepted and refused."""
    classes = classes_of()
    assert sum(classes, ()), "some width does not depend on a row's place"
    dice, text = np.random.default_rng(0), random_text(400)
    for own in classes:
        target = target_of("llama", widths=Widths(own))
        plain = target_of("llama", widths=Widths.only(max(own)))
        for end in (120, 250, 300):
            draft = random_tree(dice, 9, 6)
            (rows,) = logits(target, query_of(text[:end], draft, num_prompt=100))
            for node in range(-1, len(draft), 5):
                branch = [*text[:end], *draft.path_tokens(node)]
                (alone,) = logits(plain, query_of(branch, num_prompt=100))
                assert torch.equal(rows[node + 1], alone[0])


def seen_widths(target: TorchTarget, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each pass from now on that continues a text."""
    seen: list[int] = []
    score = target._forwards.score

    def noted(inputs: InputRows, num_rows: int, *args: Any, **options: Any) -> Any:
        seen.append(num_rows)
        return score(inputs, num_rows, *args, **options)

    monkeypatch.setattr(target._forwards, "score", noted)
    return seen


def test_a_pass_is_padded_to_the_next_width(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama", widths=CLASS)
    text = random_text(60)
    logits(target, query_of(text[:50], num_prompt=50))
    seen = seen_widths(target, monkeypatch)
    for num_drafted in (0, 7, 8, 15, 16, 31, 32, 60):
        draft = Draft.chain([1] * num_drafted)
        logits(target, query_of(text[:51], draft, num_prompt=50))
    assert seen == [8, 8, 16, 16, 32, 32, 32, 8, 32, 32]
    assert target.traits.widths == CLASS


def test_each_width_is_warmed_and_so_has_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama", widths=CLASS)
    seen = seen_widths(target, monkeypatch)
    with target._queue.scope():
        target._warm_up()
    assert seen == list(WIDTHS) * len(target._recurring)


# --- the choice


@pytest.mark.parametrize(
    ("classes", "wanted"),
    [
        ([(8,), (16,), (32,)], (16,)),
        ([(8, 16), (32,)], (8, 16)),
        ([(8, 16, 32)], (8, 16, 32)),
        ([(8,), (32,)], (32,)),
    ],
)
def test_the_class_is_chosen_by_what_its_passes_cost(
    classes: list[tuple[int, ...]], wanted: tuple[int, ...]
) -> None:
    assert WidthChoice(COSTS, COSTS, classes, TREES).widths == Widths(wanted)


@pytest.fixture
def model(folder: Path) -> Iterator[TorchModel]:
    with closing(TorchModel(Blueprint.of(folder, device="cpu"))) as model:
        yield model


def test_a_choice_is_measured_once_for_a_model(
    model: TorchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    first = choice_for(model, 200)
    assert set(sum(first.classes, ())) <= set(first.seconds) <= set(WIDTHS)
    assert first.widths
    monkeypatch.setattr(width_choice, "measured", lambda *_: pytest.fail("measured anew"))
    assert choice_for(model, 200) == first


def test_a_choice_holds_for_the_kernels_that_it_was_made_with(
    model: TorchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton may stop compiling, or begin to, with the same versions of everything."""
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    made: list[WidthChoice] = []

    def measured(*_: object) -> WidthChoice:
        made.append(WidthChoice(COSTS, COSTS, [(8,), (16,), (32,)], TREES))
        return made[-1]

    def compiles(layers: bool, attention: bool) -> None:
        def fuse_layers(model: object) -> Callable[[], None]:
            if not layers:
                raise ImportError("no compiler")
            return lambda: None

        found = SplitLayouts(1, 512) if attention else BlockLayouts(512)
        monkeypatch.setattr(network, "fuse_layers", fuse_layers)
        monkeypatch.setattr(width_choice, "exact_layouts", lambda *_: found)

    monkeypatch.setattr(width_choice, "measured", measured)
    monkeypatch.setattr(network, "gains_by_fusing", lambda device: True)
    for number, (layers, attention) in enumerate(
        [(False, False), (True, False), (True, True), (False, True)], 1
    ):
        compiles(layers, attention)
        for _ in range(2):  # the second time it is kept
            choice_for(model, 200)
        assert len(made) == number


def test_a_card_has_the_chosen_widths_and_a_cpu_few_rows(
    model: TorchModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = WidthChoice(COSTS, COSTS, [(8, 16), (32,)], TREES)
    monkeypatch.setattr(loading, "choice_for", lambda model, num_context: chosen)
    config = EngineConfig(str(folder), draft=None, target_backend="torch", device="cpu")
    assert loading.chosen_widths(config, model, 200) == (Widths.only(8), {})
    monkeypatch.setattr(DevicePlacement, "is_on_cpu", False)
    assert loading.chosen_widths(config, model, 200) == (Widths((8, 16)), {8: 10.0, 16: 10.3})
    assert loading.chosen_widths(replace(config, fast=True), model, 200) == (Widths(), {})
