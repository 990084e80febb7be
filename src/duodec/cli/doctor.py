"""Run `duodec doctor`: check whether a pair can be used here, and how fast it may be."""

from __future__ import annotations

import json as json_format
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duodec.cli import options
from duodec.cli.output import coloured, put, status
from duodec.errors import DuodecError
from duodec.models.config import EngineConfig

if TYPE_CHECKING:
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.cli.checks import Check
    from duodec.cli.speed import Speed
    from duodec.machine.cores import CorePlan
    from duodec.models import ModelFile
    from duodec.models.targets import LoadedTarget

EPILOG = """
[bold]Examples[/bold]

duodec doctor

duodec doctor --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b

[bold]Exit status[/bold]

0: usable. 2: there is nothing to check, such as a file that does not exist. 3: a check failed.
"""

_CHECK_FAILED = 3
_MOST_TRIED = 3  # drafts
_SCHEMA_VERSION = 1


@options.derived
def doctor(
    *,
    vllm: Annotated[
        bool,
        typer.Option(
            "--vllm",
            help="For vLLM: its version, the vocabularies and cores. The target is the model that "
            "it serves, settings are those of docs/vllm.md.",
            rich_help_panel="Machine",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object instead.", rich_help_panel="Output"),
    ] = False,
    config: Annotated[
        EngineConfig,
        options.Options(without=("datastore", "draft_window", "pace", *options.GRAMMAR_LIMITS)),
    ],
) -> None:
    """Check a target and a draft before use: files, vocabularies, cores, memory, speed."""
    from duodec.loading import draft_for
    from duodec.models import resolve
    from duodec.models.targets import target_file

    if vllm:
        checks = _examine_vllm(config.target, config.draft, config.offline)
        _report(checks, None, config.target, config.draft, json)
        return
    draft_name = draft_for(config)
    files = {"target": target_file(config)}
    if draft_name:
        files["draft"] = resolve(draft_name, offline=config.offline)
    with status("looking at the models and measuring"):
        checks, speed = _examine(config, files)
    _report(checks, speed, config.target, draft_name, json)


def _report(
    checks: list[Check], speed: Speed | None, target: str, draft: str | None, is_json: bool
) -> None:
    """Print the checks; returns the exit status."""
    is_usable = all(check.verdict != "fail" for check in checks)
    if is_json:
        record = {
            "schema_version": _SCHEMA_VERSION,
            "target": target,
            "draft": draft,
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


def _examine_vllm(target: str, draft: str | None, offline: bool) -> list[Check]:
    """Check what vLLM and our drafter need; a draft named here overrides the settings."""
    from duodec.cli.vllm import checks
    from duodec.integrations.vllm.settings import Settings

    settings = Settings.read()
    if draft not in (None, "auto"):
        settings = replace(settings, draft=draft)
    return checks(target, settings, offline=offline)


def _examine(config: EngineConfig, files: dict[str, ModelFile]) -> tuple[list[Check], Speed | None]:
    """All possible checks, and the measurement if the pair is sound."""
    from duodec.cli import checks
    from duodec.cli.speed import measure
    from duodec.loading import core_plan
    from duodec.machine.busy import OtherPrograms

    found: list[Check] = []
    with ExitStack() as stack:
        try:
            target = _open_target(config, files["target"], found, stack)
            draft = _open_draft(files["draft"], found, stack) if "draft" in files else None
            if draft:
                found.append(checks.check_vocabularies(target.model, draft))
            else:
                found.append(checks.NO_DRAFT)
            plan = core_plan(config, target)
            found += _check_use(config, target, draft, plan, files["target"].path)
            found += _check_rows(target, plan)
        except DuodecError as error:
            found.append(checks.failed(error))
        if any(check.verdict == "fail" for check in found):
            return found, None
        others = OtherPrograms()
        try:
            speed = measure(target, draft, plan)
        except DuodecError as error:
            return [*found, checks.failed(error)], None
        found.append(checks.check_idle(others.num_cores))
        found += checks.check_speed(speed, shares_cores=plan.shares_cores)
        if config.draft == "auto":
            found += _rank(config, target, files["target"], speed, plan)
    return found, speed


def _rank(
    config: EngineConfig, target: LoadedTarget, file: ModelFile, speed: Speed, plan: CorePlan
) -> list[Check]:
    """What of this machine's files would draft best, by a short trial of each."""
    from duodec.cli.checks import check_skipped, check_trials, failed
    from duodec.cli.draft_trial import tried
    from duodec.models.discovery import candidates

    try:
        found = candidates(file.path)
        usable = [one for one in found if not one.fault][:_MOST_TRIED]
        trials = tried(target, usable, speed, plan) if usable else []
    except DuodecError as error:
        return [failed(error)]
    return [*check_trials(config.target, trials), *check_skipped(found)]


def _check_use(
    config: EngineConfig,
    target: LoadedTarget,
    draft: LlamaModel | None,
    plan: CorePlan,
    path: Path,
) -> list[Check]:
    """Check a sound pair against this machine. Raises ContextExceeded."""
    from duodec.backends.llamacpp.library import load
    from duodec.cli import checks
    from duodec.machine.cores import available_cores
    from duodec.models.targets import backend_of

    num_context = target.num_context
    backend, has_gpu = backend_of(config), checks.gpu_is_there()
    return [
        checks.check_template(target.model),
        checks.check_context(target.model, draft, num_context),
        checks.check_cores(plan, len(available_cores())),
        *checks.check_memory(target, draft, num_context),
        checks.check_llama(load(), backend, has_gpu=has_gpu),
        *([checks.check_kernels(load(), path)] if target.is_on_cpu and path.is_file() else []),
        checks.check_torch(backend, has_gpu=has_gpu),
    ]


def _check_rows(target: LoadedTarget, plan: CorePlan) -> list[Check]:
    """Whether drafts change a row's bits, tried where a device computes a GGUF target. Raises
    ModelUnreadable and ComputeFailed."""
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.backends.llamacpp.row_trial import try_rows
    from duodec.backends.placement import Placement
    from duodec.cli.checks import check_rows

    model = target.model
    if not isinstance(model, LlamaModel) or target.placement is Placement.CPU or model.is_recurrent:
        return []
    num_rows = target.num_padded if target.num_padded > 1 else None
    trial = try_rows(model, num_rows=num_rows, num_threads=plan.target_alone)
    return [check_rows(trial, num_rows)]


def _open_target(
    config: EngineConfig, file: ModelFile, found: list[Check], stack: ExitStack
) -> LoadedTarget:
    """Open the target; the stack closes it. Raises what is wrong with it."""
    from duodec.cli.checks import Check, check_model
    from duodec.models.targets import load_target

    target = load_target(config)
    stack.callback(target.model.close)
    found += [check_model("target", file, target.model), Check("computed by", "ok", target.place)]
    return target


def _open_draft(file: ModelFile, found: list[Check], stack: ExitStack) -> LlamaModel:
    """Open the draft model; the stack closes it. Raises what is wrong with it."""
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.cli.checks import check_model
    from duodec.models.vetting import vetted

    model = LlamaModel(vetted(file).path, num_gpu_layers=0)
    stack.callback(model.close)
    found.append(check_model("draft", file, model))
    return model


def _show(checks: list[Check]) -> None:
    """One line a check, and one more for its remedy."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        put(f"{coloured(check.verdict, 4)}  {check.name:<{width}}  {check.words}\n")
        if check.remedy:
            put(f"{'':6}{'':<{width}}  remedy: {check.remedy}\n")
