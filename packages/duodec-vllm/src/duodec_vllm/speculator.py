"""Propose drafts for every row of a batch at once, from the drafts that are ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.drafters import DraftRequest
from duodec.core.sampling.sampler import Sampler
from duodec.drafting.growth import Tree
from duodec.planning.acceptance import Acceptance
from duodec.planning.compiled import grow, learn
from duodec.planning.governor import Sources
from duodec.planning.selection import Selection
from duodec.planning.sources import TextMemory, TextSources, TreeSource
from duodec_vllm.draft_lengths import BatchSize, DraftLengths, ProposedChain
from duodec_vllm.drafter_thread import DrafterThread
from duodec_vllm.requests import Request, Requests, Row

_MAX_EXPANDED = 120  # of all trees together: the drafter's number of leaves
_STEPS = 3.0  # of the drafter, that a text needs between two of the engine's
_TICK_S = 1e-6
_NUM_CANDIDATES = 8
_FREE_SHARE, _MOST_FREE_S = 0.03, 0.001  # of a step's time, for drafts from text
_GOOD = 0.5  # of a draft's tokens expected to be right: then no other draft is searched for
_LIKELIEST = Sampler()  # the drafter's order, however vLLM samples
_INDEXED = 1024  # tokens of a prompt that are made searchable in one step


@dataclass
class Counts:
    """Counts since the start."""

    num_steps: int = 0
    num_hits: int = 0  # rows whose next tokens the drafter had already drafted
    num_misses: int = 0
    num_free: int = 0  # rows drafted from earlier text
    num_tokens: int = 0  # proposed
    propose_s: float = 0.0


@dataclass
class Speculator:
    """Proposes at most ``num_tokens`` after each text, of texts up to ``max_length``.

    ``num_slots``: texts that the drafter drafts for at once. ``num_whole``: draft tokens of every
    row with which the engine replays a step as one graph; 0: it has no such graphs.
    """

    num_tokens: int
    max_length: int
    drafter_thread: DrafterThread
    num_slots: int = 16
    num_whole: int = 0
    clock: Callable[[], float] = perf_counter
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._requests = Requests(self.num_slots)
        self._acceptance = Acceptance()
        self._memory = TextMemory()
        allowed = [Sources.FREE, Sources.ALL] if self.drafter_thread.has_drafter else [Sources.FREE]
        self.draft_lengths = DraftLengths(allowed, self.num_whole)
        self._begin_s = 0.0
        self._sources = Sources.NONE  # of the step in flight
        self._num_rows = 0
        self._is_drafting = False  # whether the drafter was requested to after the last step
        self._lessons: list[Callable[[], None]] = []
        self._left: list[TreeCursor] = []  # for the thread to free, since their trees are large

    def propose(self, rows: Sequence[Row]) -> list[list[int]]:
        """The drafts for the next step, one a row; none for rows in prefill."""
        begin_s = self.clock()
        self.drafter_thread.finish()
        requests, gone = self._requests.match(rows), self._requests.gone()
        self._observe(requests, gone, begin_s - self._begin_s)
        self._begin_s, self._num_rows = begin_s, len(rows)
        decoding = [r for r, row in zip(requests, rows, strict=True) if row.num_new]
        batch_size = self.draft_lengths.at(len(rows))
        self._sources = batch_size.governor.sources()
        self._fill(self._chains(decoding, batch_size), batch_size, decoding)
        self._request_drafts(requests, gone, batch_size)
        self.counts.num_steps += 1
        self.counts.propose_s += self.clock() - begin_s
        return [list(request.drafted) for request in requests]

    # --- what the last step taught

    def _observe(
        self, requests: Sequence[Request], gone: Sequence[Request], seconds: float
    ) -> None:
        """Measure a step in which only known texts continued."""
        if len(requests) == self._num_rows and all(
            request.is_continued and request.is_decoding for request in requests
        ):
            batch_size = self.draft_lengths.at(len(requests))
            drafted = [len(request.drafted) for request in requests]
            num_tokens = sum(request.num_new for request in requests)
            self._lessons.append(
                partial(batch_size.observe, self._sources, drafted, num_tokens, seconds)
            )
        for request in requests:
            request.num_right = max(0, request.num_new - 1) if request.is_continued else 0
            if request.is_continued:
                if request.drafted:
                    lesson = partial(
                        request.acceptance.observe, request.num_right, request.num_expected
                    )
                    self._lessons.append(lesson)
                if request.selection is not None:
                    lesson = partial(learn, request.selection, request.new_tokens)
                    self._lessons.append(lesson)
            request.drafted, request.selection = (), None
        for request in gone:
            request.drafted, request.cursor = (), TreeCursor()
            if request.texts is not None:
                self._lessons.append(partial(request.texts.end, request.text))
                request.texts = request.selection = None

    # --- chains

    def _chains(
        self, requests: Sequence[Request], batch_size: BatchSize
    ) -> dict[Request, ProposedChain]:
        """The best known continuation of every text."""
        if self.drafter_thread.has_drafter:  # also without drafts: the next step may have them
            self._follow(requests)
        if self._sources == Sources.NONE:
            return {}
        chains = self._drawn(requests) if self._sources == Sources.ALL else {}
        end_s = self.clock() + min(_FREE_SHARE * batch_size.costs.forward_s(0), _MOST_FREE_S)
        # first texts with nothing else: those right most recently, then those waiting longest
        for request in sorted(
            requests,
            key=lambda r: (r in chains and chains[r].expected, -r.num_right, r.last_search),
        ):
            if request in chains and chains[request].expected > _GOOD * self.num_tokens:
                break  # as are all after it
            request.last_search = self.counts.num_steps
            chain = self._from_texts(request)
            if chain.expected > (chains[request].expected if request in chains else 0.0):
                chains[request] = chain
                self.counts.num_free += 1
            if self.clock() > end_s:
                break
        return chains

    def _drawn(self, requests: Sequence[Request]) -> dict[Request, ProposedChain]:
        """From the drafter's trees: along the likeliest child of every node."""
        with self.drafter_thread.looking():
            chains = {
                request: self._down(request) for request in requests if request.cursor.is_known
            }
        self.counts.num_hits += len(chains)
        self.counts.num_misses += len(requests) - len(chains)
        return chains

    def _follow(self, requests: Sequence[Request]) -> None:
        """Find every text in its tree."""
        with self.drafter_thread.looking():
            for request in requests:
                self._left.append(request.cursor)
                request.cursor = self._cursor(request)
        self._lessons.append(self._left.clear)

    def _down(self, request: Request) -> ProposedChain:
        """The likeliest path in its tree."""
        tree, value = request.cursor.tree, 1.0
        nodes = request.cursor.down(self._room(request))
        values = []
        for node in nodes:
            likely = self._acceptance.estimate(tree.confidences[node], tree.ranks[node])
            value *= min(1.0, likely * request.acceptance.factor)
            values.append(value)
        return ProposedChain([tree.tokens[node] for node in nodes], values)

    def _cursor(self, request: Request) -> TreeCursor:
        """Where the text ends in its tree."""
        drawn = None
        if self._is_drafting and request.slot is not None:
            drawn = self.drafter_thread.drawn(request.slot)
        before = request.length - request.num_new
        if drawn is not None:
            length, tree = drawn
            if length <= before:
                cursor = TreeCursor(tree).follow(request.text[length:before].tolist())
                if cursor.is_known:
                    return self._followed(request, cursor)
            elif length <= request.length:
                cursor = TreeCursor(tree).follow(request.text[length:].tolist())
                if cursor.is_known:
                    return cursor
        return self._followed(request, request.cursor)

    def _followed(self, request: Request, cursor: TreeCursor) -> TreeCursor:
        """From the text's cursor before the step, which updates the acceptance."""
        if not request.is_continued:
            return TreeCursor()
        tokens = request.new_tokens
        self._lessons.append(partial(self._acceptance.learn, cursor.tree, tokens, cursor.node))
        return cursor.follow(tokens)

    def _from_texts(self, request: Request) -> ProposedChain:
        """From this text and earlier ones."""
        if request.texts is None:
            request.texts = TextSources(self._memory, request.text[: request.num_prompt])
            request.num_indexed = 0
        request.num_indexed = min(request.num_indexed + _INDEXED, request.length)
        if request.num_indexed < request.length:
            request.texts.read(request.text[: request.num_indexed])
            return ProposedChain()
        room = self._room(request)
        no_tree = TreeSource(CandidateTree(), self._acceptance)
        request.texts.read(request.text)
        sources = [no_tree, *request.texts.sources(request.text, room)]
        request.selection = Selection(sources, self._memory.mixer)
        grow(request.selection, room, room, has_branches=False)
        return ProposedChain(request.selection.tokens, request.selection.values)

    def _room(self, request: Request) -> int:
        return max(0, min(self.num_tokens, self.max_length - request.length - 1))

    def _fill(
        self,
        found: dict[Request, ProposedChain],
        batch_size: BatchSize,
        decoding: Sequence[Request],
    ) -> None:
        """Send the part of every chain that pays, or fill a whole step without any."""
        if not found and not batch_size.num_whole:
            return
        is_prefilling = len(decoding) < self._num_rows
        chains = [
            replace(
                found.get(request, ProposedChain()),
                room=0 if is_prefilling else self._room(request),
            )
            for request in decoding
        ]
        lengths = batch_size.lengths(chains, len(decoding))
        for request, chain, length in zip(decoding, chains, lengths, strict=True):
            tokens = chain.tokens[:length]
            # what fills a whole step is any token: it may be refused
            filler = [int(request.text[-1])] * (length - len(tokens))
            request.drafted = (*tokens, *filler)
            request.num_expected = sum(chain.values[:length])
            self.counts.num_tokens += length

    # --- the drafter's work until the next step

    def _request_drafts(
        self, requests: Sequence[Request], gone: Sequence[Request], batch_size: BatchSize
    ) -> None:
        served = self._served(requests, batch_size) if self._sources == Sources.ALL else []
        plan = Tree(
            num_candidates=_NUM_CANDIDATES,
            max_expanded=_MAX_EXPANDED // max(1, len(served)),
            depth=2 * self.num_tokens + 1,
        )
        wanted: dict[int, DraftRequest | None] = {
            request.slot: None for request in (*gone, *requests) if request.slot is not None
        }
        for request in served:
            assert request.slot is not None
            wanted[request.slot] = DraftRequest(request.slot, request.text, plan, _LIKELIEST)
        self._is_drafting = bool(served)
        self.drafter_thread.request(wanted, self._lessons)
        self._lessons = []

    def _served(self, requests: Sequence[Request], batch_size: BatchSize) -> list[Request]:
        """The requests that the drafter works for: only as many as it has time for in a step, since
        half a tree for each would help none. Those already served keep their turn."""
        with self.drafter_thread.looking():
            step_s = max(_TICK_S, self.drafter_thread.costs.step_s())
        num_served = max(1, int(batch_size.costs.forward_s(0) / (_STEPS * step_s)))
        able = [request for request in requests if request.slot is not None]
        able.sort(key=lambda request: not request.is_served)
        for place, request in enumerate(able):
            request.is_served = place < num_served
        return able[:num_served]
