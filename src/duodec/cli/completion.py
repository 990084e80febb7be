"""Stream one completion on the command line, stop it, and time it against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import count, pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from duodec.cli.interrupts import Interruption
from duodec.cli.output import CompletionWriter, status
from duodec.core.events import Delta, Finished, Started
from duodec.core.prompts.pictures import PromptTokens, shown_in
from duodec.core.round import median
from duodec.core.sampling.sampler import SamplingParams

if TYPE_CHECKING:
    from duodec.llm import LLM

_LONG = 256  # a prompt of this many tokens takes a moment on a CPU
_PROBE_TOKENS = 8
_LONGEST_PROBE_S = 3.0  # a comparison that takes longer is not worth the wait
_PROBE_S = 1.0  # the limit once there are a few rounds
_FEWEST = 3  # rounds that make a median


@dataclass(frozen=True)
class StreamedCompletion:
    """Hold the completion of a prompt."""

    method: str
    prompt: Sequence[int]  # tokens
    finished: Finished
    is_interrupted: bool


def stream_completion(
    llm: LLM,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    method: str | None,
    max_tokens: int | None,
    writer: CompletionWriter,
    interruption: Interruption,
    stop: Sequence[str] = (),
    choice: int = 0,
    is_quiet: bool = False,
) -> StreamedCompletion:
    """Stream the completion of a tokenised prompt. A spinner shows while a long prompt is read,
    unless ``is_quiet``. Raises Stopped, OutputClosed and what `LLM.stream` raises."""
    chosen = llm.method(method)
    params = replace(sampling, max_tokens=max_tokens, stop=tuple(stop))
    events = llm.stream(
        prompt, params, method=chosen, choice=choice, should_stop=lambda: interruption.is_asked
    )
    with (
        interruption,
        llm.checked_by(interruption.check),
        closing(cast(Any, events)),
        ExitStack() as reading,
    ):
        if len(prompt) >= _LONG:
            reading.enter_context(status(f"reading {len(prompt):,} tokens", is_quiet=is_quiet))
        for event in events:
            if not isinstance(event, Started):
                reading.close()
            if isinstance(event, Delta):
                writer.write(event.segments)
            elif isinstance(event, Finished):
                is_cut = interruption.is_asked and event.finish_reason != "stop"
                return StreamedCompletion(chosen.name, prompt, event, is_cut)
    raise AssertionError("a completion ends with Finished")


def plain_seconds(llm: LLM, done: StreamedCompletion, sampling: SamplingParams) -> float | None:
    """Return the seconds per token of plain decoding on this machine, at the end of this text.

    The completion's last tokens are decoded again: one seed gives one text. None if the text is too
    short.
    """
    tail = done.finished.tokens[-_PROBE_TOKENS:]
    expected_s = (_FEWEST + 1) * done.finished.stats.median_forward_s
    if len(tail) <= _FEWEST or not expected_s < _LONGEST_PROBE_S:
        return None
    text = PromptTokens([*done.prompt, *done.finished.tokens[: -len(tail)]], shown_in(done.prompt))
    num_rounds, end_s = count(1), perf_counter() + _PROBE_S
    *_, last = llm.stream(
        text,
        replace(sampling, max_tokens=len(tail), stop=()),
        method="ar",
        should_stop=lambda: next(num_rounds) > _FEWEST and perf_counter() >= end_s,
    )
    assert isinstance(last, Finished)
    gaps = [b.end_s - a.end_s for a, b in pairwise(last.stats.rounds)]
    return median(gaps) if len(gaps) >= _FEWEST else None
