"""Choose where a pair's draft model computes, and load it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from duodec.backends.drafter.in_turns import DrafterInTurns
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.loaded import LoadedTarget
from duodec.backends.placement import Placement
from duodec.core.drafters import Drafter, DraftRequest, Plan
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.targets import Query, Target
from duodec.drafting.plans import Chain
from duodec.errors import BadOption, DuodecError
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import on_device, open_drafter
from duodec.loading.forecast import Forecast, step_on_core_s
from duodec.loading.resolve import ResolvedPair
from duodec.machine.core_plan import CorePlan
from duodec.planning.costs import Costs

PlacedDrafter = ProcessDrafter | DrafterInTurns

_SLOT = 0
_NUM_READ, _NUM_STEPS, _RUNS = 256, 4, 3
_WAIT_S = 10.0


def is_for_device(config: EngineConfig, placement: Placement) -> bool:
    """Return whether to load the draft model on the target's device, and try it there. Raises
    BadOption if the target has no device."""
    if config.draft_device == "gpu" and placement is Placement.CPU:
        raise BadOption(
            "draft_device is gpu, and the target computes on the CPU, where its draft model takes "
            "turns with it; leave it out"
        )
    if config.pace_curve is not None:  # a target that is slowed leaves its device idle
        return False
    is_chosen = config.draft_device == "auto" and placement is Placement.ELSEWHERE
    return is_chosen or config.draft_device == "gpu"


def place(
    pair: ResolvedPair,
    loaded: LoadedTarget,
    target: Target,
    plan: CorePlan,
    costs: Costs,
    on_warning: Callable[[str], None],
) -> PlacedDrafter:
    """Load the draft model on the target's device, or on the CPU if the device has no room, it
    fails there, or it pays less. ``costs`` learn what was timed. Raises an error if something is
    wrong with the model, or with the pair."""

    def on_cpu() -> ProcessDrafter:
        return open_drafter(pair, loaded.model, loaded.num_context, plan, on_warning=on_warning)

    try:
        drafter = draft_on_device(pair, loaded, plan, on_warning)
    except DuodecError as error:
        on_warning(f"{error}; it computes on the CPU")
        return on_cpu()
    steps = Steps.of(drafter)
    assert pair.draft, "the caller checked for a draft"
    if steps is None or (
        pair.config.draft_device == "auto"
        and not steps.pay(timed_pass_s(target, loaded.num_context), pair.draft.num_bytes)
    ):
        drafter.close()
        return on_cpu()
    steps.teach(costs)
    return drafter


def draft_on_device(
    pair: ResolvedPair,
    loaded: LoadedTarget,
    plan: CorePlan,
    on_warning: Callable[[str], None],
) -> DrafterInTurns:
    """Load the draft model on the target's device. Raises BackendUnavailable if it has no room, and
    an error if something is wrong with the model, or with the pair."""
    on = loaded.model.devices if isinstance(loaded.model, LlamaModel) else ()
    return on_device(pair, loaded.model, loaded.num_context, plan, on, on_warning=on_warning)


@dataclass(frozen=True)
class Steps:
    """Hold the timed steps of a draft model."""

    step_s: float
    read_s: float  # time to read a text of ``num_read`` tokens
    num_read: int = _NUM_READ

    @classmethod
    def of(cls, drafter: Drafter) -> Steps | None:
        """Time the steps; return None for a drafter that fails. The first run of each warms the
        device up."""
        rng = np.random.default_rng(0)
        reads, steps = list[float](), list[float]()
        for _ in range(_RUNS):
            text = rng.integers(0, 256, _NUM_READ).astype(np.int32)
            times = [_seconds(drafter, text, Chain(num)) for num in (1, 1 + _NUM_STEPS, 1)]
            if min(times) < 0.0:
                return None
            read_s, more_s, one_s = times
            reads.append(max(0.0, read_s - one_s))
            steps.append(max(0.0, more_s - one_s) / _NUM_STEPS)
        drafter.cancel(_SLOT)
        return cls(min(steps), min(reads))

    def pay(self, forward_s: float, num_bytes: int) -> bool:
        """Return whether these steps are expected to bring more than those of a core, for a model
        of ``num_bytes`` and forward passes of ``forward_s``. If neither brings anything, the device
        keeps its memory."""
        here = Forecast(forward_s, self.step_s).in_turns
        return here > Forecast(forward_s, step_on_core_s(num_bytes)).in_parallel

    def teach(self, costs: Costs) -> None:
        """Tell a planner these times before the first completion."""
        costs.observe_step(self.step_s)
        costs.observe_root(self.step_s)
        costs.observe_read(self.num_read, self.read_s)


def timed_pass_s(target: Target, num_context: int) -> float:
    """Return the seconds of a target's forward pass that continues a text, without a draft. The
    first run reads the text and warms the device up."""
    text: Tokens = np.zeros(min(_NUM_READ, num_context - 1), dtype=np.int32)
    times = []
    for _ in range(1 + _RUNS):
        begin_s = perf_counter()
        target.score([Query(_SLOT, text)])
        times.append(perf_counter() - begin_s)
    return min(times[1:])


def _seconds(drafter: Drafter, text: Tokens, plan: Plan) -> float:
    """Return the seconds of a whole draft; negative if it did not come."""
    begin_s = perf_counter()
    drafter.submit(DraftRequest(_SLOT, text, plan, Sampler()))
    drafted = drafter.poll(_SLOT, _WAIT_S)
    is_whole = drafted.is_complete and len(drafted.draft) == plan.num_tokens
    return perf_counter() - begin_s if is_whole else -1.0
