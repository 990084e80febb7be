"""A draft model with mask tokens: chains of guesses in one forward pass, checked by later ones."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from fakes.decoding import PROMPT, decode, plain_text
from fakes.masks import MASK, NUM_PARALLEL, MaskedModel

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.core.drafters import DraftRequest, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.core.traits import DraftTraits
from duodec.drafting.growth import Tree
from duodec.testing import InlineDrafter, TableModel, TableTarget

TABLE = TableModel(num_vocab=24, seed=9)
PLAN = Tree(least_confidence=0.0, num_candidates=3)


def text(*more: int) -> np.ndarray:
    return np.array([*PROMPT, *more], dtype=np.int32)


def grown(model: MaskedModel, tokens: np.ndarray, num_steps: int, plan: Tree = PLAN):
    steps = plan.grow(model, DraftRequest(0, tokens, plan, Sampler()))
    tree = next(steps)
    for _ in range(num_steps):
        tree = next(steps, tree)
    return tree


def measured() -> MaskedModel:
    """A model whose first forward pass, of one row alone, was under another text."""
    model = MaskedModel(TABLE)
    grown(model, text(2, 2), 1)
    model.queries.clear()
    return model


def greedy(num_tokens: int) -> list[int]:
    return plain_text(TABLE, SamplingParams(), num_tokens)


def best_path(tree: CandidateTree) -> list[int]:
    path, node = [], ROOT
    while tree.is_expanded(node):
        node = tree.children(node)[0]
        path.append(tree.tokens[node])
    return path


def test_one_forward_pass_drafts_a_chain_of_the_likeliest_tokens() -> None:
    model = measured()
    tree = grown(model, text(), 1)
    (query,) = model.queries
    assert query.draft.tokens == (MASK,) * (NUM_PARALLEL - 1)
    assert query.draft.parents == (-1, 0, 1)
    assert query.rows == (0, 1, 2, 3)
    assert best_path(tree) == greedy(NUM_PARALLEL)
    assert len(tree) == 3 * NUM_PARALLEL, "each with its alternatives"


def test_mask_tokens_come_after_leaves_alone_and_every_path_is_of_the_text_itself() -> None:
    model = MaskedModel(TABLE)
    tree = grown(model, text(), 12)
    paths = {tuple(tree.path_tokens(node)) for node in range(len(tree))} | {()}
    for query in model.queries:
        for node in range(-1, len(query.draft)):
            path = query.draft.path_tokens(node)
            told = tuple(takewhile(lambda token: token != MASK, path))
            assert told in paths
            assert set(path[len(told) :]) <= {MASK}
        assert len(set(query.rows)) == len(query.rows)
    # of what lies above a later leaf rows are taken too: no row under the text is of a guess alone
    exact = {
        tuple(query.draft.path_tokens(row - 1)) for query in model.queries for row in query.rows
    }
    for node in range(len(tree)):
        below = [child for child in tree.children(node) if tree.is_expanded(child)]
        if any(tuple(tree.path_tokens(child)) in exact for child in below):
            assert tuple(tree.path_tokens(node)) in exact


def test_the_place_that_a_text_reaches_by_a_guess_is_computed_first() -> None:
    model = measured()
    first = grown(model, text(), 1)
    tokens = best_path(first)[:2]
    model.queries.clear()
    tree = grown(model, text(*tokens), 0)
    assert len(tree) > 0, "what was guessed is kept"
    assert not model.queries
    tree = grown(model, text(*tokens), 1)
    assert model.queries[0].rows[0] == 0
    row = TABLE.logits(Context(text(*tokens)))
    found = {tree.tokens[child] for child in tree.children(ROOT)}
    assert set(np.argsort(-row)[:3].tolist()) <= found


@pytest.mark.parametrize(("mask_s", "length"), [(0.0, NUM_PARALLEL), (9.0, 1)])
def test_whether_chains_pay_is_learned_by_the_models_own_clock(mask_s: float, length: int) -> None:
    class Clocked(MaskedModel):
        traits = DraftTraits(has_clock=True, parallel=MaskedModel.traits.parallel)
        now_s = 0.0

        def clock(self) -> float:
            return self.now_s

        def rows(self, query: RowQuery) -> list[Row]:
            self.now_s += 1.0 + mask_s * query.draft.tokens.count(MASK)
            return super().rows(query)

    model = Clocked(TABLE)
    plan = Tree(least_confidence=0.0, num_candidates=3, max_expanded=400)
    grown(model, text(), 30, plan)
    masks = [query.draft.tokens.count(MASK) > 0 for query in model.queries[-12:]]
    assert masks.count(length > 1) > 8, "the other length is tried now and then"


def test_guesses_that_prove_wrong_are_not_made_for_long() -> None:
    """However sure they are: mask tokens cost next to nothing here, and bring nothing."""

    class Wrong(MaskedModel):
        traits = DraftTraits(has_clock=True, parallel=MaskedModel.traits.parallel)
        now_s = 0.0

        def clock(self) -> float:
            return self.now_s

        def rows(self, query: RowQuery) -> list[Row]:
            self.now_s += 1.0 + len(query.rows) / 10
            found = super().rows(query)
            return [
                -row if MASK in query.draft.path_tokens(number - 1) else row
                for row, number in zip(found, query.rows, strict=True)
            ]

    model, tokens = Wrong(TABLE), greedy(24)
    for length in range(24):  # texts that go on, each with a draft of its own
        grown(model, text(*tokens[:length]), 6)
    assert sum(MASK in query.draft.tokens for query in model.queries[-32:]) <= 3


def test_chains_keep_the_bounds_of_a_tree() -> None:
    model = MaskedModel(TABLE)
    plan = Tree(max_expanded=10, depth=3, least_confidence=0.0)
    *_, tree = plan.grow(model, DraftRequest(0, text(), plan, Sampler()))
    assert max(len(tree.path_tokens(node)) for node in range(len(tree))) == 3
    assert sum(tree.is_expanded(node) for node in range(len(tree))) <= 11  # and the root
    assert max(len(query.draft) for query in model.queries) <= 10


@pytest.mark.parametrize("name", ["sps", "pearl", "duo", "stream", "auto", "recycling"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_text_depends_on_the_guesses(name: str, temperature: float) -> None:
    target = TableModel(num_vocab=24, seed=7)
    params = SamplingParams(temperature=temperature, seed=5, repetition_penalty=1.1)
    drafter = InlineDrafter(MaskedModel(TableModel(num_vocab=24, seed=7, noise=0.4)))
    found, _ = decode(name, target=TableTarget(target), drafter=drafter, params=params)
    assert found == plain_text(target, params)
