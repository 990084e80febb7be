"""Run `duodec profile`: measure forward passes and draft steps here, for the planner."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from duodec.cli import options
from duodec.cli.opening import open_llm, resolve_for
from duodec.cli.output import progress_bar, put, put_table, say_dim, warn
from duodec.errors import BackendUnavailable, BadOption
from duodec.loading.config import EngineConfig
from duodec.machine import plugins
from duodec.machine.busy import wait_until_idle
from duodec.machine.install import install_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from duodec.backends.step_time import StepTime
    from duodec.loading.profile import Profile
    from duodec.loading.resolve import ResolvedPair

    OnProgress = Callable[[str, int, int], None]

EPILOG = """
Examples:
duodec profile  # the default pair, kept for the planner
duodec profile -m T.gguf -md D.gguf --plot curves.svg

Measure on a quiet machine: implausible results are measured again, and what held is kept.

A profile belongs to the processor, its cores and the two files. Without one, the planner learns the
same within a few completions.
"""

_BAR = 40
_SCHEMA_VERSION = 1
_NOT_KEPT = 3  # exit status of a check that failed


@options.derived
def profile(
    *,
    plot: Annotated[
        Path | None,
        options.option("--plot FILE.svg", "Also draw the curves into this SVG file.", "Output"),
    ] = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
    config: Annotated[
        EngineConfig,
        options.Options(without=options.OF_DECODING),
    ],
) -> None:
    """Measure what forward passes and draft steps cost, and keep it.

    The planner starts with the curves T(n) and d(k) of this pair on this machine.
    """
    from duodec.cli.checks.payoff import Speed, check_speed

    if plot and not plot.resolve().parent.is_dir():
        raise BadOption(f"--plot {plot}: there is no such folder; create it first")
    pair = resolve_for(config, None)
    if busy := wait_until_idle(wait):
        warn(f"{busy}; stop them, or let --wait 120 wait until they are done")
        raise typer.Exit(_NOT_KEPT)
    with open_llm(pair, on_warning=warn) as engine:
        from duodec.backends.loaded import TargetModel
        from duodec.loading import profile as profiling
        from duodec.loading.load import another_drafter
        from duodec.machine.cores import available_cores

        loaded, least = engine.loaded, min(profiling.CONTEXTS) + max(profiling.WIDTHS) + 1
        if loaded.num_context < least:
            raise BadOption(
                f"context is {loaded.num_context}, and a profile needs {least} tokens; leave it out"
            )
        shares_cores = loaded.cores.is_shared
        measured = pair if loaded.drafter else pair.without_draft()
        with progress_bar(is_quiet=False) as on_progress:
            names = (pair.name, measured.draft_name)
            found, held, flaw = profiling.measure_soundly(
                loaded, measured.profile_key, names, on_progress
            )
            if loaded.drafter and not shares_cores and config.draft_threads is None:
                loaded.cores.prepare(False)  # all cores are ours again
                swept = profiling.sweep_threads(
                    partial(
                        another_drafter,
                        pair,
                        cast(TargetModel, loaded.tokenizer),
                        loaded.num_context,
                    ),
                    profiling.thread_counts(len(available_cores()) - 1),
                    loaded.tokenizer.num_vocab,
                )
                found = replace(found, threads=swept)
            if loaded.drafter:
                found = replace(found, attention=_attention(measured, found, on_progress))
    held = replace(held, threads=found.threads, attention=found.attention)
    path = held.write() if held.forwards else None
    if plot:
        _write_plot(found, plot)
    if json:
        record = {"schema_version": _SCHEMA_VERSION, **asdict(found)}
        put(f"{json_format.dumps(record)}\n")
    else:
        _show(found)
        for check in [] if flaw else check_speed(Speed.of(held), shares_cores=shares_cores):
            put(f"{check.name}: {check.words}\n")
    if flaw:
        part = "the other contexts are kept" if path else "not kept"
        warn(f"{part}: {flaw}; measure again on a quiet machine")
    if path is None:
        raise typer.Exit(_NOT_KEPT)
    say_dim(f"kept in {path}")


def _attention(pair: ResolvedPair, found: Profile, on_progress: OnProgress) -> tuple[StepTime, ...]:
    """Time draft steps with and without flash attention, on as many threads as the drafter has. A
    recurrent model drafts without it, so nothing is timed."""
    from contextlib import closing

    from duodec.backends.llamacpp.drafts.steps import step_times
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.loading import profile as profiling

    assert pair.draft is not None, "there is a drafter"
    times: list[StepTime] = []
    total = 2 * len(profiling.ATTENTION_TEXTS) * len(profiling.ATTENTION_LEAVES)
    with closing(LlamaModel(pair.draft.path, num_gpu_layers=0)) as model:
        if model.is_recurrent:
            return ()
        for uses_flash_attention in (True, False):
            for time in step_times(
                model,
                num_threads=found.draft_threads or pair.config.draft_threads or 1,
                uses_flash_attention=uses_flash_attention,
                texts=profiling.ATTENTION_TEXTS,
                leaves=profiling.ATTENTION_LEAVES,
            ):
                times.append(time)
                on_progress("measuring attention", len(times), total)
    return tuple(times)


def _show(found: Profile) -> None:
    longest = max(f.seconds for f in found.forwards)
    put_table(
        ("context", "draft tokens", "ms a pass", "with the drafter", ""),
        [
            (
                str(f.context),
                str(f.width),
                f"{f.seconds * 1e3:.2f}",
                "-" if f.beside_s is None else f"{f.beside_s * 1e3:.2f}",
                "█" * max(1, round(_BAR * f.seconds / longest)),
            )
            for f in found.forwards
        ],
    )
    if found.steps:
        put("\n")
        put_table(
            ("context", "leaves", "ms a draft step"),
            [(str(s.context), str(s.leaves), f"{s.seconds * 1e3:.2f}") for s in found.steps],
        )
    if found.threads:
        put("\n")
        put_table(
            ("draft threads", "ms a draft step", ""),
            [
                (str(t.num_threads), f"{t.seconds * 1e3:.2f}",
                 "taken" if t.num_threads == found.draft_threads else "")
                for t in found.threads
            ],
        )  # fmt: skip
    if found.attention:
        put("\n")
        put_table(
            ("tokens of text", "leaves", "flash attention", "ms a draft step", ""),
            [
                (str(a.num_text), str(a.num_leaves), "on" if a.uses_flash_attention else "off",
                 f"{a.seconds * 1e3:.2f}",
                 "taken" if a.uses_flash_attention is found.draft_uses_flash_attention else "")
                for a in found.attention
            ],
        )  # fmt: skip
    if found.contention is not None:
        put(f"\na pass takes {found.contention:.2f} times as long while the drafter works\n")


def _write_plot(found: Profile, path: Path) -> None:
    try:
        costs_figure = plugins.load(plugins.FIGURES, "costs", "duodec profile --plot")
    except ImportError:
        raise BackendUnavailable(
            f"a plot needs matplotlib, which is not installed; run: {install_command('matplotlib')}"
        ) from None
    path.write_text(costs_figure(found), encoding="utf-8")
