"""Run `duodec demo`: decode one prompt plainly and with drafts."""

from __future__ import annotations

import os
import sys
from shutil import which
from typing import TYPE_CHECKING, Annotated

import typer

from duodec.cli.completion import StreamedCompletion, stream_completion
from duodec.cli.interrupts import Interruption, Stopped
from duodec.cli.opening import open_llm, resolve_for
from duodec.cli.options import option
from duodec.cli.output import CompletionWriter, put, say, say_dim, warn
from duodec.cli.summary import busy_words, rate, times
from duodec.core.round import Stats
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.machine.busy import NOTABLE, OtherPrograms

if TYPE_CHECKING:
    from duodec.llm import LLM

EPILOG = """
Examples:
duodec demo
duodec demo --pace 0.1 "Explain recursion with an example."
"""

PROMPT = "Write a Python function that reverses a list, and explain it."
_INTERRUPTED, _DIFFERENT = 130, 3
_WORTH = 1.1  # speed-up, and tokens a pass; below them a slower target shows more
_PACE = "0.05"
_LITTLE = "for so small a model drafts bring little on this processor alone"
_LEAST_PACE_S = 0.001
_YOUR_OWN = "run MODEL.gguf -md SMALL_MODEL_OF_ITS_FAMILY.gguf"


def demo(
    prompt: Annotated[str, typer.Argument(help="What to complete.")] = PROMPT,
    pace: Annotated[str | None, option(
        "--pace SECONDS",
        "Least seconds of a forward pass of the target, or a curve as in `duodec bench "
        "--help`; by default 0.05, and then real clocks."
    )] = None,
    max_tokens: Annotated[
        int, option("--max-tokens -n", "Most tokens of each completion.", min=8)
    ] = 128,
) -> None:  # fmt: skip
    """Decode a prompt plainly and with drafts, and compare both.

    First the target is slowed down: a stand-in for a larger one on a GPU, whose drafts are made in
    real time. Then target and drafts share this processor, on real clocks.
    """
    try:
        if pace is not None:
            compare(prompt, max_tokens, pace)
        else:
            compare(prompt, max_tokens, _PACE)
            say("")
            if compare(prompt, max_tokens, None) is False:
                say_dim(_LITTLE)
    except (Stopped, KeyboardInterrupt):
        say_dim("interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    say_dim(f"With your own model: {_command()}", is_copied=True)


def _command() -> str:
    """Return a command that runs a model of Ollama's on this machine, or shows how to name one."""
    from duodec.models import ollama

    own = next((f"run {model.name}" for model in ollama.installed()), _YOUR_OWN)
    is_found = which("duodec") is not None
    return f"{'duodec' if is_found else os.path.relpath(sys.argv[0])} {own}"


def compare(prompt: str, max_tokens: int, pace: str | None) -> bool | None:
    """Decode plainly and with drafts, and print both and the result; see `is_worth`."""
    from duodec.loading.config import EngineConfig

    config = EngineConfig(pace=pace) if pace else EngineConfig()
    curve = config.pace_curve
    if pace is not None and (curve is None or curve.forward_s < _LEAST_PACE_S):
        raise BadOption(f"pace is {pace}; use {_LEAST_PACE_S} seconds or more")
    with open_llm(resolve_for(config, None), on_warning=warn) as engine:
        if curve is not None:
            slowed = (
                curve.words if isinstance(config.pace, str) else f"{curve.forward_s * 1e3:.0f} ms"
            )
            say_dim(
                f"SmolLM2 135M, slowed to {slowed} a forward pass: a stand-in for a "
                "larger model on a GPU; this CPU drafts in parallel"
            )
        else:
            say_dim("SmolLM2 135M on this CPU, on real clocks")
        others = OtherPrograms()
        _title("Plain decoding")
        plain = _decode(engine, prompt, "ar", max_tokens)
        if plain.is_interrupted:
            raise Stopped
        _title("duodec, drafted text is underlined")
        drafted = _decode(engine, prompt, None, max_tokens)
        busy = others.num_cores
        if drafted.is_interrupted:
            raise Stopped
    if plain.finished.tokens != drafted.finished.tokens:
        warn("the two texts differ, which must never happen; please report it")
        raise typer.Exit(_DIFFERENT)
    say("")
    say(result_line(plain, drafted, busy))
    return is_worth(plain.finished.stats, drafted.finished.stats, busy)


def is_worth(slow: Stats, fast: Stats, num_busy: float) -> bool | None:
    """Return whether drafts pay: by the clock, which is noisy, and by what was accepted. None if
    other programs make the ratio uncertain."""
    if num_busy >= NOTABLE:
        return None
    ratio = fast.tokens_per_second / slow.tokens_per_second
    return ratio >= _WORTH and fast.mean_accepted >= _WORTH


def result_line(plain: StreamedCompletion, drafted: StreamedCompletion, num_busy: float) -> str:
    """Return both speeds and their ratio."""
    slow, fast = plain.finished.stats, drafted.finished.stats
    same = f"the same {len(plain.finished.tokens)} tokens"
    if not fast.num_accepted_tokens:  # a ratio would be noise
        return (
            f"{rate(slow.tokens_per_second)} plainly, {rate(fast.tokens_per_second)} with drafts, "
            f"{same}; no draft was accepted"
        )
    return (
        f"{rate(slow.tokens_per_second)} plainly, {rate(fast.tokens_per_second)} with drafts: "
        f"{times(fast.tokens_per_second / slow.tokens_per_second, num_busy)}, {same}; "
        f"{fast.mean_accepted:.1f} tokens a forward pass{busy_words(num_busy)}"
    )


def _decode(engine: LLM, prompt: str, method: str | None, max_tokens: int) -> StreamedCompletion:
    writer = CompletionWriter(show_draft=True)
    done = stream_completion(
        engine,
        engine.tokens_of([{"role": "user", "content": prompt}]),
        SamplingParams(seed=1),
        method=method,
        max_tokens=max_tokens,
        writer=writer,
        interruption=Interruption(patience=0),
    )
    writer.end()
    say_dim(rate(done.finished.stats.tokens_per_second))
    return done


def _title(words: str) -> None:
    sys.stdout.flush()
    say("")
    put(f"{words}\n\n")
