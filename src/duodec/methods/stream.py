"""Decode with streaming tree drafts: what of a tree was accepted lives on, and grows further.

Four objects decide about a round. The governor (`planning/governor.py`) chooses the sources, by the
rates that it measured. The planner (`planning/planner.py`) chooses how many draft tokens a forward
pass has, and whether to wait for a step of the draft model. The selector
(`methods/draft_selector.py`) merges what the sources propose into one draft. `_Economy` below asks
the first, and feeds measurements to all three.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.round import Round
from duodec.core.targets import NUM_CANDIDATES, HeadPlan
from duodec.core.traits import Widths
from duodec.core.verify import Verdict, verify
from duodec.drafting import constants
from duodec.drafting.growth import Tree
from duodec.drafting.heads import Likeliest
from duodec.methods.draft_selector import NO_OFFER, DraftSelector, Offer
from duodec.methods.method import Method
from duodec.methods.request import Forward, Loop, Request, Score
from duodec.planning.acceptance import Acceptance
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner, Waits
from duodec.planning.sources import TextMemory, TextSources

LIKELIEST = Likeliest(num_tokens=constants.MAX_DRAFT)
"""The plan of a target's own heads; the planner decides how deep, and how much is scored."""


class _Always(Governor):
    """Allow all sources, whether they pay or not."""

    def __init__(self) -> None:
        super().__init__([Sources.ALL])

    def sources(self, most: Sources = Sources.ALL) -> Sources:
        return most


@dataclass(frozen=True)
class Stream(Method):
    """Draft with a tree that never stops growing. This method is ours. Related: SwiftSpec
    (2506.11309), SSD (2603.03251) and SpecBranch (2506.01979); none of them drafts on a CPU.

    The drafter's tree grows under the text while the target scores a part of it. When the target is
    free it takes the likeliest candidates of that tree and of all other sources. The verdict moves
    the root down the accepted path. The subtree under it is kept, by the drafter and by its mirror
    in this process. Where little is left, the target waits for draft steps as long as they bring
    tokens ``patience`` times as fast as decoding does. A drafter on hardware of its own never
    stops; one that takes turns works only while the target waits. No draft is scored before two
    plain forward passes were timed.
    """

    name = "stream"
    needs_draft_model = True
    is_overlapped = True
    learns = True

    num_tokens: int = constants.MAX_DRAFT  # in a forward pass; the planner decides how many
    patience: float = constants.MIN_GAIN_OF_WAIT
    plan: Tree = field(default_factory=Tree)
    acceptance: Acceptance = field(default_factory=Acceptance)
    memory: TextMemory = field(default_factory=TextMemory)
    waits: Waits = field(default_factory=Waits)

    def decode(self, request: Request) -> Loop:
        texts = TextSources(
            self.memory, request.text, request.datastore, request.sampler, request.owner
        )
        planner = self._planner(request)
        selector = DraftSelector(request, planner, self.plan, texts)
        economy = _Economy(request, planner, texts, selector, self.governor(request))
        try:
            while request.remaining:
                choice = economy.choose()
                drafts = choice.sources != Sources.NONE
                offer = (yield from selector.best()) if drafts else NO_OFFER
                selector.launch(offer, with_heads=choice.heads is not None)
                forward: Forward = yield Score(
                    offer.draft, NUM_CANDIDATES if choice.can_pay else 0, heads=choice.heads
                )
                verdict = verify(offer.draft, forward.scores)
                done = request.commit(
                    offer.draft,
                    verdict,
                    forward,
                    num_drafted=len(offer.draft),
                    num_from_model=offer.num_from_model(verdict.accepted),
                    overlap_s=selector.receive_drafts(),
                )
                economy.learn(choice, offer, forward, verdict, done)
            self.memory.decoding.observe(economy.decoding_s, 1)
        finally:
            texts.end(request.text)

    def _planner(self, request: Request) -> Planner:
        planner = Planner(
            request.costs, self.acceptance, self.num_tokens, self.patience, waits=self.waits
        )
        if request.takes_turns:
            # A drafter that rests while the target computes loses nothing when it is waited for,
            # and only then shows what it is worth.
            planner.patience, planner.takes_turns = 1.0, True
            planner.expected = constants.EXPECTED_IN_TURNS
        return planner

    def governor(self, request: Request) -> Governor:
        """Return the governor that chooses the sources."""
        return _Always()


@dataclass(frozen=True)
class _Choice:
    """Name what the drafts of a round come from."""

    sources: Sources
    most: Sources  # most sources that were possible
    can_pay: bool  # some draft could pay
    heads: HeadPlan | None  # what the target's own heads are to propose after it


class _Economy:
    """Choose the sources of a completion's rounds, and learn what they brought and cost."""

    def __init__(
        self,
        request: Request,
        planner: Planner,
        texts: TextSources,
        selector: DraftSelector,
        governor: Governor,
    ) -> None:
        self._request, self._planner, self._texts = request, planner, texts
        self._selector, self._governor = selector, governor
        self._begin_s = request.now()  # begin of the round
        self.decoding_s = 0.0  # excludes the first round, which prefills the prompt

    def choose(self) -> _Choice:
        """Return the sources of the next round."""
        request, planner, governor = self._request, self._planner, self._governor
        selector = self._selector
        most, knows_plain = request.costs.sources(), request.costs.knows_plain
        if request.takes_turns and not selector.repays_reading(self.decoding_s, governor):
            most = min(most, Sources.HEADS)
        can_pay = selector.can_pay and most != Sources.NONE
        if governor.first_rests and knows_plain:  # the longer, the dearer a step is
            first_rest = constants.FIRST_PAUSE * request.costs.step_share()
            governor.cut_first_rest(Sources.ALL, first_rest)
        sources = governor.sources(most) if can_pay else Sources.NONE
        planner.allowance = governor.allowance
        is_early = not request.num_rounds or not knows_plain
        # On shared cores the drafter prefills the prompt after that, and slows nothing before.
        selector.draft_with_model(
            sources == Sources.ALL and not (is_early and request.shares_cores)
        )
        if is_early:
            sources = Sources.NONE
        heads, has_heads = None, sources >= Sources.HEADS and request.traits.heads
        if has_heads and self._texts.memory.heads_supplement.takes_part():
            heads = replace(LIKELIEST, least=planner.least_head)
        planner.heads_s = request.costs.heads_s() if heads else 0.0
        return _Choice(sources, most, can_pay, heads)

    def learn(
        self, choice: _Choice, offer: Offer, forward: Forward, verdict: Verdict, done: Round
    ) -> None:
        """Learn from what the round brought and cost."""
        request, governor, draft = self._request, self._governor, offer.draft
        reading_s = self._selector.take_reading_s()
        seconds, self._begin_s = request.now() - self._begin_s - reading_s, request.now()
        if reading_s:
            governor.charge(Sources.ALL, reading_s)
        # The first round prefills the prompt.
        is_decoding = request.num_rounds > 1
        self.decoding_s += seconds * is_decoding
        # What other requests forbid was not this request's choice.
        if is_decoding and choice.most != Sources.NONE and not request.is_contended:
            sources, num_tokens = choice.sources, len(done.tokens)
            self._planner.observe(num_tokens, seconds)
            governor.observe(
                sources, num_tokens, seconds, choice.most if choice.can_pay else sources
            )
            if sources == Sources.NONE:
                governor.plain_length = len(request.text)
            elif draft and (plain_s := inferred_plain_s(draft, forward, request, governor)):
                governor.infer_plain(plain_s)
        self._selector.follow_verdict(
            offer,
            done.tokens,
            verdict.end,
            forward if choice.can_pay else None,
            forward.scores.proposed().tree if choice.heads else CandidateTree(),
        )


def inferred_plain_s(
    draft: Draft, forward: Forward, request: Request, governor: Governor
) -> float | None:
    """Return the seconds that a forward pass would have taken without its draft, where that can be
    inferred; otherwise None. It can be inferred for a pass that is padded to as many rows. It also
    can on a device where nothing else computes, as long as the text is about as long as when plain
    decoding was measured."""
    if costs_no_rows(draft, request.traits.widths):
        return forward.duration_s
    if not request.takes_turns or request.shares_cores:
        return None
    if abs(len(request.text) - governor.plain_length) > constants.SIMILAR_LENGTH:
        return None
    costs = request.costs
    return forward.duration_s * costs.forward_s(0) / costs.forward_s(len(draft))


def costs_no_rows(draft: Draft, widths: Widths) -> bool:
    """Return whether a pass without the draft would have been padded to as many rows."""
    return bool(widths) and widths.padded(1) == widths.padded(len(draft) + 1)
