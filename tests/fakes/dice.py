"""Scripted dice: every outcome of a random procedure, once, with its exact probability.

`outcomes` runs a function again and again. Each run asks its dice for choices; the answers
are scripted depth first, so that all of them occur. `DistributionTable` is a model whose rows are
probabilities, and `DiceSampler` draws from such rows with the dice instead of noise. As with
keyed noise, a position is thrown once: the target's draws and the drafter's candidates there
share the throw.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import numpy as np
import pytest
from fakes.decoding import FixedBudget, Session, TickingClock, decode_rounds, noisy_text

from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import Drafted
from duodec.core.rows import Row
from duodec.core.sampling import noise
from duodec.core.sampling.grammar import GrammarEnded
from duodec.core.sampling.sampler import Context, Distribution, Draw, Sampler
from duodec.core.turns import InTurns
from duodec.core.verify import rejection, verify
from duodec.drafting import plans
from duodec.drafting.growth import Tree
from duodec.drafting.heads import Likeliest
from duodec.errors import BadOption
from duodec.methods.registry import Method
from duodec.methods.registry import method as method_named
from duodec.methods.request import NoDatastore, NoDrafter
from duodec.testing import InlineDrafter, TableModel, TableTarget

T = TypeVar("T")
Tokens = tuple[int, ...]
Rule = Callable[[Tokens], Sequence[int]]
ENDED, REFUSED = (-1,), (-2,)  # in place of a token where none is left to draw


class ScriptedDice:
    """Choices answered from a script, and with the first possible one after its end."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[tuple[int, int]] = []  # (which, out of how many) possible choices
        self.probability = 1.0
        self._cells: dict[int, int] = {}
        self._settled: list[int] = []

    def choice(self, probabilities: Sequence[float]) -> int:
        """An index; those of probability 0 never come."""
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        depth = len(self.taken)
        which = self._script[depth] if depth < len(self._script) else 0
        self.taken.append((which, len(possible)))
        self.probability *= probabilities[possible[which]]
        return possible[which]

    def cell(self, position: int, num_cells: int) -> int:
        """The throw of a position: made once, the same for all callers."""
        if position not in self._cells:
            self._cells[position] = self.choice([1 / num_cells] * num_cells)
        return self._cells[position]

    def pick(self, distribution: Distribution) -> int:
        """A token from ``distribution``, a throw of its own."""
        return int(distribution.tokens[self.choice(distribution.probs.tolist())])

    # --- what the rejection rule asks; each position is settled once, in order

    def accept(self, position: int, token: int, probability: float) -> bool:
        is_accepted = self.choice([1 - probability, probability]) == 1
        if is_accepted:
            self._settle(position)
        return is_accepted

    def draw(self, position: int, distribution: Distribution) -> int:
        self._settle(position)
        return self.pick(distribution)

    def _settle(self, position: int) -> None:
        assert not self._settled or position == self._settled[-1] + 1, "a position skipped"
        self._settled.append(position)


def outcomes(run: Callable[[ScriptedDice], T]) -> Iterator[tuple[float, T]]:
    """Every outcome of ``run`` with its probability."""
    script: list[int] = []
    while True:
        dice = ScriptedDice(script)
        result = run(dice)
        yield dice.probability, result
        taken = dice.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        script = [which for which, _ in taken]
        script[-1] += 1


def distribution_of(run: Callable[[ScriptedDice], T]) -> dict[T, float]:
    """The distribution of what ``run`` returns."""
    distribution: dict[T, float] = defaultdict(float)
    for probability, result in outcomes(run):
        distribution[result] += probability
    return dict(distribution)


def assert_same_distribution(found: Mapping[T, float], wanted: Mapping[T, float]) -> None:
    for outcome in {*found, *wanted}:
        difference = abs(found.get(outcome, 0.0) - wanted.get(outcome, 0.0))
        assert difference < 1e-12, f"{outcome}: {found.get(outcome)} is not {wanted.get(outcome)}"


@dataclass(frozen=True)
class DistributionTable(TableModel):
    """A model whose row is the distribution itself: a function of the last ``order`` tokens.

    Every probability is a multiple of 1 / ``num_cells``. ``rule`` says how many cells each token
    has after a prefix.
    """

    num_vocab: int = 4
    num_cells: int = 4
    order: int = 2
    rule: Callable[[Tokens], Sequence[int]] = lambda _: (1, 1, 1, 1)

    def cells(self, prefix: Sequence[int]) -> Sequence[int]:
        cells = self.rule(tuple(prefix[-self.order :]))
        assert len(cells) == self.num_vocab
        assert sum(cells) == self.num_cells
        return cells

    def logits(self, context: Context) -> Row:
        cells = self.cells(context.tokens().tolist())
        return np.array(cells, dtype=np.float32) / np.float32(self.num_cells)

    def product_distribution(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        mask: Rule = lambda answer: (1,) * 99,
        ends: Tokens = (),
    ) -> dict[Tokens, float]:
        """The distribution of the first tokens after a prompt, by multiplication. Where tokens are
        masked, the others share their part; where none is left, the text ends or is refused."""
        distribution = {(): 1.0}
        for _ in range(num_tokens):
            longer = {}
            for tokens, p in distribution.items():
                if tokens[-1:] in (ENDED, REFUSED):
                    longer[tokens] = p
                    continue
                cells = self.cells((*prompt, *tokens))
                kept = [count * may for count, may in zip(cells, mask(tokens), strict=False)]
                for token, count in enumerate(kept):
                    if count:
                        longer[(*tokens, token)] = p * count / sum(kept)
                if not sum(kept):
                    is_end = any(mask(tokens)[end] for end in ends)
                    longer[(*tokens, *(ENDED if is_end else REFUSED))] = p
            distribution = longer
        return distribution


@dataclass(frozen=True)
class RuleMask:
    """A mask by a rule of the answer; it may end where its rule allows an end token."""

    rule: Rule
    ends: tuple[int, ...] = ()

    def close(self) -> None:
        """It holds nothing."""

    def allowed(self, answer: np.ndarray) -> np.ndarray:
        return np.array(self.rule(tuple(answer.tolist())), dtype=bool)


@dataclass(frozen=True)
class ScriptedKey:
    """Stands where a noise key would: which position's dice are to be thrown."""

    dice: ScriptedDice


@dataclass(frozen=True)
class DiceSampler(Sampler):
    """Draws from rows that are distributions, by the throw of the position."""

    dice: ScriptedDice = field(default_factory=lambda: ScriptedDice(()))
    num_cells: int = 4
    end: int = sys.maxsize  # of the text, which heads may look beyond: nothing is thrown there

    def key(self, position: int, stream: int = noise.DRAW) -> ScriptedKey:
        assert stream == noise.DRAFT, "every other draw goes through the dice"
        return ScriptedKey(self.dice)

    def draw(self, row: Row, context: Context) -> Draw:
        return Draw(self._drawn(self._masked(row, context), context), float("inf"))

    def distribution(self, row: Row, context: Context) -> Distribution:
        row = self._masked(row, context)
        tokens = np.flatnonzero(row)
        return Distribution(tokens, row[tokens].astype(np.float64))

    def candidates(self, row: Row, context: Context, k: int):
        """The coupled guess first, then the others by probability."""
        if context.position >= self.end:
            return np.empty(0, dtype=np.int64), np.empty(0)
        with suppress(GrammarEnded, BadOption):
            row = self._masked(row, context)
        drawn = self._drawn(row, context)
        others = [t for t in np.argsort(-row, kind="stable").tolist() if t != drawn]
        tokens = np.array([drawn, *others][:k])
        return tokens, row[tokens].astype(np.float64)

    def _masked(self, row: Row, context: Context) -> Row:
        if self.mask is None:
            return row
        kept = row * self.mask.allowed(context.completion(self.num_prompt_tokens))
        if not kept.any():
            raise self.nothing_left(context)
        return kept / kept.sum()

    def _drawn(self, row: Row, context: Context) -> int:
        cell = self.dice.cell(context.position, self.num_cells)
        return int(np.searchsorted(np.cumsum(row), (cell + 0.5) / self.num_cells))


class WitnessDrafter(InlineDrafter):
    """An in-process drafter that remembers its drafts. While ``is_late``, a poll that does not
    wait sees the first step of a draft at most every other time, as with a drafter at work; in
    turns with the target, one that waits sees no more."""

    def __init__(self, model, *, is_late: bool = False) -> None:
        super().__init__(model)
        self.is_late = is_late
        self.is_in_turn = False
        self.drafts: list[Draft] = []
        self._num_polls = 0

    def submit(self, request) -> None:
        super().submit(request)
        self.is_in_turn = isinstance(request.plan, InTurns)
        self.drafts.append(self._drafted[request.slot].draft)

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None):
        drafted = super().poll(slot, wait_s, beyond)
        if self.is_late and (not wait_s or self.is_in_turn):
            self._num_polls += 1
            if drafted.tree is not None:  # in turns there are few polls: the first one is late
                is_seen = self._num_polls % 2 != self.is_in_turn
                return drafted if is_seen else Drafted(is_complete=False)
            num, whole = self._num_polls % 2, drafted.draft
            distributions = whole.distributions and whole.distributions[:num]
            draft = Draft.chain(whole.tokens[:num], distributions)
            return replace(drafted, draft=draft, is_complete=False)
        return drafted


class WitnessTarget(TableTarget):
    """A target that remembers how many drafts had been asked for at each forward pass."""

    def __init__(self, model, heads, drafter: WitnessDrafter) -> None:
        super().__init__(model, heads=heads)
        self._drafter = drafter
        self.num_drafts: list[int] = []

    def score(self, queries):
        self.num_drafts.append(len(self._drafter.drafts))
        return super().score(queries)


@dataclass(frozen=True)
class Case:
    """A target's table and a draft's, and how far to look."""

    name: str
    target: DistributionTable
    draft: DistributionTable
    num_tokens: int = 4  # whose distribution is compared
    room: int = 4  # tokens that the text may get
    budget: int = 6
    prompt: Tokens = (0, 1, 0, 1, 0)
    is_late: bool = False
    takes_turns: bool = False  # drafter and target, on the same cores
    mask: Rule | None = None  # by the completion so far
    ends: Tokens = ()  # tokens that end it, which the target's table bans
    has_heads: bool = False  # the target's own, which read the draft's table


@dataclass
class Witness:
    """What happened over all outcomes of a case."""

    num_accepted: int = 0
    num_scored: int = 0
    num_refused: int = 0
    longest: int = 0  # draft in a forward pass
    widest: int = 0  # sequences in a draft
    num_branches_taken: int = 0  # an alternative, not the likeliest sequence, went on
    num_contended: int = 0  # forward passes with the drafter at work, against its turn
    distribution: dict[Tokens, float] = field(default_factory=dict)


def instance(name: str, dice: ScriptedDice) -> Method:
    """The method of that name; its dice, if it has any, are ``dice``."""
    method = method_named(name)
    names = {f.name for f in fields(method) if f.init}
    if "dice" in names:
        method = replace(method, dice=dice)
    if "tree" in names:  # of the target's own heads
        method = replace(method, tree=Likeliest(num_tokens=6, num_leaves=2, num_candidates=2))
    if "plan" in names:  # every position that is drafted for is thrown: few of them
        method = replace(method, plan=Tree(num_leaves=2, num_candidates=2, max_expanded=3, depth=3))
    return method


def taught(name: str, case: Case) -> Method:
    """The method after two completions of the likeliest text, from the prompt and from a token
    less: it remembers them, and the target's rows."""
    method = instance(name, ScriptedDice(()))
    for prompt in (case.prompt, case.prompt[:-1]):
        sampler = Sampler(mask=RuleMask(case.mask, case.ends) if case.mask else None)
        sampler = replace(sampler, num_prompt_tokens=len(prompt))
        session = Session(
            target=TableTarget(case.target),
            prompt=prompt,
            capacity=len(prompt) + case.room,
            sampler=sampler,
            costs=FixedBudget(case.budget),
            clock=TickingClock(),
        )
        with suppress(BadOption):  # where no token is left to draw
            for _ in decode_rounds(method, session):
                pass
    return method


def survey(name: str, case: Case, *, is_taught: bool = False) -> Witness:
    """Run a method through every outcome of a case: a new one, or one that earlier completions
    taught, which then drafts with what it remembers and without a model."""
    witness = Witness()
    teacher = taught(name, case) if is_taught else None
    mask = RuleMask(case.mask, case.ends) if case.mask else None

    def run(dice: ScriptedDice) -> Tokens:
        drafter = WitnessDrafter(case.draft.load(), is_late=case.is_late)
        has_heads = case.has_heads or method_named(name).needs_heads
        target = WitnessTarget(case.target, case.draft if has_heads else None, drafter)
        session = Session(
            target=target,
            prompt=case.prompt,
            capacity=len(case.prompt) + case.room,
            drafter=NoDrafter() if teacher else drafter,
            sampler=DiceSampler(
                num_prompt_tokens=len(case.prompt),
                mask=mask,
                dice=dice,
                num_cells=case.target.num_cells,
                end=len(case.prompt) + case.room,
            ),
            costs=FixedBudget(case.budget),
            datastore=NoDatastore() if teacher else noisy_text(case.target.num_vocab),
            shares_cores=case.takes_turns,
            takes_turns=case.takes_turns,
            clock=TickingClock(),
        )
        tokens: list[int] = []
        guess: int | None = None  # the likeliest first token of the last draft
        method = deepcopy(teacher) if teacher else instance(name, dice)
        try:
            for num_rounds, done in enumerate(decode_rounds(method, session)):
                assert done.tokens, "a round without a token"
                witness.num_accepted += done.num_accepted
                witness.num_scored += done.num_scored
                witness.longest = max(witness.longest, done.num_scored)
                witness.num_refused += done.num_accepted < done.num_scored
                witness.num_contended += session.is_contended
                if done.num_scored and guess is not None and guess != tokens[-1]:
                    witness.num_branches_taken += 1
                # what was asked for before this round's forward pass
                num_drafts = target.num_drafts[num_rounds]
                ahead = drafter.drafts[num_drafts - 1] if num_drafts else Draft()
                guess = ahead.tokens[0] if method.is_overlapped and len(ahead) else None
                tokens += done.tokens
                if len(tokens) >= case.num_tokens:
                    break
        except BadOption:
            last = REFUSED
        else:
            last = ENDED if session.finish_reason == "stop" else ()
        assert session.text[len(case.prompt) :].tolist() == tokens
        tokens += last
        for draft in drafter.drafts:
            witness.widest = max(witness.widest, sum(p == ROOT for p in draft.parents))
        return tuple(tokens[: case.num_tokens])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "draw_from", lambda distribution, key: key.dice.pick(distribution))
        witness.distribution = distribution_of(run)
    return witness


def assert_exact(name: str, case: Case, *, is_taught: bool = False) -> Witness:
    """The distribution of a method's first tokens is the target's product distribution."""
    witness = survey(name, case, is_taught=is_taught)
    masked = {"mask": case.mask, "ends": case.ends} if case.mask else {}
    wanted = case.target.product_distribution(case.prompt, case.num_tokens, **masked)
    assert_same_distribution(witness.distribution, wanted)
    return witness


# --- the rejection rule over trees


def distribution(*probs: float) -> Distribution:
    return Distribution(np.flatnonzero(probs), np.array([p for p in probs if p]))


def assert_siblings_exact(p: Distribution, proposals: Callable[[ScriptedDice], Draft]) -> None:
    """The rule's token follows p, whatever siblings a draw from their distributions proposed."""

    @dataclass(frozen=True)
    class OneRow:
        num_rows: int = 1

        def draw(self, row: int) -> Draw:
            raise AssertionError("the rule with distributions needs no keyed draw")

        def distribution(self, row: int) -> Distribution:
            assert row == 0
            return p

    def run(dice: ScriptedDice) -> int:
        verdict = verify(proposals(dice), OneRow(), rejection(dice, 7))
        (token,) = verdict.tokens
        return token

    wanted = dict(zip(p.tokens.tolist(), p.probs.tolist(), strict=True))
    assert_same_distribution(distribution_of(run), wanted)


def independent_siblings(*distributions: Distribution) -> Callable[[ScriptedDice], Draft]:
    """Children drawn one after the other, each from its distribution; equal tokens may occur."""

    def draw(dice: ScriptedDice) -> Draft:
        tokens = tuple(dice.pick(q) for q in distributions)
        return Draft(tokens, (ROOT,) * len(tokens), distributions)

    return draw


def distinct_siblings(q: Distribution, num_siblings: int) -> Callable[[ScriptedDice], Draft]:
    """Children drawn without replacement: each from q without those before."""

    def draw(dice: ScriptedDice) -> Draft:
        tokens: list[int] = []
        distributions: list[Distribution] = []
        for _ in range(num_siblings):
            is_left = ~np.isin(q.tokens, tokens)
            probs = q.probs[is_left]
            distributions.append(Distribution(q.tokens[is_left], probs / probs.sum()))
            tokens.append(dice.pick(distributions[-1]))
        return Draft(tuple(tokens), (ROOT,) * num_siblings, tuple(distributions))

    return draw


# --- tables


def _scrambled(seed: int, num_vocab: int, num_cells: int) -> Callable[[Tokens], Sequence[int]]:
    """Distributions without a pattern, some with zeros: cells thrown over the tokens."""

    def rule(prefix: Tokens) -> Sequence[int]:
        generator = np.random.default_rng([seed, *prefix])
        tokens = generator.integers(num_vocab, size=num_cells)
        return np.bincount(tokens, minlength=num_vocab).tolist()

    known: dict[Tokens, Sequence[int]] = {}

    def remembered(prefix: Tokens) -> Sequence[int]:
        if prefix not in known:
            known[prefix] = rule(prefix)
        return known[prefix]

    return remembered


def _one_hot(prefix: Tokens) -> Sequence[int]:
    return tuple(4 * (token == sum(prefix) % 4) for token in range(4))


def _constant(*cells: int) -> Callable[[Tokens], Sequence[int]]:
    return lambda prefix: cells


def _turned(*cells: int) -> Callable[[Tokens], Sequence[int]]:
    """One distribution, turned by the last token: the rows of a text differ."""
    return lambda prefix: tuple(np.roll(cells, prefix[-1]).tolist())


def _in_threes(answer: Tokens) -> Sequence[int]:
    """Every token, then two of those after the last one, then the last or the one before it: of
    four, whose distributions (2, 1, 1, 0) are turned by the last token, whole cells are left each
    time."""
    turn = len(answer) % 3
    allowed = [(1, 1, 1, 1), (0, 1, 1, 0), (1, 0, 0, 1)][turn]
    return tuple(np.roll(allowed, answer[-1]).tolist()) if turn else allowed


def _to_nothing(answer: Tokens) -> Sequence[int]:
    """Every token but the last, which a target may ban; from two tokens on, only the last, or two
    others after a 1."""
    if len(answer) < 2:
        return (1, 1, 1, 0)
    return (1, 0, 1, 1) if answer[-1] == 1 else (0, 0, 0, 1)


def _three(rule: Callable[[Tokens], Sequence[int]], num_cells: int = 4) -> DistributionTable:
    return DistributionTable(num_vocab=3, num_cells=num_cells, rule=rule)


FULL_SUPPORT = Case("full support", _three(_turned(2, 1, 1)), _three(_turned(1, 1, 2)))

MASKED = Case(
    "masked",
    DistributionTable(rule=_turned(2, 1, 1, 0)),
    DistributionTable(rule=_turned(1, 1, 1, 1)),
    mask=_in_threes,
)

ENDING = Case(
    "ending",
    DistributionTable(rule=lambda prefix: (1, 2, 1, 0) if prefix[-1] else (2, 1, 1, 0)),
    DistributionTable(rule=lambda prefix: (1, 2, 1, 0) if prefix[-1] else (1, 0, 1, 2)),
    mask=_to_nothing,
    ends=(3,),
)

CASES = [
    Case("draft is target", _three(_scrambled(3, 3, 4)), _three(_scrambled(3, 3, 4))),
    Case("unrelated", _three(_scrambled(5, 3, 4)), _three(_scrambled(6, 3, 4))),
    Case("one-hot draft", _three(_turned(2, 1, 1)), _three(_turned(0, 4, 0))),
    Case(
        "one-hot target",
        DistributionTable(rule=_one_hot),
        DistributionTable(rule=_turned(2, 1, 1, 0)),
    ),
    Case(
        "disjoint",
        DistributionTable(rule=_constant(3, 1, 0, 0)),
        DistributionTable(rule=_constant(0, 0, 2, 2)),
    ),
    Case(
        "uniform draft",
        DistributionTable(rule=_scrambled(8, 4, 4)),
        DistributionTable(),
        num_tokens=3,
        room=4,
    ),
    replace(FULL_SUPPORT, name="late drafter", is_late=True),
    FULL_SUPPORT,
    replace(FULL_SUPPORT, name="wide", num_tokens=3, room=5),
    replace(FULL_SUPPORT, name="in turns", takes_turns=True),
    replace(FULL_SUPPORT, name="late in turns", takes_turns=True, is_late=True),
    replace(FULL_SUPPORT, name="heads", has_heads=True),
    MASKED,
    replace(MASKED, name="masked, draft is target", draft=MASKED.target),
    ENDING,
    replace(ENDING, name="ending, draft is target", draft=ENDING.target),
    replace(ENDING, name="refused", ends=()),
    replace(ENDING, name="refused, draft is target", ends=(), draft=ENDING.target),
]

# coins in place of four cells: long texts, so long chains and several rounds of them
DEEP_CASES = [
    Case(
        "deep, draft is target",
        _three(_scrambled(1, 3, 2), 2),
        _three(_scrambled(1, 3, 2), 2),
        num_tokens=7,
        room=7,
    ),
    Case(
        "deep, unrelated",
        _three(_scrambled(1, 3, 2), 2),
        _three(_scrambled(2, 3, 2), 2),
        num_tokens=6,
        room=6,
        budget=4,
    ),
    Case(
        "deep, branches taken",
        _three(lambda prefix: (2, 0, 0) if prefix[-1] == 1 else (1, 1, 0), 2),
        _three(_constant(1, 1, 0), 2),
        num_tokens=6,
        room=9,
        budget=6,
    ),
    Case(
        "deep, kindred and late",
        _three(_turned(1, 1, 0), 2),
        _three(lambda prefix: (1, 1, 0) if prefix[-1] == 0 else (0, 2, 0), 2),
        num_tokens=6,
        room=8,
        budget=3,
        is_late=True,
    ),
]
