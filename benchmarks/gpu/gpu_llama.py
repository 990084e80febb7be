"""What only llama.cpp's targets show on a card, for `benchmarks gpu`: which widths agree, whether
texts are plain decoding's, methods in our shape and in their users', and two slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu.gpu_forwards import timed_s, words
from benchmarks.gpu.gpu_methods import (
    Entrant,
    core_plan,
    drafting,
    drafting_on_card,
    same_texts,
)
from benchmarks.gpu.gpu_sections import Note
from duodec.backends.llamacpp.checks.row_trial import try_rows
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.width_choice import choice_for
from duodec.backends.placement import Placement
from duodec.backends.widths.choice import WidthChoice
from duodec.core.sampling.sampler import Sampler
from duodec.core.targets import Query
from duodec.core.tokenizers import Tokenizer
from duodec.core.traits import Widths
from duodec_lab.bench.recording import Turn

_NUM_THREADS = 1  # a GPU needs one, which launches its work
_TEMPERATURES = (0.0, 0.8)
_FREE = ("lookup", "sps:4", "auto")  # methods that decode freely
_NUM_PROMPT, _SLOTS_CONTEXT = 100, 512


def note_choice(choice: WidthChoice, note: Note) -> None:
    note("seconds by rows", choice.seconds)
    note("seconds by rows, after another width", choice.changing)
    note("widths that agree", choice.classes)
    note("chosen widths", choice.widths.each)


def exactness(model: LlamaModel, num_context: int, turn: Turn, note: Note) -> None:
    """The choice of widths, rows in them whatever stands beside them, and the texts of methods."""
    choice = choice_for(model, num_threads=_NUM_THREADS)
    note_choice(choice, note)
    trial = try_rows(model, widths=choice.widths, num_threads=_NUM_THREADS, num_context=num_context)
    note("logits moved from plain decoding's, by what was done", trial.moved)
    target = LlamaTarget(
        model, num_context=num_context, num_threads=_NUM_THREADS, widths=choice.widths
    )
    with closing(target), drafting(num_context, core_plan()) as (vocabulary, drafter):
        for temperature in _TEMPERATURES:
            texts = same_texts(target, vocabulary, drafter, num_context, turn, _FREE, temperature)
            note(f"texts at temperature {temperature:g}", texts)


@contextmanager
def entrants(
    model: LlamaModel, num_context: int, methods: Sequence[str], note: Note
) -> Iterator[tuple[Tokenizer, list[Entrant]]]:
    """Methods as their users have them, in passes of as many rows as they want, plain decoding
    first; then ours, in the chosen widths."""
    choice = choice_for(model, num_threads=_NUM_THREADS)
    note_choice(choice, note)
    options: Any = {"num_context": num_context, "num_threads": _NUM_THREADS}
    with ExitStack() as stack:
        free = stack.enter_context(closing(LlamaTarget(model, **options)))
        ours = stack.enter_context(closing(LlamaTarget(model, widths=choice.widths, **options)))
        vocabulary, drafter = stack.enter_context(drafting(num_context, core_plan()))
        is_on_card = model.placement is not Placement.CPU
        _, on_card = stack.enter_context(drafting_on_card(num_context, is_on_card=is_on_card))
        yield (
            vocabulary,
            [
                Entrant("plain decoding, not padded", "ar", free, None),
                Entrant("prompt lookup, not padded", "lookup:4", free, None),
                Entrant("sps:2 with the draft on the card, not padded", "sps:2", free, on_card),
                Entrant("sps:4 with the draft on the card, not padded", "sps:4", free, on_card),
                *(Entrant(name, name, ours, drafter) for name in methods),
                Entrant("auto with the draft on the card", "auto", ours, on_card),
            ],
        )


def two_slots(model: LlamaModel, note: Note) -> None:
    """Seconds a token of one request, and of two whose passes alternate or are shared: a graph that
    is built anew for another slot shows."""
    widths = Widths.only(choice_for(model, num_threads=_NUM_THREADS).widths.padded(1))
    for name, is_exact in (("passes of each text", True), ("shared passes, --fast", False)):
        target = LlamaTarget(
            model, num_context=_SLOTS_CONTEXT, num_threads=_NUM_THREADS, num_slots=2,
            widths=widths, is_width_exact=is_exact,
        )  # fmt: skip
        with closing(target):
            queries = [_query(model, slot) for slot in range(2)]
            work: dict[str, Callable[[], object]] = {
                "one request": partial(target.score, queries[:1]),
                "two requests at once": partial(target.score, queries),
            }
            seconds = {what: median(timed_s(run)) for what, run in work.items()}
            seconds["two requests at once, a token"] = seconds["two requests at once"] / 2
        note(f"{name}, {widths} rows", seconds)


def _query(model: LlamaModel, slot: int) -> Query:
    text = np.roll(words(_NUM_PROMPT, model.num_vocab), slot)
    return Query(slot, text, sampler=replace(Sampler(), num_prompt_tokens=_NUM_PROMPT))
