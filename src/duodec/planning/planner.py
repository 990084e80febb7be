"""Choose which candidates to score and whether to wait for more, by expected tokens a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from duodec.core.candidates import TreeCursor
from duodec.core.round import TICK_S
from duodec.drafting import constants
from duodec.planning.acceptance import EXPECTED, Acceptance, Expected
from duodec.planning.compiled import fastest_width, grow, learn, propose
from duodec.planning.costs import Costs
from duodec.planning.mixing import Mixer
from duodec.planning.selection import Selection
from duodec.planning.sources import End, Source, TextSources
from duodec.planning.trial import Rate


@dataclass
class Waits:
    """Compare what the draft steps that the target waited for have brought with what they promised,
    in all requests. Old rounds fade whether a step was waited for or not, so a wait that did not
    pay is tried again after some hundred rounds."""

    # This rate is brought tokens per promised token.
    _brought: Rate = field(default_factory=lambda: Rate(constants.SLOW_FADE))

    @property
    def trust(self) -> float:
        """Return the share of promised tokens that came lately; more than 1 where steps promised
        too little."""
        came, promised = self._brought.amount, self._brought.seconds
        share = (came + constants.PRIOR_TOKENS) / (promised + constants.PRIOR_TOKENS)
        return max(constants.MIN_VALUE, share)

    def observe(self, promised: float, brought: float) -> None:
        """Record a round: the tokens promised by steps that were waited for (0 if none was), and
        the tokens that came beyond what would have been drafted without waiting. The latter is
        negative if the draft without waiting would have brought more."""
        self._brought.observe(brought, promised)


@dataclass
class Planner:
    """Decide for one text, using what it and earlier texts taught."""

    costs: Costs
    acceptance: Acceptance  # how often the draft model's candidates are right
    num_tokens: int = constants.MAX_DRAFT  # most draft tokens in a forward pass
    # A wait must yield tokens this much faster than decoding.
    patience: float = constants.MIN_GAIN_OF_WAIT
    takes_turns: bool = False  # the drafter rests until it is asked
    expected: Expected = EXPECTED  # of the draft model's candidates
    has_branches: bool = True  # the target scores trees; otherwise chains
    allowance: float = math.inf  # rounds of plain decoding that a forward pass may lose
    waits: Waits = field(default_factory=Waits)
    heads_s: float = 0.0  # time that the target's own heads add to the next forward pass
    _rate: Rate = field(default_factory=Rate)
    # These are the rates of drafts without candidates of the draft model, and with some.
    _promises: Sequence[Rate] = field(
        default_factory=lambda: [
            Rate(amount=constants.PRIOR_TOKENS, seconds=constants.PRIOR_TOKENS) for _ in range(2)
        ]
    )
    _without_draft: Rate = field(
        default_factory=lambda: Rate(
            constants.SLOW_FADE, constants.PRIOR_WEIGHT / 2, constants.PRIOR_WEIGHT
        )
    )

    def select(
        self, sources: Sequence[Source], mixer: Mixer, num_tokens: int, depth: int
    ) -> Selection:
        """Return the likeliest candidates of all sources, the first of which is the draft model's
        tree: at most ``num_tokens`` of them, ``depth`` tokens deep."""
        selection, num_tokens = Selection(sources, mixer), self._most(num_tokens)
        grow(selection, num_tokens, depth, has_branches=self.has_branches, least=self._least)
        return selection

    def propose(
        self, given: Sequence[Source], texts: TextSources, end: End, num_tokens: int, depth: int
    ) -> tuple[Selection, int]:
        """`select` at the end of a text, and find the `width` of that selection. ``given`` holds
        the draft model's tree and the sources of a datastore and of heads."""
        selection, num_tokens = Selection(given, texts.memory.mixer), self._most(num_tokens)
        width = propose(
            selection, texts, end, num_tokens, depth,
            self.costs.curve(num_tokens), self.costs.worst(num_tokens),
            has_branches=self.has_branches, least=self._least,
            **_bounds(self._trust(has_draft=selection.has_draft), self.allowance, self.heads_s),
        )  # fmt: skip
        return selection, width

    def _most(self, num_tokens: int) -> int:
        return min(num_tokens, self.num_tokens, self.costs.draft_budget())

    @property
    def _least(self) -> float:
        """Return the least value of a node: finding it takes time, in which tokens come without
        it."""
        return max(constants.MIN_VALUE, constants.NODE_S * self._rate.value)

    @property
    def rate(self) -> float:
        """Return the recent rate in tokens a second; 0 before the first round."""
        return self._rate.value

    @property
    def least_head(self) -> float:
        """Return how likely a node of the target's heads must be for another level below it to
        bring tokens faster than decoding does."""
        return min(1.0, self.costs.head_level_s() * self.rate)

    def can_pay(self) -> bool:
        """Return whether any draft would pay if all of its tokens were accepted."""
        widths = (1 << i for i in range(self.num_tokens.bit_length()))
        seconds = self.costs.curve(self.num_tokens)  # also needed between two forward passes
        return any(seconds[n] < (1 + n) * seconds[0] for n in widths)

    def reading_s(self, num_tokens: int) -> float:
        """Return the expected seconds for which a draft model on the target's cores reads
        ``num_tokens`` new tokens of a text; 0 where a step includes them."""
        return (
            self.costs.read_s(num_tokens) if num_tokens > constants.TOKENS_READ_WITH_STEP else 0.0
        )

    def repays_reading(self, num_tokens: int, decoding_s: float, saved: float) -> bool:
        """Return whether the draft model may read ``num_tokens`` by now, in a response that has
        been decoded for ``decoding_s`` seconds. It saves a share ``saved`` of them. The length of
        the response is unknown. Reading once the savings so far would have paid for it costs at
        most twice the best choice."""
        return saved * decoding_s >= self.reading_s(num_tokens)

    def promised_by_waiting(
        self, cursor: TreeCursor, selection: Selection, num_scored: int | None = None
    ) -> float:
        """Return how many tokens one more step of the draft model promises beyond what the other
        sources already propose. ``cursor`` is the draft model's tree under the text. The result is
        0 where decoding is expected to be faster, given how such promises came true lately.
        ``num_scored`` is the `width` of the selection, if it is known."""
        if not (self._rate.value or self.costs.is_measured):
            return 0.0  # the target may need no time at all
        rate = self._caution * (self._rate.value or 1 / max(TICK_S, self.costs.forward_s(0)))
        if num_scored is None:
            num_scored = self.width(selection)
        row = rate * self.costs.row_s(num_scored)  # cost of a row in tokens
        least = rate * self.patience * self.step_s(cursor)
        if not cursor.is_expanded:
            # This assumes that the model's trees reach as far as the others' do.
            reach = self._reach(selection)
            further = max(
                1.0,
                (sum(selection.values) + constants.PRIOR_OF_DEPTH)
                / (reach + constants.PRIOR_OF_DEPTH),
            )
            gained = self._gained((1.0 - reach) * further, row)
        elif self.has_branches:
            # This is the share of nodes one of which comes true.
            share = 1.0 - self._without_draft.value
            if self._gained(share, row) <= least:
                return 0.0
            value = self.acceptance.unexpanded(cursor, self.costs.step_leaves())
            gained = self._gained(share * value, row)
        else:
            end, offered = _end_of_chain(cursor, selection)
            gained = self._gained(end - offered, 0.0 if offered else row)
        return gained / self.waits.trust if gained > least else 0.0

    def _reach(self, selection: Selection) -> float:
        """Return how likely the next token is among those that are proposed and may be scored."""
        if self.has_branches:
            return selection.reach
        return selection.values[0] if selection.values else 0.0

    def _gained(self, value: float, row: float) -> float:
        """Return the tokens that a step is expected to bring under nodes of value ``value``, less
        the tokens that would come while its candidates are scored, at ``row`` each. This assumes
        the first, the first two, ... candidates are scored; all of them cost as much as four, since
        unlikely ones are not scored. In a chain only the first counts."""
        value *= self.waits.trust
        covered = self.acceptance.covered(self.expected)[: None if self.has_branches else 1]
        most = -math.inf
        for num, share in enumerate(covered, 1):
            most = max(most, value * share - num * row)
        return most

    def step_s(self, cursor: TreeCursor) -> float:
        """Return the expected seconds until the drafter's next step arrives here."""
        costs = self.costs
        if self.takes_turns and not costs.knows_step:
            return 0.0  # nothing is learned about a drafter that rests, so one step is tried
        seconds = costs.step_s() if cursor.is_expanded else costs.root_s()
        if self.takes_turns:  # the whole wait is measured
            return seconds
        # Half of the step in progress remains on average.
        remains_s = 0.0 if cursor.is_expanded else costs.step_s() / 2
        return remains_s + seconds + constants.HANDOVER_S

    def observe_late_step(self, cursor: TreeCursor, seconds: float) -> None:
        """Record that the drafter's next step was waited for ``seconds`` and did not arrive. Steps
        that end after their text has continued are never timed, so only this reveals a slow
        drafter's cost."""
        if cursor.is_expanded:
            self.costs.observe_step(seconds, self.costs.step_leaves())
        else:
            self.costs.observe_root(seconds)

    def learn(self, selection: Selection, tokens: Sequence[int]) -> None:
        """Learn from the tokens generated where these candidates were selected."""
        learn(selection, tokens)
        if selection.num_labelled:
            self._without_draft.observe(selection.num_without_draft, selection.num_labelled)

    @property
    def _caution(self) -> float:
        """Return how much more a draft must promise than it costs."""
        return _caution(self.allowance)

    def _trust(self, *, has_draft: bool) -> float:
        """Return the share of promised tokens that was accepted lately, 1 at most, for drafts with
        or without candidates of the draft model."""
        return min(1.0, self._promises[has_draft].value)

    def observe_promise(self, selection: Selection, num_scored: int, num_accepted: int) -> None:
        """Record a draft of the first ``num_scored`` tokens, and how many of them were accepted."""
        expected = sum(selection.values[:num_scored])
        self._promises[selection.has_draft].observe(num_accepted, expected)

    def width(self, selection: Selection) -> int:
        """Return how many of the selected tokens to score."""
        if not selection.values:
            return 0
        trust = self._trust(has_draft=selection.has_draft)
        return best_width(selection.values, self.costs, trust, self.allowance, self.heads_s)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Add a round, timed from the end of the previous one."""
        self._rate.observe(num_tokens, seconds)


def _end_of_chain(cursor: TreeCursor, selection: Selection) -> tuple[float, float]:
    """Return two likelihoods. The first is that of the last token of a chain that the draft model
    proposes too, if the model has proposed nothing after it yet and more may be scored. The second
    is that of the token that others propose there."""
    end, num, values = cursor, 0, (1.0, *selection.values, 0.0)
    for token in selection.tokens:
        child = end.tree.child(end.node, token)
        if child is None:
            break
        end, num = TreeCursor(end.tree, child), num + 1
    is_at_end = num == len(selection.tokens)
    if end.is_expanded or (is_at_end and selection.is_full):
        return 0.0, 0.0
    return values[num], values[num + 1]


def best_width(
    values: Sequence[float],
    costs: Costs,
    trust: float = 1.0,
    allowance: float = math.inf,
    more_s: float = 0.0,
) -> int:
    """Return how many draft tokens of these values, highest first, yield the most tokens a second.

    ``trust`` is the share of promised values that came true. ``allowance`` is what may be lost, in
    forward passes without a draft. The less is left, the more a draft must promise, and the less it
    may cost beyond a quarter of its promise. One draft never costs more than five such passes, so
    that no text pays for another's. A forward pass takes ``more_s`` longer, whatever its width.
    """
    num = len(values)
    bounds = _bounds(trust, allowance, more_s)
    return fastest_width(values, costs.curve(num), costs.worst(num), **bounds)


def _bounds(trust: float, allowance: float, more_s: float) -> dict[str, float]:
    return {
        "trust": trust,
        "caution": _caution(allowance),
        "lost": min(constants.MAX_LOSS, max(0.0, allowance)),
        "most_bet": constants.MAX_LOSS,
        "bet": constants.LOSS_PER_PROMISED_TOKEN,
        "more_s": more_s,
    }


def _caution(allowance: float) -> float:
    return 1.0 + constants.CAUTION * max(0.0, 1.0 - allowance)
