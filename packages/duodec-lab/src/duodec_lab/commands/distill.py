"""Run `duodec distill`: make a draft for a target, and keep it if it is better."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duodec.cli import options
from duodec.cli.output import OnProgress, is_terminal, progress_bar, put, put_table, say, say_dim
from duodec.core.sampling.sampler import SamplingParams
from duodec.loading.config import EngineConfig
from duodec.machine.signals import INTERRUPTED
from duodec_lab.distill.settings import FOLDERS, DistillSettings

if TYPE_CHECKING:
    from duodec_lab.distill.eagle.recipe import LayerDistillation
    from duodec_lab.distill.recipe import Distillation, Result
    from duodec_lab.distill.training.heads import Trained

EPILOG = """
Examples:
duodec distill smollm2 --minutes 60  # adapt its own draft, with our prompts
duodec distill MODEL.gguf --from SMALL.gguf --prompts chats.jsonl  # with your prompts
duodec distill smollm2 --write-prompts 2000  # with prompts that the target writes itself
duodec distill smollm2 --from smollm2 --layers 6  # a copy of the target with six of its layers
duodec distill qwen2.5-coder-1.5b --from smollm2  # another vocabulary: it gets the target's
duodec distill smollm2 --heads eagle3  # a layer on the target's own hidden states
duodec distill smollm2 --heads medusa  # heads on the target itself, for --target-backend torch

What happens:
1. The target completes prompts at --temperature. Its likeliest tokens are recorded. 2. A copy of \
--from is trained to say what the target says. 3. The copy is written as GGUF. 4. Both draft for \
held-out prompts on a virtual clock; the file is kept at --output only if the target needs fewer \
forward passes with it (between equals, with the draft alone).

Ctrl-C at any time: the same command goes on where it stopped. All work is in OUTPUT.distill, which
you may delete afterwards. It needs torch. See docs/distill.md.

Exit status:
0: a better draft was written. 1: it is not better, the disk is full, or a device failed. 2: bad \
input. 130: interrupted.
"""

_LINE_S = 15.0  # between lines of progress off a terminal


@options.derived
def distill(
    *,
    target: Annotated[
        str,
        typer.Argument(
            help="The model that the draft is for.", metavar="TARGET", show_default=False
        ),
    ],
    origin: Annotated[
        str | None,
        options.option(
            "--from DRAFT",
            "The small model to start from: a GGUF file, hf:owner/repo or an alias. By default the "
            "draft known for the target, else a copy of the target itself.",
            "Models",
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        options.option(
            "--prompts FILE",
            "Files or folders of prompts: chats (.jsonl, .json), or text with a prompt a "
            "paragraph; may be given several times. By default our own.",
            "Distillation",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        options.option(
            "--output -o FILE",
            "The new draft's file; by default TARGET-draft.gguf in this folder.",
            "Output",
        ),
    ] = None,
    json: Annotated[bool, options.option("--json", "One JSON object on stdout.", "Output")] = False,
    quiet: options.Quiet = False,
    settings: Annotated[DistillSettings, options.Options()],
    config: Annotated[
        EngineConfig,
        options.Options(
            only=(
                "target_backend",
                "offline",
                "context",
                "threads",
                "draft_threads",
                "gpu_layers",
                "device",
                "dtype",
            )
        ),
    ],
    sampling: Annotated[
        SamplingParams,
        options.Options(only=("temperature", "top_p", "top_k", "seed"), defaults={"seed": 0}),
    ],
) -> None:
    """Make a draft for a target, and keep it if it is better.

    Record what the target says, train a small model on that, judge it.
    """
    common: dict[str, Any] = {
        "config": replace(config, target=target),
        "settings": settings,
        "params": sampling,
        "files": tuple(prompts or ()),
    }
    if settings.heads in FOLDERS:
        path = output or Path(f"{_stem(target)}-{settings.heads}")
        with _working(path, is_quiet=quiet) as on_progress:
            from duodec_lab.distill.training.heads import HeadDistillation

            heads = HeadDistillation(**common, output=path, on_progress=on_progress)
            heads.check()
            trained = heads.run()
        if json:
            put(f"{json_format.dumps(trained.as_json(), ensure_ascii=False)}\n")
        elif not quiet:
            _show_heads(trained, target)
        return
    path = output or Path(f"{_stem(target)}-{settings.heads or 'draft'}.gguf")
    work: Distillation | LayerDistillation
    with _working(path, is_quiet=quiet) as on_progress:
        if settings.heads:
            from duodec_lab.distill.eagle.recipe import LayerDistillation

            work = LayerDistillation(**common, output=path, on_progress=on_progress)
        else:
            from duodec_lab.distill.recipe import Distillation

            work = Distillation(**common, origin=origin, output=path, on_progress=on_progress)
        work.check()
        result = work.run()
    if json:
        put(f"{json_format.dumps(result.as_json(), ensure_ascii=False)}\n")
    elif not quiet:
        _show(result, _OF_A_HEAD if settings.heads else _OF_A_DRAFT)
    _close(result, f"-m {target} {'--heads' if settings.heads else '-md'} {result.path}")


@contextmanager
def _working(path: Path, *, is_quiet: bool) -> Iterator[OnProgress]:
    """Progress of the work, and one line on how to go on after Ctrl-C."""
    with progress_bar(is_quiet=is_quiet) as on_progress, _one_line_for_its_end(path):
        yield _throttled(on_progress)


def _stem(target: str) -> str:
    """A file's name for a target: of a path, a repository or an alias."""
    name = Path(target.partition("@")[0]).name.removesuffix(".gguf")
    return name.replace(":", "-") or "target"


def _throttled(show: OnProgress) -> OnProgress:
    """Off a terminal, a line now and then."""
    if is_terminal(sys.stderr):
        return show
    last: list[float] = []

    def rarely(words: str, done: int, total: int) -> None:
        now_s = monotonic()
        if not last or now_s - last[0] >= _LINE_S or done == total:
            last[:] = [now_s]
            show(words, done, total)

    return rarely


@contextmanager
def _one_line_for_its_end(path: Path) -> Iterator[None]:
    """Say how to go on after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        say("")
        say_dim(f"interrupted; what was done is in {path}.distill: the same command goes on")
        raise typer.Exit(INTERRUPTED) from None


@dataclass(frozen=True)
class _Words:
    """What the table calls what was made."""

    name: str
    none: str  # where there was none before
    ahead: str  # how often a guess is right after so many tokens


_OF_A_DRAFT = _Words("draft", "none: earlier text", "agreement, after {} mask tokens")
_OF_A_HEAD = _Words("head", "none: earlier text", "right after {} right guesses")


def _show(result: Result, words: _Words) -> None:
    first, last = result.measures[0], result.measures[-1]
    put_table(
        ("", "BEFORE", "AFTER"),
        [
            (words.name, result.before.draft or words.none, str(result.path)),
            (
                "tokens a forward pass",
                f"{result.before.default:.3f}",
                f"{result.after.default:.3f}",
            ),
            (
                f"  by the {words.name} alone",
                f"{result.before.chain:.3f}",
                f"{result.after.chain:.3f}",
            ),
            ("agreement, first guess", f"{first.top1:.3f}", f"{last.top1:.3f}"),
            ("  one of the first four", f"{first.top4:.3f}", f"{last.top4:.3f}"),
            *(
                (words.ahead.format(number), f"{before:.3f}", f"{after:.3f}")
                for number, (before, after) in enumerate(
                    zip(first.ahead, last.ahead, strict=True), 1
                )
            ),
            ("loss", f"{first.loss:.3f}", f"{last.loss:.3f}"),
        ],
    )


def _show_heads(trained: Trained, target: str) -> None:
    put_table(
        ("HEAD", "RIGHT BEFORE", "AND AFTER"),
        [
            (f"{i} tokens ahead", f"{before:.3f}", f"{after:.3f}")
            for i, (before, after) in enumerate(zip(trained.before, trained.after, strict=True), 2)
        ],
    )
    say_dim(
        f"{trained.num_recorded:,} tokens in {trained.recording_s / 60:.1f} min; "
        f"{trained.num_steps} steps in {trained.training_s / 60:.1f} min; use them:"
    )
    use = f"duodec generate -m {target} --target-backend torch --heads {trained.path} PROMPT"
    say_dim(use, is_copied=True)


def _close(result: Result, options_to_use: str) -> None:
    say_dim(
        f"{result.num_recorded:,} tokens of {result.num_conversations} conversations in "
        f"{result.recording_s / 60:.1f} min; {result.num_steps} steps in "
        f"{result.training_s / 60:.1f} min"
    )
    if result.is_better:
        say_dim(f"better; use it: duodec generate {options_to_use} PROMPT", is_copied=True)
        return
    say(
        f"duodec: {result.path.name} is no better, and was not kept as the output; it is "
        f"{result.path}: record more with --minutes and --prompts"
    )
    raise typer.Exit(1)
