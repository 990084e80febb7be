"""Find out where a draft model should compute: on the target's device, or on cores of the CPU."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from duodec.cli.checks import Check
from duodec.cli.output import size
from duodec.cli.summary import seconds
from duodec.errors import DuodecError
from duodec.loading.forecast import Forecast
from duodec.loading.placing import Steps, draft_on_device, is_for_device

if TYPE_CHECKING:
    from duodec.backends.loaded import LoadedTarget
    from duodec.cli.checks.payoff import DraftTrial
    from duodec.loading.resolve import ResolvedPair
    from duodec.machine.core_plan import CorePlan

_NAME = "draft's place"


def check_places(
    pair: ResolvedPair, target: LoadedTarget, plan: CorePlan, trial: DraftTrial
) -> list[Check]:
    """Load the draft model on the target's device, time a step there, and report where loading puts
    it, what each place is expected to bring, and what memory it takes. For a target without a
    device, return no checks."""
    if not pair.draft or not is_for_device(pair.config, target.placement):
        return []
    try:
        drafter = draft_on_device(pair, target, plan, lambda line: None)
    except DuodecError as error:
        return [Check(_NAME, "warn", f"the CPU: {error}")]
    with closing(drafter):
        steps = Steps.of(drafter)
    if steps is None:
        return [Check(_NAME, "warn", "the CPU: no draft came from the device")]
    is_there = steps.pay(trial.speed.plain_s, pair.draft.num_bytes)
    return [Check(_NAME, "ok", words(trial, steps.step_s, pair.draft.num_bytes, is_there=is_there))]


def words(trial: DraftTrial, step_s: float, num_bytes: int, *, is_there: bool) -> str:
    """Describe both places, the chosen one first. ``step_s`` is the time of a step on the
    device."""
    forward_s, core_s = trial.speed.plain_s, trial.speed.draft_s or 0.0
    there = Forecast(forward_s, step_s, trial.agreement)
    here = Forecast(forward_s, core_s, trial.agreement)
    on_device = (
        f"the device: {seconds(step_s)} a step, in turns with the target, about "
        f"{there.in_turns / there.plain:.1f}x plain decoding, {size(num_bytes)} of its memory for "
        "weights"
    )
    on_core = (
        f"the CPU: {seconds(core_s)} a step on a core, while the target computes, about "
        f"{here.in_parallel / here.plain:.1f}x plain decoding"
    )
    chosen, other = (on_device, on_core) if is_there else (on_core, on_device)
    return f"{chosen}; {other} (--draft-device)"
