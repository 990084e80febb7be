"""Run `duodec bench`: every method on the seven tasks, in one run and one report."""

from __future__ import annotations

import shlex
import sys
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duodec.cli import options
from duodec.cli.options import CURVES
from duodec.cli.output import progress_bar, say, say_dim
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec.methods.registry import METHODS
from duodec_lab.commands.report import check_installed, show_run

if TYPE_CHECKING:
    from duodec_lab.bench.plan import BenchPlan
    from duodec_lab.bench.results import Results

EPILOG = f"""
Examples:
duodec bench --methods ar,sps,lookup --tasks qa,humaneval --limit 2
duodec bench --replay-ms 25 --max-tokens 96  # a target of 25 ms a forward pass, on any machine
duodec bench --simulate-ms 25 --draft-ms 1:1.3,4:2.5,8:4.9  # the same, without waiting
duodec bench --simulate-ms mi50-27b-q8_0  # forward passes that cost what was measured on a GPU
duodec bench --paper vicuna-7b --data spec-bench  # the DuoDecoding paper's evaluation
duodec bench --data spec_bench --methods ar,ar  # a control: 1.00 is within the interval
duodec bench --resume --output bench-1  # continue an interrupted run

The folder holds results.json (raw times included), report.md and report.html; see also
`duodec report`.

{CURVES}

Exit status:
0: measured. 1: something failed, or the disk is full. 2: bad input. 130: interrupted; what was \
measured is kept.
"""

_INTERRUPTED = 130
_ALL = "all"
_PANEL = "Benchmark"


@options.derived
def bench(
    *,
    invocation: typer.Context,
    methods: Annotated[
        str,
        options.option(
            "--methods A,B,...",
            "Methods, comma-separated; one may be named twice, and sps:2 drafts two tokens. all: "
            "every exact one, `rest` only with a datastore, those that read rows off the text "
            "not in a replay.",
            _PANEL,
        ),
    ] = _ALL,
    paper: Annotated[
        str | None,
        options.option(
            "--paper NAME",
            "Measure what the DuoDecoding paper's scripts measure, as they do: llama-2-7b or "
            "vicuna-7b. Sets methods, models, formats, threads, tokens, warm-up and prompts; "
            "your own options override them.",
            _PANEL,
        ),
    ] = None,
    tasks: options.Tasks = _ALL,
    data: options.PromptFolder = None,
    limit: Annotated[
        int,
        options.option("--limit", "Prompts a task, spread over it; 0: all.", _PANEL),
    ] = 5,
    max_tokens: Annotated[
        int,
        options.option(
            "--max-tokens -n",
            "Most tokens of a completion; qa and rag get 32, but not with --paper vicuna-7b.",
            _PANEL,
        ),
    ] = 128,
    repeats: Annotated[
        int,
        options.option("--repeats", "Repetitions of the whole benchmark.", _PANEL),
    ] = 1,
    replay_ms: Annotated[
        str | None,
        options.option(
            "--replay-ms CURVE",
            "Record the target's plain text, then replay it at these costs of a forward pass: a "
            "stand-in for a target on other hardware.",
            _PANEL,
        ),
    ] = None,
    simulate_ms: Annotated[
        str | None,
        options.option(
            "--simulate-ms CURVE",
            "The same on a virtual clock: real rows and drafts, without waiting, and all methods "
            "on equal terms.",
            _PANEL,
        ),
    ] = None,
    draft_ms: options.DraftCosts = None,
    simulate_as: options.SimulateAs = None,
    host_us: options.HostCosts = None,
    prefill_ms: Annotated[
        float,
        options.option(
            "--prefill-ms MS", "Prefill time of a prompt token in a replay or a simulation.", _PANEL
        ),
    ] = 0.1,
    control: Annotated[
        str | None,
        options.option(
            "--control NAME",
            "shuffled: replay texts whose tokens are shuffled; no draft may do well.",
            _PANEL,
        ),
    ] = None,
    run_code: Annotated[
        bool,
        options.option(
            "--run-code",
            "Run the code in humaneval's completions to score them. A child process with "
            "limits guards against accidents, not against malicious code.",
            _PANEL,
        ),
    ] = False,
    output: Annotated[
        Path | None,
        options.option(
            "--output -o FOLDER", "The folder for results and report; by default a new one.", _PANEL
        ),
    ] = None,
    resume: Annotated[
        bool,
        options.option("--resume", "Continue the run in --output, with the same settings.", _PANEL),
    ] = False,
    target: Annotated[
        list[str] | None,
        options.option(
            "--target -m MODEL", "A target; several may be given. [default: smollm2]", "Models"
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        options.option(
            "--draft -md MODEL", "A draft model; several may be given. [default: auto]", "Models"
        ),
    ] = None,
    quiet: Annotated[
        bool,
        options.option("--quiet -q", "No progress, no tables.", "Output"),
    ] = False,
    config: Annotated[
        EngineConfig,
        options.Options(
            without=("target", "draft", "gpu_layers", "pace", *options.GRAMMAR_LIMITS),
            defaults={"datastore": "auto"},
        ),
    ],
    sampling: Annotated[
        SamplingParams,
        options.Options(only=("temperature", "top_p", "seed"), defaults={"seed": 0}),
    ],
) -> None:
    """Compare methods: speed, acceptance, overlap, identity of the text.

    Prompts are cold, methods take turns in an order that rotates, and every completion is compared
    with plain decoding. Raw times are kept.
    """
    from duodec_lab.bench.paper import SPEC_BENCH, paper_named, paper_plan, spec_bench
    from duodec_lab.bench.plan import BenchPlan
    from duodec_lab.bench.tasks import tasks_named

    check_installed()
    if resume and output is None:
        raise BadOption("--resume needs the folder to continue in; name it with --output")
    if data is not None and str(data) == SPEC_BENCH and not data.exists():
        data = spec_bench(offline=config.offline)
    if paper is not None:
        paper_named(paper)
    plan = BenchPlan(
        methods=("ar",) if paper else _methods(methods, config, target or [], replay_ms),
        targets=tuple(target or BenchPlan.targets),
        drafts=tuple(draft or BenchPlan.drafts),
        config=config,
        tasks=tuple(tasks_named(tasks)),
        data=data,
        limit=limit or None,
        max_tokens=max_tokens,
        repeats=repeats,
        replay_ms=replay_ms,
        simulate_ms=simulate_ms,
        draft_ms=draft_ms,
        simulate_as=simulate_as,
        host_us=host_us,
        prefill_ms=prefill_ms,
        control=control,
        sampling=sampling,
        runs_code=run_code,
    )
    if paper is not None:
        own = ("ar",) if methods == _ALL else _methods(methods, config, target or [], replay_ms)
        plan = _with_datastore(paper_plan(paper, replace(plan, methods=own), _chosen(invocation)))
    elif methods == _ALL:
        _say_left_out(plan)
    folder = output or Path(datetime.now().strftime("bench-%Y%m%d-%H%M%S"))
    _measure(plan, folder, is_resumed=resume, is_quiet=quiet)


def _measure(plan: BenchPlan, folder: Path, *, is_resumed: bool, is_quiet: bool) -> None:
    from duodec.loading.resolve import resolve_target
    from duodec.loading.vetting import vetted_files
    from duodec_lab.bench.benchmark import PAGE, TABLES, benchmark
    from duodec_lab.bench.reports.claims import claims

    for target in plan.targets:  # what is wrong with one is told before a lack of drafts
        vetted_files(resolve_target(replace(plan.config, target=target)))
    command = shlex.join(["duodec", *sys.argv[1:]])
    try:
        with progress_bar(is_quiet=is_quiet) as on_progress:
            results = benchmark(
                plan, folder, command=command, is_resumed=is_resumed, on_progress=on_progress
            )
    except KeyboardInterrupt:
        kept = f"what was measured is in {folder}: continue with --resume"
        say_dim(f"interrupted; {kept if folder.exists() else 'nothing was measured yet'}")
        raise typer.Exit(_INTERRUPTED) from None
    if not is_quiet:
        show_run(results)
        for line in claims(results) if plan.paper else ():
            say(line)
    say_dim(f"written to {folder}: results.json, {TABLES}, {PAGE}")
    _exit_status(results)


_NO_DATASTORE = "without `rest`: no datastore is loaded; see `duodec datastore build`"
_FIELDS = {"target": "targets", "draft": "drafts"}  # of the plan, where they differ


def _chosen(invocation: typer.Context) -> frozenset[str]:
    """Fields of the plan and its configuration that the user has set."""
    sources = {name: invocation.get_parameter_source(name) for name in invocation.params}
    return frozenset(
        _FIELDS.get(name, name)
        for name, source in sources.items()
        if source is not None and source.name != "DEFAULT"
    )


def _with_datastore(plan: BenchPlan) -> BenchPlan:
    """The plan, without `rest` where there is no datastore for its target."""
    if not plan.needs_datastore:
        return plan
    if all(_has_datastore(replace(plan.config, target=target)) for target in plan.targets):
        return plan
    say_dim(_NO_DATASTORE)
    return replace(plan, methods=tuple(name for name in plan.methods if name != "rest"))


def _exit_status(results: Results) -> None:
    failed = sum(generation.error is not None for generation in results.generations)
    differing = sum(generation.identical is False for generation in results.generations)
    if failed:
        say(f"duodec: {failed} completions failed; the report lists them")
    if differing:
        say(f"duodec: {differing} completions differ from plain decoding; the report counts them")
    if failed:
        raise typer.Exit(1)


def _methods(
    names: str, config: EngineConfig, targets: list[str], replay_ms: str | None
) -> tuple[str, ...]:
    """The methods of a list such as ``ar,sps:2``; of ``all``, those that can run."""
    if names != _ALL:
        return tuple(name.strip() for name in names.split(",") if name.strip())
    chosen = [name for name, kind in METHODS.items() if name != "sps-rejection"]
    if replay_ms is not None:
        chosen = [name for name in chosen if not METHODS[name].reads_off_path]
    if not all(_has_datastore(replace(config, target=t)) for t in targets or [config.target]):
        chosen.remove("rest")
    return tuple(chosen)


def _say_left_out(plan: BenchPlan) -> None:
    """Which of all methods cannot run here."""
    if plan.replay_ms is not None:
        off_path = [name for name, kind in METHODS.items() if kind.reads_off_path]
        say_dim(f"without {', '.join(off_path)}: a replay has no rows off the recorded text")
    if "rest" not in plan.methods:
        say_dim(_NO_DATASTORE)


def _has_datastore(config: EngineConfig) -> bool:
    """Raises BadOption for a named one that cannot be used."""
    from duodec.datastores import open_for
    from duodec.loading.resolve import resolve_target

    named = None if config.datastore in (None, "auto") else Path(config.datastore)
    with closing(resolve_target(config).open_vocabulary()) as vocabulary:
        try:
            open_for(vocabulary, named)
        except BadOption:
            if named is not None:
                raise
            return False
    return True
