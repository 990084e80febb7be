"""One target of llama.cpp: trees and chains in caches of its own, for several slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from duodec.backends.llamacpp.drafts.draft import LlamaDraftModel
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.backends.tree_cache import Entry
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.core.targets import Query
from duodec.core.traits import TargetCache
from duodec.errors import ComputeFailed
from duodec.models import resolve

TEXTS = [np.array(text, dtype=np.int32) for text in ([1, 2, 3, 4], [5, 6, 7], [8, 9])]
TREE = Draft((11, 12, 13), (-1, -1, 0))
CHAIN = Draft.chain([11, 12, 13])


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with closing(LlamaModel(resolve("smollm2-draft").path, num_gpu_layers=0)) as model:
        yield model


def test_company_and_branches_choose_the_cache(model: LlamaModel) -> None:
    with closing(LlamaTarget(model, num_slots=3, num_context=64, num_threads=1)) as target:
        trees = TargetCache(0, target.traits)
        chains = TargetCache(1, replace(target.traits, has_branches=False))
        found = {
            (slot, off_path, is_alone): target.cache_for(
                slot, reads_off_path=off_path, is_alone=is_alone
            )
            for slot in (0, 1)
            for off_path in (False, True)
            for is_alone in (False, True)
        }
        assert {key for key, cache in found.items() if cache == trees} == {
            (0, False, True), *((slot, True, alone) for slot in (0, 1) for alone in (False, True))
        }  # fmt: skip
        assert set(found.values()) == {trees, chains}
        assert target.traits.has_branches
    with closing(LlamaTarget(model, num_context=64, num_threads=1)) as target:
        alone = target.cache_for(0, reads_off_path=False, is_alone=False)
        assert alone == TargetCache(0, target.traits)


def test_rows_are_the_same_in_every_cache_and_company(model: LlamaModel) -> None:
    with closing(LlamaTarget(model, num_slots=3, num_context=64, num_threads=1)) as target:
        together = target.score(
            [
                Query(0, TEXTS[0], CHAIN, cache=1),
                Query(1, TEXTS[1], TREE, cache=0),
                Query(2, TEXTS[2], CHAIN, cache=1),
            ]
        )
        rows = [[row.copy() for row in _rows(scores)] for scores in together]
        assert [len(own) for own in rows] == [4, 4, 4]
        for slot, (text, draft) in enumerate(zip(TEXTS, (CHAIN, TREE, CHAIN), strict=True)):
            (alone,) = target.score([Query(slot, text, draft, cache=0)])
            for own, again in zip(rows[slot], _rows(alone), strict=True):
                np.testing.assert_array_equal(own, again)


def _rows(scores: object) -> list[np.ndarray]:
    assert isinstance(scores, LlamaScores)
    return scores.rows


def test_caches_that_are_opened_later_take_no_more_threads_than_the_others(
    model: LlamaModel,
) -> None:
    with closing(LlamaTarget(model, num_slots=3, num_context=64, num_threads=2)) as target:
        target.score([Query(1, TEXTS[0], cache=0)])
        assert target.trees(1).context.num_threads == 2  # nobody has said otherwise
        target.use_threads(1)
        target.score([Query(2, TEXTS[0], cache=0)])
        contexts = [target.trees(slot).context for slot in range(3)]
        assert [own.num_threads for own in contexts] == [1, 1, 1]
        assert [own.num_prompt_threads for own in contexts] == [1, 1, 1]


@pytest.mark.parametrize("num_slots", [1, 2])
@pytest.mark.parametrize("cache", [0, 1])
def test_a_slot_that_forgets_computes_anew(model: LlamaModel, num_slots: int, cache: int) -> None:
    """Of each cache that a text was in; other slots keep theirs."""
    text = np.arange(100, 140, dtype=np.int32)
    slots = range(num_slots)
    with closing(LlamaTarget(model, num_slots=num_slots, num_context=64, num_threads=1)) as target:

        def computed(slot: int) -> int:
            handles = [trees.context for trees in target._trees.values()]
            parts = [*handles, *([target._chains] if target._chains else [])]
            counts: list[int] = []
            with pytest.MonkeyPatch.context() as patch:
                for part in parts:
                    fill = part._batch.fill

                    def noted(entries: list[Entry], fill: Any = fill) -> None:
                        counts.append(len(entries))
                        fill(entries)

                    patch.setattr(part._batch, "fill", noted)
                target.score([Query(slot, text, cache=cache)])
            return sum(counts)

        for slot in slots:
            target.score([Query(slot, text, cache=cache)])
        assert [computed(slot) for slot in slots] == [1] * num_slots
        target.forget(0)
        assert [computed(slot) for slot in slots] == [len(text), *[1] * (num_slots - 1)]


@pytest.mark.parametrize("token", [-3, 999_999])
def test_a_token_that_does_not_exist_is_named(model: LlamaModel, token: int) -> None:
    text = np.array([1, 2, 3], dtype=np.int32)
    with closing(LlamaTarget(model, num_context=64, num_threads=1)) as target:
        with pytest.raises(ComputeFailed, match=f"holds the token {token}, and .* 49151; correct"):
            target.score([Query(0, text, Draft.chain([5, token]))])
        target.score([Query(0, text, Draft.chain([5]))])


def test_a_draft_that_forgets_reads_anew(model: LlamaModel) -> None:
    text = np.arange(100, 140, dtype=np.int32)
    drafting = LlamaDraftModel(model, num_context=256, num_threads=1, num_texts=2)
    with closing(drafting):

        def read(slot: int) -> int:
            before = drafting.num_computed
            drafting.rows(RowQuery(slot, text, Draft(), (0,)))
            return drafting.num_computed - before

        assert [read(0), read(1), read(0)] == [40, 40, 1]
        drafting.forget(0)
        assert [read(1), read(0), read(0)] == [1, 40, 1]
