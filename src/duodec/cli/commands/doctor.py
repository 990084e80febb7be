"""Run `duodec doctor`: check whether a pair can be used here, and how fast it may be."""

from __future__ import annotations

import json as json_format
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from duodec.cli import options
from duodec.cli.checks import Check, failed, machine, pair
from duodec.cli.output import coloured, put, put_beside, status
from duodec.errors import DuodecError
from duodec.loading.config import EngineConfig
from duodec.machine import plugins

if TYPE_CHECKING:
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.backends.loaded import LoadedTarget
    from duodec.cli.checks.payoff import Speed
    from duodec.loading.resolve import ResolvedPair
    from duodec.machine.core_plan import CorePlan
    from duodec.models import ModelFile

EPILOG = """
Examples:
duodec doctor
duodec doctor --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b

Exit status:
0: usable. 2: there is nothing to check, such as a file that does not exist. 3: a check failed.
"""

_CHECK_FAILED = 3
_MOST_TRIED = 3  # drafts
_COMMANDS = ("run: ", "pip install ")  # parts of a remedy that are to be copied
_SCHEMA_VERSION = 1


@options.derived
def doctor(
    *,
    vllm: Annotated[
        bool,
        options.option(
            "--vllm",
            "For vLLM: its version, the vocabularies and cores. The target is the model that it "
            "serves, settings are those of docs/vllm.md.",
            "Machine",
        ),
    ] = False,
    wait: options.Wait = 0.0,
    json: options.Json = False,
    config: Annotated[
        EngineConfig,
        options.Options(without=options.OF_DECODING),
    ],
) -> None:
    """Check whether a target and a draft work here, and pay.

    Files, vocabularies, cores, memory, speed.
    """
    from duodec.loading.resolve import resolve_pair

    if vllm:
        examine = plugins.load(plugins.CHECKS, "vllm", "duodec doctor --vllm")
        checks = examine(config.target, config.draft, offline=config.offline)
        _report(checks, None, config.target, config.draft, json)
        return
    resolved = resolve_pair(config)
    if resolved.no_draft:
        raise resolved.no_draft
    with status("looking at the models and measuring"):
        checks, speed = _examine(resolved, wait)
    _report(checks, speed, resolved.name, resolved.draft_name, json)


def _report(
    checks: list[Check], speed: Speed | None, target: str, draft: str | None, is_json: bool
) -> None:
    """Print the checks; return the exit status."""
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


def _examine(resolved: ResolvedPair, wait_s: float) -> tuple[list[Check], Speed | None]:
    """Return all possible checks, and the measurement if the pair is sound."""
    from duodec.loading.load import core_plan

    found: list[Check] = []
    with ExitStack() as stack:
        try:
            target = _open_target(resolved, found, stack)
            draft = _open_draft(resolved.draft, found, stack) if resolved.draft else None
            if draft:
                found.append(pair.check_vocabularies(target.model, draft))
            else:
                found.append(pair.NO_DRAFT)
            plan = core_plan(resolved, target)
            found += _check_use(resolved, target, draft, plan)
            found += _check_rows(target, plan, is_fast=resolved.config.fast)
            if any(check.verdict == "fail" for check in found):
                return found, None
            speed = _check_payoff(resolved, target, plan, found, wait_s)
        except DuodecError as error:
            return [*found, failed(error)], None
    return found, speed


def _check_payoff(
    resolved: ResolvedPair,
    target: LoadedTarget,
    plan: CorePlan,
    found: list[Check],
    wait_s: float,
) -> Speed | None:
    """Return the speed of the draft, or of the one of this machine's files that pays; None if other
    programs spoil the measurement. Raises an error if something is wrong with a draft."""
    from duodec.cli.checks import payoff
    from duodec.cli.checks.places import check_places
    from duodec.machine.busy import NOTABLE, OtherPrograms, wait_until_idle
    from duodec.models.discovery import Candidate, candidates

    known = candidates(resolved.file.path) if resolved.config.draft == "auto" else []
    drafts = {one.path.resolve(): one for one in known if not one.fault}
    drafts = dict(list(drafts.items())[:_MOST_TRIED])
    draft = resolved.draft
    chosen = draft.path.resolve() if draft else None
    if draft and chosen and chosen not in drafts:
        drafts[chosen] = Candidate(draft.path, draft.reference, "chosen")
    if busy := wait_until_idle(wait_s):
        payoff.check_numbers(target, plan)
        found.append(machine.busy(busy))
        return None
    others = OtherPrograms()
    measured = payoff.try_target(target, plan)
    tried = {path: payoff.try_draft(target, one, measured, plan) for path, one in drafts.items()}
    if (num_cores := others.num_cores) >= NOTABLE:
        found.append(machine.busy(f"other programs kept {num_cores:.1f} cores busy meanwhile"))
        return None
    found.append(machine.IDLE)
    own = tried.get(chosen) if chosen else None
    speed = own.speed if own else payoff.Speed(measured.plain_s, measured.verify_s, None, None)
    agreement = own.agreement if own else None
    found += payoff.check_speed(speed, agreement, shares_cores=plan.shares_cores)
    if own:
        found += check_places(resolved, target, plan, own)
    if known:
        found += payoff.check_trials(resolved.config.target, list(tried.values()))
    found += payoff.check_skipped(known)
    return speed


def _check_use(
    resolved: ResolvedPair,
    target: LoadedTarget,
    draft: LlamaModel | None,
    plan: CorePlan,
) -> list[Check]:
    """Check a sound pair against this machine. Raises ContextExceeded."""
    from duodec.backends.llamacpp.library import load
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.machine.cores import available_cores

    num_context, model, is_on_cpu = target.num_context, target.model, target.is_on_cpu
    backend, has_gpu = resolved.backend.name, machine.gpu_is_there()
    return [
        pair.check_template(target.model),
        pair.check_context(target.model, draft, num_context),
        machine.check_cores(plan, len(available_cores())),
        *pair.check_memory(target, draft, num_context),
        machine.check_llama(load(), backend, has_gpu=has_gpu),
        *([machine.check_kernels(model)] if is_on_cpu and isinstance(model, LlamaModel) else []),
        *machine.check_backends(backend, has_gpu=has_gpu),
    ]


def _check_rows(target: LoadedTarget, plan: CorePlan, *, is_fast: bool) -> list[Check]:
    """Check whether drafts change a row's bits, if a device computes a GGUF target. Raises
    ModelUnreadable and ComputeFailed."""
    from duodec.backends.llamacpp.checks.row_trial import try_rows
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.backends.llamacpp.target.width_choice import kept_choice
    from duodec.backends.placement import Placement

    model = target.model
    if not isinstance(model, LlamaModel) or target.placement is Placement.CPU or model.is_recurrent:
        return []
    trial = try_rows(
        model,
        widths=target.widths,
        num_threads=plan.target_alone,
        is_width_exact=not is_fast,
        num_context=target.num_context,
    )
    choice = kept_choice(model)
    classes = choice.classes if choice else ()
    return [pair.check_rows(trial, target.widths, classes, is_fast=is_fast)]


def _open_target(resolved: ResolvedPair, found: list[Check], stack: ExitStack) -> LoadedTarget:
    """Open the target; the stack closes it. Raises an error if something is wrong with it."""
    from duodec.loading.load import draft_bytes, load_target

    target = load_target(resolved, taken_bytes=draft_bytes(resolved))
    stack.callback(target.model.close)
    found += [
        pair.check_model("target", resolved.file, target.model),
        Check("computed by", "ok", target.place),
    ]
    return target


def _open_draft(file: ModelFile, found: list[Check], stack: ExitStack) -> LlamaModel:
    """Open the draft model; the stack closes it. Raises an error if something is wrong with it."""
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.loading.vetting import vetted

    model = LlamaModel(vetted(file).path, num_gpu_layers=0)
    stack.callback(model.close)
    found.append(pair.check_model("draft", file, model))
    return model


def _show(checks: list[Check]) -> None:
    """Print one line per check, and one more for its remedy."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        head = f"{coloured(check.verdict, 4)}  {check.name:<{width}}  "
        put_beside(head, width + 8, check.words)
        remedy = f"remedy: {check.remedy}"
        if any(words in remedy for words in _COMMANDS):
            put(f"{'':{width + 8}}{remedy}\n")
        elif check.remedy:
            put_beside(" " * (width + 8), width + 8, remedy)
