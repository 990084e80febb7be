"""Keep the candidates for a request's next forward pass: the draft model's tree and other sources.

Between two forward passes only `best` and the move of the root run. All other work waits until the
target computes: sending the text to the drafter, learning from the verdict, and valuing widths.
Shortly before the target's forward pass ends, the likeliest verdicts are rehearsed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.draft import NO_DRAFT, ROOT, Draft
from duodec.core.drafters import Drafted
from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens
from duodec.core.turns import InTurns
from duodec.drafting import constants
from duodec.drafting.growth import Seed, Tree
from duodec.methods.request import Forward, Need, NoDrafter, Request
from duodec.planning.compiled import without
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner
from duodec.planning.selection import Selection
from duodec.planning.sources import End, HeadSource, Source, TextSources, TreeSource

_NOTHING: Tokens = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class Offer:
    """Hold a draft, the candidates that it was selected from, and their sources except the draft
    model."""

    draft: Draft = NO_DRAFT
    selection: Selection | None = None
    others: Sequence[Source] = ()
    promised: float = 0.0
    """The tokens promised by the draft steps that were waited for."""
    without_waiting: Draft = NO_DRAFT

    def num_brought(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens the wait brought: those of the draft, less those of the
        draft that would have been scored without it."""
        return len(tokens) - 1 - self.without_waiting.num_along(tokens[:-1])

    def num_from_model(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens, from the first one on, the draft model or the target's
        heads proposed, whatever other sources proposed too. Neither knows anything below a token
        that it did not propose."""
        if not tokens:
            return 0
        sources = self.selection.given if self.selection else ()
        models = (one for one in sources if isinstance(one, TreeSource | HeadSource))
        return max((one.num_along(tokens) for one in models), default=0)


NO_OFFER = Offer()


class DraftSelector:
    """Select the drafts of one request. Call `best` and `launch` before a forward pass,
    `receive_drafts` and `follow_verdict` after it."""

    def __init__(self, request: Request, planner: Planner, plan: Tree, texts: TextSources) -> None:
        self._request, self._planner, self._plan, self._texts = request, planner, plan, texts
        self.can_pay = self._can_pay()
        """Whether some draft would pay if every token of it were accepted."""
        self._cursor = TreeCursor()  # end of the text in the draft model's tree
        # In parallel: the drafter was sent the text. In turns: it has not finished a step.
        self._is_asked = False
        self._num_plain = 0  # consecutive rounds without a draft
        self._num_late_steps = 0  # of the draft model, one after the other
        self._reading_s = 0.0  # time spent waiting for a draft model in turns because it read
        self._text = request.text  # text of the last forward pass
        self._busy_s = 0.0  # the drafter's work when that pass began
        self._rehearsed: dict[tuple[int, ...], Offer] = {}
        self._proposed = CandidateTree()  # proposed by the target's heads, under the text
        self._had_heads = self._with_heads = False  # in the last forward pass, and in this one

    def draft_with_model(self, is_drafting: bool) -> None:
        """Let the draft model take part from now on, or let it rest."""
        if self._request.is_drafting and not is_drafting:
            self._cursor = TreeCursor()
            self._rehearsed.clear()
            self._request.pause_drafter()
        self._request.is_drafting = is_drafting

    @property
    def _is_in_parallel(self) -> bool:
        """Return whether the draft model takes part, and computes whenever it has something to
        do."""
        return self._request.is_drafting and not self._request.takes_turns

    def repays_reading(self, decoding_s: float, governor: Governor) -> bool:
        """Return whether a draft model that takes the target's cores may read what it lacks of the
        text. The response was decoded for ``decoding_s`` seconds, of which drafts are expected to
        save a share."""
        if not (num_unread := self._num_unread):
            return True
        likely_s = max(decoding_s, self._texts.memory.decoding.value)
        saved = governor.saved(Sources.ALL)
        return self._planner.repays_reading(num_unread, likely_s, saved)

    def take_reading_s(self) -> float:
        """Return how long a draft model in turns was waited for lately because it read."""
        seconds, self._reading_s = self._reading_s, 0.0
        return seconds

    @property
    def _num_unread(self) -> int:
        """Return how many tokens of the text a draft model in turns lacks."""
        request = self._request
        if not request.takes_turns or isinstance(request.drafter, NoDrafter):
            return 0
        owner, known = self._texts.memory.drafted.get(request.slot, ("", _NOTHING))
        if owner != request.owner:
            return len(request.text)
        return len(request.text) - common_prefix(known, request.text)

    def best(self) -> Generator[Need, Any, Offer]:
        """Return the likeliest candidates of all sources, after the draft steps that are worth
        waiting for."""
        request, planner = self._request, self._planner
        text, texts = request.text, self._texts
        offer = self._rehearsed.get(tuple(text[len(self._text) :].tolist()))
        if offer is None:
            others = texts.stored(text)
            if len(self._proposed):
                others.append(HeadSource(self._proposed, texts.memory.heads))
            offer = self._offer(self._cursor, texts.end_to_read(text), others, request.remaining)
        else:
            request.defer(partial(texts.read, text))
        without_waiting, total = offer.draft, 0.0
        while (
            request.is_drafting
            and offer.selection is not None
            and (
                promised := planner.promised_by_waiting(
                    self._cursor, offer.selection, len(offer.draft)
                )
            )
        ):
            total += promised
            self._ask()
            num_known, num_new = self._cursor.num_under, self._num_unread
            reading_s, step_s = planner.reading_s(num_new), planner.step_s(self._cursor)
            patience_s = constants.MAX_WAIT * (step_s + reading_s)
            if request.takes_turns:  # an unfinished step goes on while the target computes
                patience_s = max(patience_s, constants.MIN_WAIT_S)
            begin_s = request.clock()
            drafted = yield from request.wait(patience_s, num_known)
            waited_s = request.clock() - begin_s
            if reading_s:  # this says nothing about its steps
                self._reading_s += waited_s
            elif request.takes_turns:
                request.learn_turn(drafted, waited_s)
            else:
                request.learn_steps(drafted)
            self._cursor = _newer(drafted, self._cursor)
            if request.takes_turns:  # one step at a time
                self._is_asked = self._cursor.num_under == num_known and not drafted.is_complete
            if self._cursor.num_under == num_known:
                # The drafter is dead, reads, has no more to propose, or its step takes longer.
                self._num_late_steps += waited_s > constants.LATE_AFTER * patience_s
                # In turns the first step may have read a prompt, so it is asked for once more.
                if self._num_late_steps >= (2 if request.takes_turns else 1):
                    planner.observe_late_step(self._cursor, patience_s)
                    self._num_late_steps = 0  # waiting promises less from now on
                break
            # After a late step some of the text was read before this wait.
            if reading_s and not self._num_late_steps:
                request.costs.observe_read(num_new, max(0.0, waited_s - step_s))
            texts.memory.drafted[request.slot] = request.owner, text
            self._num_late_steps = 0
            end = texts.end_to_read(text)
            offer = self._offer(self._cursor, end, offer.others, request.remaining)
        return replace(offer, promised=total, without_waiting=without_waiting) if total else offer

    def launch(self, offer: Offer, *, with_heads: bool) -> None:
        """Begin a forward pass over an offer. After it the target's heads propose if
        ``with_heads``."""
        request = self._request
        self._text = request.text
        self._had_heads, self._with_heads = self._with_heads, with_heads
        rehearsed, self._rehearsed = self._rehearsed, {}
        request.defer(rehearsed.clear)  # freeing so many nodes takes time
        request.is_contended = request.takes_turns and self._is_asked
        if request.is_drafting and request.takes_turns:
            request.pause_drafter()
        elif request.is_drafting:
            request.defer(self._ask)
        if self.can_pay and not request.num_rounds:  # a prompt is long
            request.defer(partial(self._texts.read, self._text))
        # What heads will propose is not known before the end of the pass.
        can_rehearse = offer.selection is not None and not with_heads
        request.rehearse = partial(self._rehearse, offer) if can_rehearse else None

    def receive_drafts(self) -> float:
        """Receive what the drafter has sent during the forward pass that has just ended, and return
        how many seconds it worked meanwhile."""
        if not self._is_in_parallel:
            return 0.0
        drafted = self._request.peek_tree()
        self._cursor = _newer(drafted, self._cursor)
        # The drafter's total is less after a restart.
        return max(0.0, drafted.busy_s - self._busy_s)

    def follow_verdict(
        self,
        offer: Offer,
        tokens: Sequence[int],
        end: int,
        forward: Forward | None,
        proposed: CandidateTree,
    ) -> None:
        """Move on by ``tokens``, which a forward pass brought; its verdict ended at node ``end`` of
        the draft. ``forward`` is given if there is something to learn from its scores. ``proposed``
        is the tree that the target's heads propose next; it may be empty."""
        self._proposed = proposed
        cursor = self._cursor
        self._cursor = cursor.follow(tokens)
        self._is_asked = False
        lessons = None
        if forward is not None:
            keeps = self._request.traits.keeps_candidates
            share = constants.KEEPING_SHARE if keeps else constants.LEARNING_SHARE
            lessons = self._texts.lessons(
                self._text, offer.draft, forward.scores, end, clock=self._request.clock,
                budget_s=share * forward.duration_s,
            )  # fmt: skip
        if self._had_heads:
            self._request.defer(partial(self._judge_heads, offer, tokens))  # before others learn
        self._request.defer(partial(self._learn, offer, cursor, tokens))
        if lessons is not None:  # put off once more: the drafter is asked first
            self._request.defer(partial(self._request.defer, partial(self._texts.learn, lessons)))

    def _offer(
        self, cursor: TreeCursor, end: End, others: Sequence[Source], remaining: int
    ) -> Offer:
        """Return the likeliest candidates at the end of a text, which is at ``cursor`` in the draft
        model's tree. The text has room for ``remaining`` tokens. ``others`` are a datastore and
        heads."""
        planner, request = self._planner, self._request
        planner.has_branches = request.traits.has_branches
        own = TreeSource(cursor.tree, planner.acceptance, cursor.node)
        selection, num_tokens = planner.propose(
            [own, *others], self._texts, end, request.max_width, remaining - 1
        )
        return Offer(selection.draft(num_tokens), selection, others)

    # --- while the target computes

    def _ask(self) -> None:
        """Send the text to the drafter, once."""
        if self._is_asked:
            return
        self._is_asked = True
        request, plan = self._request, self._plan
        depth = min(plan.depth, request.remaining - 1)
        if depth != plan.depth or len(self._proposed):
            plan = replace(plan, depth=depth, seed=self._seed())
        request.submit(InTurns(plan, num_steps=1) if request.takes_turns else plan)
        self._busy_s = request.drafter.heard(request.slot).busy_s

    def _seed(self) -> Seed:
        """Return the likeliest chain that the target's heads propose, as far as it is worth a row
        of the draft model."""
        tree, judged = self._proposed, self._texts.memory.heads
        seed: list[tuple[int, float]] = []
        value = 1.0
        for node in TreeCursor(tree).down(len(tree)):
            likely = judged.estimate(tree.confidences[node], tree.ranks[node])
            value *= likely
            if value < constants.MIN_SEED:
                break
            seed.append((tree.tokens[node], likely))
        return tuple(seed)

    def _learn(self, offer: Offer, cursor: TreeCursor, tokens: Sequence[int]) -> None:
        """Let the sources that proposed something learn from the tokens after a text."""
        planner = self._planner
        planner.waits.observe(offer.promised, offer.num_brought(tokens) if offer.promised else 0.0)
        if offer.selection is not None:  # first, because its sources tell what they have learned
            planner.learn(offer.selection, tokens)
            if num := len(offer.draft):
                planner.observe_promise(offer.selection, num, len(tokens) - 1)
        planner.acceptance.learn(cursor.tree, tokens, cursor.node)
        self._num_plain = 0 if len(offer.draft) else self._num_plain + 1
        if self._num_plain % constants.LOOK_AGAIN_AFTER == 0:
            self.can_pay = self._can_pay()

    def _judge_heads(self, offer: Offer, tokens: Sequence[int]) -> None:
        """Record the tokens that came only because of the target's heads: those that other sources
        would not have had scored, and all after them."""
        selection, num_drafted, num_brought = offer.selection, len(offer.draft), 0
        heads = next((one for one in offer.others if isinstance(one, HeadSource)), None)
        if selection is not None and num_drafted and heads is not None:
            accepted = tokens[:-1]
            values, least = without(selection, heads, accepted), selection.values[num_drafted - 1]
            num_brought = len(accepted) - sum(value >= least for value in values)
        seconds = self._request.costs.heads_s()
        self._texts.memory.heads_supplement.observe(num_brought, seconds, self._planner.rate)

    def _can_pay(self) -> bool:
        return self._request.max_width > 0 and self._planner.can_pay()

    def _rehearse(self, offer: Offer, end_s: float) -> None:
        """Make the offers after the likeliest verdicts on this one: as many as there is time for
        until ``end_s``, and at least one. They are used if such a verdict comes; if not, the code
        that makes them is still in the caches."""
        request, text = self._request, self._text
        if self._is_in_parallel:
            self._cursor = _newer(request.peek_tree(), self._cursor)
        begin_s = request.clock()
        for number, tokens in enumerate(self._likely_verdicts(offer.draft)):
            now_s = request.clock()
            if number and now_s + (now_s - begin_s) / number > end_s:
                break
            if len(tokens) < request.remaining:
                whole = np.concatenate([text, np.array(tokens, dtype=np.int32)])
                cursor, remaining = self._cursor.follow(tokens), request.remaining - len(tokens)
                end, stored = self._texts.end_after(text, tokens), self._texts.stored(whole)
                self._rehearsed[tokens] = self._offer(cursor, end, stored, remaining)

    def _likely_verdicts(self, draft: Draft) -> Iterator[tuple[int, ...]]:
        """Yield verdicts in which a path of the draft is accepted to its end and the likeliest
        token follows."""
        inner = set(draft.parents)
        ends = [node for node in range(len(draft)) if node not in inner] or [ROOT]
        for end in ends[: constants.NUM_REHEARSED]:
            path = draft.path_tokens(end)
            below = self._cursor.follow(path)
            if below.is_known:
                yield (*path, below.tree.tokens[below.tree.children(below.node)[0]])
            else:
                text = np.concatenate([self._text, np.array(path, dtype=np.int32)])
                yield (*path, self._likeliest(text))

    def _likeliest(self, text: Tokens) -> int:
        """Return the likeliest token after a text by the target's rows, or its last token again
        where they know none."""
        planner, mixer = self._planner, self._texts.memory.mixer
        no_tree = TreeSource(CandidateTree(), planner.acceptance)
        found = planner.select((no_tree, self._texts.rows(text)), mixer, 1, 1).tokens
        return found[0] if found else int(text[-1])


def _newer(drafted: Drafted, known: TreeCursor) -> TreeCursor:
    """Return the text's cursor in the drafter's tree, once the drafter has sent what is in the
    tree; until then return ``known``."""
    if drafted.tree is None or (known.is_expanded and not drafted.tree.is_expanded(ROOT)):
        return known
    return TreeCursor(drafted.tree)
