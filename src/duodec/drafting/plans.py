"""Define the shapes of drafts that a draft model makes, and how each one grows.

A plan is a small value that is sent to the drafter, where ``grow`` runs. Each yield is the tree so
far, and there is one forward pass of the draft model between two yields. The caller may stop at any
yield.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import DraftModel, DraftRequest, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling import noise
from duodec.core.sampling.grammar import GrammarEnded
from duodec.core.sampling.sampler import Context, Distribution
from duodec.core.verify import draw_from
from duodec.errors import BadOption

MAX_SEQUENCES = 8


def rows_after(
    model: DraftModel, request: DraftRequest, tree: Draft, nodes: list[int]
) -> list[tuple[Row, Context]]:
    """Return the logits after each node (ROOT: the text), with their contexts, from one batched
    forward pass."""
    rows = model.rows(RowQuery(request.slot, request.text, tree, tuple(n + 1 for n in nodes)))
    contexts = [Context(request.text, tuple(tree.path_tokens(node))) for node in nodes]
    return list(zip(rows, contexts, strict=True))


@dataclass(frozen=True)
class Chain:
    """Draft one sequence of the draft model's best guesses; with no tokens, only prefill the text.
    After a token that the draft model gives less than ``least``, drafting stops: llama.cpp's
    ``--draft-p-min``."""

    num_tokens: int
    least: float = 0.0

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft]:
        if self.num_tokens == 0:
            rows_after(model, request, Draft(), [])
        tree = Draft()
        for _ in range(self.num_tokens):
            ((row, context),) = rows_after(model, request, tree, [tree.leaf()])
            tokens, confidences = request.sampler.candidates(row, context, 1)
            tree = Draft.chain([*tree.tokens, int(tokens[0])])
            yield tree
            if confidences[0] < self.least:
                return


@dataclass(frozen=True)
class SampledChain:
    """Draft one sequence from the draft model's own distribution, which is returned with it."""

    num_tokens: int

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft]:
        tokens: list[int] = []
        distributions: list[Distribution] = []
        for _ in range(self.num_tokens):
            tree = Draft.chain(tokens)
            ((row, context),) = rows_after(model, request, tree, [tree.leaf()])
            try:
                distributions.append(request.sampler.distribution(row, context))
            except (BadOption, GrammarEnded):  # there is nothing to draw
                return
            tokens.append(
                draw_from(distributions[-1], request.sampler.key(context.position, noise.DRAFT))
            )
            yield Draft.chain(tokens, distributions)


@dataclass(frozen=True)
class Sequences:
    """Draft k sequences of equal length from a budget of tokens, with k by the uncertainty rule
    (2503.00784).

    Two tokens are drafted; theta is the likelihood of that path. Every other first token likelier
    than theta starts a sequence of its own: breadth is worth more than depth there.
    """

    num_tokens: int

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft]:
        if self.num_tokens == 0:
            return
        sampler = request.sampler
        ((row, context),) = rows_after(model, request, Draft(), [ROOT])
        firsts, likelihoods = sampler.candidates(row, context, MAX_SEQUENCES)
        tree = Draft.chain(firsts[:1].tolist())
        yield tree
        if self.num_tokens == 1:
            return
        ((row, context),) = rows_after(model, request, tree, [0])
        second, likelihood = sampler.candidates(row, context, 1)
        theta = likelihoods[0] * likelihood[0]
        num_sequences = 1 + int((likelihoods[1:] > theta).sum())
        num_sequences = min(num_sequences, self.num_tokens)
        length = self.num_tokens // num_sequences
        if length > 1:
            tree = Draft.chain([*tree.tokens, int(second[0])])
        tree = tree.graft(ROOT, Draft.sequences([[int(t)] for t in firsts[1:num_sequences]]))
        yield tree

        # The first sequence is a token ahead of the others.
        yield from _lengthened(model, request, tree, length)


@dataclass(frozen=True)
class Comb:
    """Draft a fixed number of sequences of a fixed length, however likely. Each step but the first
    expands all of them, which measures a step's cost by its leaves."""

    num_sequences: int
    length: int

    @property
    def num_tokens(self) -> int:
        return self.num_sequences * self.length

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft]:
        ((row, context),) = rows_after(model, request, Draft(), [ROOT])
        firsts, _ = request.sampler.candidates(row, context, self.num_sequences)
        tree = Draft.sequences([[int(token)] for token in firsts])
        yield tree
        yield from _lengthened(model, request, tree, self.length)


def _lengthened(
    model: DraftModel, request: DraftRequest, tree: Draft, length: int
) -> Iterator[Draft]:
    """Extend every sequence of the tree to ``length``, one token a step."""
    tips = [node for node in range(len(tree)) if node not in tree.parents]
    lengths = [len(tree.path(tip)) for tip in tips]
    while open_ := [i for i in range(len(tips)) if lengths[i] < length]:
        for i, (row, context) in zip(
            open_, rows_after(model, request, tree, [tips[i] for i in open_]), strict=True
        ):
            tokens, _ = request.sampler.candidates(row, context, 1)
            tree = tree.graft(tips[i], Draft.chain(tokens.tolist()))
            tips[i], lengths[i] = len(tree) - 1, lengths[i] + 1
        yield tree
