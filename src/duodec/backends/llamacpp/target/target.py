"""Score drafts with llama.cpp, in the way that suits the model and where it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from duodec.backends.llamacpp.heads.layers import LlamaHead
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.chains import LlamaChains
from duodec.backends.llamacpp.target.copying import LEAST_COPIED, Holder, copy_text, pays
from duodec.backends.llamacpp.target.padded_slots import LlamaPaddedSlots
from duodec.backends.llamacpp.target.recurrent import LlamaRecurrent
from duodec.backends.llamacpp.target.trees import LlamaScores, LlamaTrees
from duodec.core.targets import Heads, InThisThread, Launched, Query, Scores, Target
from duodec.core.traits import TargetCache, TargetTraits, Widths
from duodec.core.verify import Verdict, propose

_CHAINS = 1  # number of the cache for several slots


class LlamaTarget(Target):
    """Use a llama.cpp model as a target, for the texts of ``num_slots`` slots; scores hold until
    the next `launch` or `score`.

    A recurrent model scores chains, and so does one on a device, where the passes of each text have
    one of the ``widths``, in a context of its own. On a CPU a pass has any number of rows. Any
    other model scores trees, and with several slots, chains of all of them in one forward pass. In
    one cache, the branches of several texts would fill each other's holes, and attention would sum
    in another order, so that bits would depend on the other requests. So a single request is scored
    as trees, and so is one whose method needs branches, in a context of its slot, which is opened
    when it is first needed.

    ``is_width_exact``: no bit depends on drafts; on a device each text has separate passes for
    that. ``most_threads`` returns how many threads may compute now, if that changes. ``open_head``
    makes a head that proposes drafts from one of the target's contexts; the head sees the states of
    all of them.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_context: int,
        num_threads: int,
        num_slots: int = 1,
        widths: Widths = Widths(),  # noqa: B008  frozen
        is_width_exact: bool = True,
        most_threads: Callable[[], int] | None = None,
        open_head: Callable[[object], LlamaHead] | None = None,
    ) -> None:
        """Raise BadOption and ModelUnreadable."""
        self.on_chunk = lambda: None
        self._model, self._num_context, self._num_slots = model, num_context, num_slots
        self._num_threads, self._is_width_exact = num_threads, is_width_exact
        self._most_threads = most_threads
        self._trees: dict[int, LlamaTrees] = {}  # by slot
        self._chains: LlamaChains | LlamaPaddedSlots | None = None
        self._head: LlamaHead | None = None
        options: Any = {"num_context": num_context, "num_threads": num_threads}
        shared = {"num_slots": num_slots, **options}
        try:
            if model.is_recurrent:
                self._chains = LlamaRecurrent(
                    model, is_width_exact=is_width_exact, on_chunk=self._look_up, **shared
                )
            elif widths and is_width_exact:
                self._chains = LlamaPaddedSlots(
                    num_slots, model, widths=widths, on_chunk=self._look_up, **options
                )
            elif widths:
                self._chains = LlamaChains(
                    model, num_rows=widths.most, is_width_exact=False, **shared
                )
                self._chains.on_chunk = self._look_up
            else:
                self._open_trees(0)
                if num_slots > 1:
                    self._chains = LlamaChains(model, is_width_exact=is_width_exact, **shared)
            if open_head:
                parts = [*(trees.context for trees in self._trees.values()), self._chains]
                self._head = open_head(next(part.handle for part in parts if part))
                for slot, trees in self._trees.items():
                    self._show(trees, slot)
                if self._chains:
                    self._chains.show(self._head)
            # What lies behind a window is not written with a text, which may go back to it. And
            # what is copied ends at a place in the text, which is not a position with M-RoPE.
            has_both = bool(self._trees and self._chains)
            is_plain = not (model.has_sliding_window or (model.sight and model.sight.uses_mrope))
            self._copies_texts = has_both and is_plain
            # What a recurrent model can do is tried now, before there are texts.
            only_chains = replace(self.traits, has_branches=False)
            self._caches = TargetCache(0, self.traits), TargetCache(_CHAINS, only_chains)
        except BaseException:
            self.close()
            raise

    @cached_property
    def traits(self) -> TargetTraits:
        traits = TargetTraits() if self._trees or not self._chains else self._chains.traits
        num_mapped = 0 if self._model.is_read else self._model.num_bytes
        traits = replace(
            traits,
            reads_in_chunks=True,
            copies_texts=self._copies_texts,
            num_mapped_bytes=num_mapped,
        )
        if self._head:
            traits = replace(
                traits,
                heads=self._head.name,
                num_heads=self._head.most_tokens,
                heads_share=self._head.share,
            )
        return traits

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Raise ContextExceeded and ComputeFailed."""
        self._follow(queries)
        return self.with_proposals(queries, self._score(queries))

    def _score(self, queries: Sequence[Query]) -> list[Scores]:
        if self._copies_texts:
            for query in queries:
                self._copy_known(query)
        chained = [query for query in queries if self._is_chained(query)]
        found: dict[int, Scores] = {}
        if self._chains and chained:
            found = dict(zip((q.slot for q in chained), self._chains.score(chained), strict=True))
        treed = [query for query in queries if query.slot not in found]
        if self._num_slots == 1 and treed:
            return self.trees(0).score(treed)
        for query in treed:
            (found[query.slot],) = self.trees(query.slot).score([query])
        return [found[query.slot] for query in queries]

    def launch(self, queries: Sequence[Query]) -> Launched:
        if self._chains and self.traits.launches:
            self._follow(queries)
            return _InFlight(self, queries, self._chains.launch(queries))
        return InThisThread(self, queries)

    def cache_for(self, slot: int, *, reads_off_path: bool, is_alone: bool) -> TargetCache:
        is_only_one = not (self._trees and self._chains)
        # Other slots than the first would each need a context of their own.
        is_first = is_only_one or reads_off_path or (is_alone and slot == 0)
        return self._caches[0 if is_first else _CHAINS]

    def forget(self, slot: int) -> None:
        if self._head:
            self._take_states()
            self._head.forget(slot)
        own = slot if self._num_slots > 1 else 0
        if own in self._trees:
            self._trees[own].context.forget(slot)
        if self._chains:
            self._chains.forget(slot)

    def use_threads(self, num_threads: int) -> None:
        """Set the threads of every forward pass. With one slot, a prompt is read by all threads
        that it was made with: nothing is drafted meanwhile."""
        self._num_threads = num_threads
        for trees in self._trees.values():
            self._set_threads(trees)
        if self._chains:
            self._chains.use_threads(num_threads)
        if self._head:
            self._head.num_threads = num_threads

    def close(self) -> None:
        if self._head:
            self._head.close()
        for part in (*self._trees.values(), *([self._chains] if self._chains else ())):
            part.close()

    def trees(self, slot: int) -> LlamaTrees:
        """Return the context for trees over a slot's text."""
        slot = slot if self._num_slots > 1 else 0
        return self._trees.get(slot) or self._open_trees(slot)

    def with_proposals(self, queries: Sequence[Query], scores: list[Scores]) -> list[Scores]:
        """Return the scores of a finished pass, with what the head proposes after them."""
        head = self._head
        if head is None or all(query.heads is None for query in queries):
            return scores
        self._take_states()
        found: list[Scores] = []
        for query, own in zip(queries, scores, strict=True):

            def after(verdict: Verdict, query: Query = query) -> Heads:
                return head.after(query, verdict.tokens)

            assert isinstance(own, LlamaScores)
            proposed = propose(query, own, after, head.most_tokens)
            found.append(replace(own, own=head.accounted(proposed)))
        return found

    # --- parts

    def _copy_known(self, query: Query) -> None:
        """Copy cells of a query's text from the cache that holds most of it, if that takes less
        time than computing them in the cache that scores the query."""
        assert self._chains is not None
        is_chained = self._is_chained(query)
        own: Holder = self._chains if is_chained else self.trees(query.slot).context
        text = query.text[:-1]
        num_own = own.num_held(query.slot, text)
        if len(text) - num_own < LEAST_COPIED:
            return
        slots = (query.slot, *(() if self._head else query.sources))  # a head saw its own slot's
        held = [
            (holder.num_held(slot, text), holder, slot)
            for slot in slots
            for holder in self._holders(slot)
        ]
        num, source, slot = max(held, key=lambda found: found[0])
        if pays(num_own, num):
            lib, known = self._model.lib, text[:num]
            self._copies_texts = copy_text(lib, source, slot, own, query.slot, known)

    def _holders(self, slot: int) -> Iterator[Holder]:
        """Yield the caches that hold a slot's texts."""
        if self._chains:
            yield self._chains
        if slot in self._trees:
            yield self._trees[slot].context

    def _follow(self, queries: Sequence[Query]) -> None:
        if self._head:
            self._take_states()  # of the texts that it follows so far
            self._head.follow(queries)

    def _take_states(self) -> None:
        """Let the head see the states of the last pass."""
        for trees in self._trees.values():
            trees.context.states.take()
        if self._chains:
            self._chains.take_states()

    def _show(self, trees: LlamaTrees, slot: int) -> None:
        """Let the head see the states of a slot's trees."""
        if self._head:
            trees.context.states = self._head.states(trees.context.handle, lambda _: slot)

    def _is_chained(self, query: Query) -> bool:
        return not self._trees or query.cache == _CHAINS

    def _open_trees(self, slot: int) -> LlamaTrees:
        trees = self._trees[slot] = LlamaTrees(
            self._model,
            num_context=self._num_context,
            num_threads=self._num_threads,
            is_width_exact=self._is_width_exact,
            on_chunk=self._look_up,
        )
        self._show(trees, slot)
        if slot == 0:
            trees.context.most_threads = self._most_threads
        return trees

    def _set_threads(self, trees: LlamaTrees) -> None:
        trees.context.num_threads = self._num_threads
        if self._num_slots > 1:  # others' drafts may be made while a prompt is read
            trees.context.num_prompt_threads = self._num_threads

    def _look_up(self) -> None:
        self.on_chunk()


@dataclass(frozen=True)
class _InFlight:
    """Stand for a forward pass that a device computes; a head goes on from its end."""

    target: LlamaTarget
    queries: Sequence[Query]
    launched: Launched

    @property
    def due_s(self) -> float:
        return self.launched.due_s

    def result(self) -> list[Scores]:
        return self.target.with_proposals(self.queries, self.launched.result())
