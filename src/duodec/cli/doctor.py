"""`duodec doctor`: can this pair be used here, and what can be expected of it?"""

from __future__ import annotations

import json as json_format
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from duodec.cli import options
from duodec.cli.output import coloured, put, status
from duodec.errors import DuodecError

if TYPE_CHECKING:
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.cli.checks import Check
    from duodec.cli.speed import Speed
    from duodec.loading import EngineConfig
    from duodec.models import ModelFile

EPILOG = """
[bold]Examples[/bold]

duodec doctor

duodec doctor --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b

[bold]Exit status[/bold]

0: usable. 2: there is nothing to check, such as a file that does not exist. 3: a check failed.
"""

_CHECK_FAILED = 3
_SCHEMA_VERSION = 1


def doctor(
    target: options.Target = "smollm2",
    draft: options.DraftModel = "auto",
    offline: options.Offline = False,
    context: options.ContextSize = None,
    threads: options.Threads = None,
    draft_threads: options.DraftThreads = None,
    gpu_layers: options.GpuLayers = -1,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object instead.", rich_help_panel="Output"),
    ] = False,
) -> None:
    """Check a target and a draft before use: files, vocabularies, cores, memory, speed."""
    from duodec.loading import EngineConfig, draft_for
    from duodec.models import resolve

    config = EngineConfig(
        target=target,
        draft=draft,
        context=context,
        threads=threads,
        draft_threads=draft_threads,
        gpu_layers=gpu_layers,
        offline=offline,
    )
    draft_name = draft_for(config)
    files = {"target": resolve(target, offline=offline)}
    if draft_name:
        files["draft"] = resolve(draft_name, offline=offline)
    with status("looking at the models and measuring"):
        checks, speed = _examine(config, files)
    is_usable = all(check.verdict != "fail" for check in checks)
    if json:
        record = {
            "schema_version": _SCHEMA_VERSION,
            "target": target,
            "draft": draft_name,
            "is_usable": is_usable,
            "checks": [asdict(check) for check in checks],
            "speed": asdict(speed) if speed else None,
        }
        put(f"{json_format.dumps(record, ensure_ascii=False)}\n")
    else:
        _show(checks)
    sys.stdout.flush()
    if not is_usable:
        raise typer.Exit(_CHECK_FAILED)


def _examine(config: EngineConfig, files: dict[str, ModelFile]) -> tuple[list[Check], Speed | None]:
    """Every check that can be made, and the measurement where the pair is sound."""
    from duodec.busy import OtherPrograms
    from duodec.cli import checks
    from duodec.cli.speed import measure
    from duodec.config import available_cores
    from duodec.loading import core_plan, num_context_for

    found: list[Check] = []
    with ExitStack() as stack:
        try:
            models = _open(config, files, found, stack)
            if "draft" in models:
                found.append(checks.check_vocabularies(models["target"], models["draft"]))
            elif "draft" not in files:
                found.append(checks.NO_DRAFT)
            target, draft = models["target"], models.get("draft")
            num_context = num_context_for(config, target)
        except DuodecError as error:
            words, _, remedy = str(error).rpartition("; ")
            found.append(checks.Check("use", "fail", words or remedy, remedy if words else ""))
            return found, None
        plan = core_plan(config, target)
        found += [
            checks.check_template(target),
            checks.check_context(target, draft, num_context),
            checks.check_cores(plan, len(available_cores())),
            checks.check_memory(list(models.values()), num_context),
            checks.check_build(target.lib),
        ]
        if any(check.verdict == "fail" for check in found):
            return found, None
        others = OtherPrograms()
        speed = measure(target, draft, plan)
        found.append(checks.check_idle(others.num_cores))
    return found + checks.check_speed(speed, shares_cores=plan.shares_cores), speed


def _open(
    config: EngineConfig, files: dict[str, ModelFile], found: list[Check], stack: ExitStack
) -> dict[str, LlamaModel]:
    """The models, each closed with the stack. Raises what is wrong with one."""
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.cli.checks import check_model

    models = {}
    for role, file in files.items():
        num_gpu_layers = config.gpu_layers if role == "target" else 0
        model = LlamaModel(file.path, num_gpu_layers=num_gpu_layers)
        stack.callback(model.close)
        models[role] = model
        found.append(check_model(role, file, model))
    return models


def _show(checks: list[Check]) -> None:
    """One line a check, and one more for its remedy."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        put(f"{coloured(check.verdict, 4)}  {check.name:<{width}}  {check.words}\n")
        if check.remedy:
            put(f"{'':6}{'':<{width}}  remedy: {check.remedy}\n")
