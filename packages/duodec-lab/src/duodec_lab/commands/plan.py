"""Run `duodec plan`: forecast the speed of drafts on other hardware."""

from __future__ import annotations

from typing import Annotated

from duodec.cli import options
from duodec.cli.options import CURVES
from duodec.cli.output import progress_bar, say_dim
from duodec.core.sampling.sampler import SamplingParams
from duodec.loading.config import EngineConfig
from duodec_lab.commands.report import check_installed, show_run

EPILOG = f"""
Examples:
duodec plan --target-ms 20  # a target of 20 ms a forward pass, the draft on this machine
duodec plan --target-ms rtx3090-8b-q4_0  # forward passes that cost what was measured on a GPU
duodec plan --target-ms 20 --draft-speed inf  # the most that any CPU could give
duodec plan --target-ms 100 -m qwen2.5-coder-1.5b -md qwen2.5-coder-0.5b --tasks humaneval
duodec plan --target-ms 20 --draft-ms 1:0.8,4:1.4,8:2.7  # another machine's draft steps

The target of --target provides text and rows: how often a draft is right depends on them. Drafts
are computed for real, but time passes on a virtual clock, from the cost tables: `duodec bench
--simulate-ms` is the same simulation with a report.

{CURVES}
"""

_PANEL = "Plan"


@options.derived
def plan(
    *,
    target_ms: Annotated[str, options.option(
        "--target-ms CURVE", "Time of a forward pass of the target there.", _PANEL
    )],
    prefill_ms: Annotated[
        float, options.option("--prefill-ms MS", "Prefill time of a prompt token.", _PANEL)
    ] = 0.1,
    methods: Annotated[
        str, options.option("--methods A,B,...", "Methods, comma-separated.", _PANEL)
    ] = "ar,sps:2,sps:4,duo,stream,auto",
    tasks: options.Tasks = "all",
    data: options.PromptFolder = None,
    limit: Annotated[int, options.option("--limit", "Prompts a task.", _PANEL)] = 2,
    max_tokens: Annotated[
        int, options.option("--max-tokens -n", "Most tokens of a completion.", _PANEL)
    ] = 96,
    draft_ms: options.DraftCosts = None,
    simulate_as: options.SimulateAs = None,
    host_us: options.HostCosts = None,
    draft_speed: Annotated[float, options.option(
        "--draft-speed", "How many times faster the draft model is there; inf: it takes no time.",
        _PANEL
    )] = 1.0,
    quiet: options.Quiet = False,
    config: Annotated[
        EngineConfig,
        options.Options(
            only=(
                "target",
                "draft",
                "target_backend",
                "offline",
                "draft_threads",
                "draft_device",
                "device",
                "dtype",
            )
        ),
    ],
    sampling: Annotated[SamplingParams, options.Options(only=("temperature",))],
) -> None:  # fmt: skip
    """Forecast the speed of methods for a target of a given latency."""
    from duodec.backends.curves import CostCurve
    from duodec.loading.resolve import resolve_target
    from duodec.loading.vetting import vetted_files
    from duodec_lab.bench.plan import BenchPlan
    from duodec_lab.bench.run import simulate
    from duodec_lab.bench.tasks import read_prompts, tasks_named

    check_installed()
    CostCurve.parse(target_ms, "target-ms")
    asked = BenchPlan(
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()),
        targets=(config.target,),
        drafts=(config.draft or "none",),
        config=config,
        tasks=tuple(tasks_named(tasks)),
        data=data,
        limit=limit,
        max_tokens=max_tokens,
        simulate_ms=target_ms,
        draft_ms=draft_ms,
        simulate_as=simulate_as,
        host_us=host_us,
        draft_speed=draft_speed,
        prefill_ms=prefill_ms,
        sampling=sampling,
    )
    prompts = read_prompts(asked.data, asked.tasks, asked.limit)
    vetted_files(resolve_target(config))  # what is wrong with it is told before a lack of drafts
    with progress_bar(is_quiet=quiet) as on_progress:
        results = simulate(asked, prompts, on_progress)
    show_run(results)
    given = {"draft-ms": draft_ms, "host-us": host_us}
    costs = {name: results.settings[name.replace("-", "_")] for name in given}
    measured = [f"--{name} {costs[name]}" for name in given if costs[name] != given[name]]
    if measured:
        say_dim(f"the same costs again: {' '.join(measured)}", is_copied=True)
