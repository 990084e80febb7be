"""A draft model on the target's device drafts step by step in its thread, and ends no text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes.decoding import PROMPT, FakeTokenizer

from duodec.backends.drafter.in_turns import DrafterInTurns
from duodec.backends.translation.wrapped import Wrapped
from duodec.core.drafters import DraftModel, DraftRequest, RowQuery
from duodec.core.events import Finished
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.turns import InTurns
from duodec.drafting.growth import Tree
from duodec.drafting.plans import Chain
from duodec.llm import LLM
from duodec.machine.cores import CoreSharing
from duodec.testing import InlineDrafter, TableModel, TableTarget

TABLE = TableModel(seed=7)
DRAFT = replace(TABLE, noise=0.4)
TEXT = np.array(PROMPT, dtype=np.int32)


class Failing(Wrapped):
    """Fails from its ``num_good`` + 1st forward pass on."""

    def __init__(self, model: DraftModel, num_good: int) -> None:
        super().__init__(model)
        self.num_good, self.num_computes, self.num_freed = num_good, 0, 0
        self.forgotten: list[int] = []

    def rows(self, query: RowQuery) -> list[Row]:
        assert not self.num_freed, "it was freed"
        self.num_computes += 1
        if self.num_computes > self.num_good:
            raise RuntimeError("out of memory\nat some address")
        return self.model.rows(query)

    def free(self) -> None:
        self.num_freed += 1

    def forget(self, slot: int) -> None:
        self.forgotten.append(slot)
        super().forget(slot)


class Spare(InlineDrafter):
    """What drafts after a failure."""

    def __init__(self) -> None:
        super().__init__(DRAFT.load())
        self.num_submitted = 0

    def submit(self, request: DraftRequest) -> None:
        self.num_submitted += 1
        super().submit(request)

    def close(self) -> None: ...


def in_turns(model: Failing, spare: Spare, warnings: list[str]) -> DrafterInTurns:
    return DrafterInTurns(
        model, free=model.free, fall_back=lambda: spare, on_warning=warnings.append
    )


def test_nothing_is_computed_that_is_not_waited_for() -> None:
    model = Failing(DRAFT.load(), 1000)
    drafter = in_turns(model, Spare(), [])
    drafter.submit(DraftRequest(0, TEXT, InTurns(Tree())))
    assert not len(drafter.poll(0).draft)
    assert not drafter.heard(0).num_steps
    assert not model.num_computes
    one = drafter.poll(0, 1.0, beyond=0)
    assert one.tree is not None
    assert model.num_computes == 1  # a step, which is enough
    num = len(one.tree)
    assert drafter.poll(0, 1.0, beyond=num - 1).tree is one.tree  # it is there
    assert model.num_computes == 1
    drafter.poll(0, 1.0, beyond=num)
    assert model.num_computes == 2
    drafter.cancel(0)
    drafter.poll(0, 1.0, beyond=1000)
    assert model.num_computes == 2


def test_a_slot_that_gets_another_owner_is_forgotten() -> None:
    model = Failing(DRAFT.load(), 1000)
    drafter = in_turns(model, Spare(), [])
    told = []
    for slot in (0, 1):
        for owner in ("", "alice", "alice", "bob"):
            drafter.submit(DraftRequest(slot, TEXT, Chain(1), Sampler(), owner))
            drafter.poll(slot, 10.0)
            told.append(model.forgotten.count(slot))
    assert told == [0, 1, 1, 2] * 2


def test_it_drafts_what_its_twin_drafts_for_several_texts() -> None:
    drafter = in_turns(Failing(DRAFT.load(), 1000), Spare(), [])
    twin = InlineDrafter(DRAFT.load())
    for slot, plan in ((0, Chain(4)), (1, Tree(num_leaves=2, depth=3)), (0, Chain(2))):
        request = DraftRequest(slot, TEXT[slot:], plan)
        drafter.submit(request)
        twin.submit(request)
    for slot in (1, 0):
        own, other = drafter.poll(slot, 60.0), twin.poll(slot)
        assert own.is_complete
        assert own.draft == other.draft
        assert (own.tree is None) == (other.tree is None)
        if own.tree is not None and other.tree is not None:
            assert own.tree.tokens == other.tree.tokens
            assert own.tree.parents == other.tree.parents


@pytest.mark.parametrize("method", ["auto", "stream", "sps", "duo", "pearl"])
@pytest.mark.parametrize("num_good", [0, 7, 100_000])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_one_text_whatever_becomes_of_the_draft_model(
    method: str, num_good: int, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=60)
    model, spare, warnings = Failing(DRAFT.load(), num_good), Spare(), list[str]()
    tokenizer = FakeTokenizer(tuple(bytes([i]) for i in range(TABLE.num_vocab)))

    def engine(drafter: DrafterInTurns | None) -> LLM:
        turns = CoreSharing(takes_turns=lambda: drafter is not None and drafter.takes_turns)
        return LLM(TableTarget(TABLE), tokenizer, 500, drafter, cores=turns)

    def text(engine: LLM, method: str) -> tuple[int, ...]:
        *_, last = engine.stream(list(PROMPT), params, method=method)
        assert isinstance(last, Finished)
        return last.tokens

    plain = text(engine(None), "ar")
    with in_turns(model, spare, warnings) as drafter:
        placed = engine(drafter)
        assert text(placed, method) == plain
        assert text(placed, method) == plain
        if num_good == 7 and method == "sps":  # it failed, and another one drafts
            assert len(warnings) == 1
            assert "out of memory" in warnings[0]
            assert "\n" not in warnings[0]
            assert model.num_freed == 1
            assert spare.num_submitted
            assert not drafter.takes_turns
    assert model.num_freed == 1
