"""Score the texts of several slots on a device, each in a context of its own.

llama.cpp rebuilds its graph for a pass that continues another sequence of a context, and a GPU
replays only what it has computed twice in a row. Two requests that alternate in one context would
never replay a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.chains import InFlight, SeesStates
from duodec.backends.llamacpp.target.copying import Place
from duodec.backends.llamacpp.target.padded import LlamaPadded
from duodec.backends.tree_cache import Entry
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query, Scores, Target
from duodec.core.traits import TargetTraits


class LlamaPaddedSlots(Target):
    """Score the texts of ``num_slots`` slots, as `LlamaPadded` does for one. A query's scores hold
    until the next forward pass of its slot."""

    def __init__(self, num_slots: int, model: LlamaModel, **options: Any) -> None:
        """``options`` are those of each `LlamaPadded`. Raises BadOption and ModelUnreadable."""
        self._texts: list[LlamaPadded] = []
        try:
            for _ in range(num_slots):
                self._texts.append(LlamaPadded(model, **options))
        except BaseException:
            self.close()
            raise

    @property
    def traits(self) -> TargetTraits:
        return self._texts[0].traits

    @property
    def handle(self) -> object:
        """Return one of the contexts."""
        return self._texts[0].handle

    def use_threads(self, num_threads: int) -> None:
        for text in self._texts:
            text.use_threads(num_threads)

    def show(self, head: SeesStates) -> None:
        """Let a head see the hidden states of all forward passes."""
        for slot, text in enumerate(self._texts):
            text.states = head.states(text.handle, partial(_of, slot))

    def take_states(self) -> None:
        for text in self._texts:
            text.take_states()

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Raise what `launch` raises."""
        return self.launch(queries).result() if queries else []

    def launch(self, queries: Sequence[Query]) -> InFlight:
        """Start the forward passes of all queries, after what their texts lack. Raises
        ContextExceeded and ComputeFailed; then the content of the slot is forgotten."""
        begun = {q.slot: self._texts[q.slot].launch([replace(q, slot=0)]) for q in queries}

        def read() -> dict[int, list[Row]]:
            return {slot: one.read()[0] for slot, one in begun.items()}

        num_computed = {slot: one.num_computed[0] for slot, one in begun.items()}
        is_elsewhere = all(one.is_elsewhere for one in begun.values())
        return InFlight(queries, read, is_elsewhere, num_computed)

    def num_held(self, slot: int, text: Tokens) -> int:
        """Return how many tokens of a text a slot's cells hold."""
        return self._texts[slot].num_held(0, text)

    def place(self, slot: int) -> Place:
        """Return where a slot's text lies."""
        return self._texts[slot].place(0)

    def make_room(self, slot: int, text: Tokens) -> Place:
        """Forget a slot's text; the caller copies ``text`` to the returned place."""
        return self._texts[slot].make_room(0, text)

    def forget(self, slot: int) -> None:
        self._texts[slot].forget(0)

    def close(self) -> None:
        for text in self._texts:
            text.close()


def _of(slot: int, entry: Entry) -> int:
    """Return the slot of each entry of a context."""
    return slot
