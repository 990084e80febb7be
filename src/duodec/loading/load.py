"""Load a resolved pair: the target's model, the drafter's process, and the cores of both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from duodec.backends.drafter.in_turns import DrafterInTurns
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.grammar.trial import GrammarCompiler, GrammarTrial
from duodec.backends.loaded import LoadedTarget, RunningTarget
from duodec.backends.paced import PacedTarget
from duodec.backends.placement import Placement
from duodec.core.drafters import Datastore, Drafter
from duodec.core.targets import Target
from duodec.core.tokenizers import Tokenizer
from duodec.datastores import open_for
from duodec.errors import BackendUnavailable, DuodecError, warn
from duodec.loading import placing
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import SentVocabulary, open_drafter
from duodec.loading.memory import MemoryUse
from duodec.loading.placing import PlacedDrafter
from duodec.loading.resolve import ResolvedPair, ResolvedTarget
from duodec.loading.vetting import vetted_files
from duodec.machine.busy import NOTABLE, OtherPrograms
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import CoreSharing, available_cores, keep_to
from duodec.machine.topology import Topology
from duodec.models.aliases import ALIASES
from duodec.planning.costs import Costs

_NO_STATES = (
    "this build of llama.cpp cannot take back the state of its recurrent layers, so that no draft "
    "can be scored; every method decodes plainly"
)


@dataclass(frozen=True)
class Loaded:
    """Hold what an `LLM` decodes with: a target, its tokenizer, and whatever drafts for it.

    `load` makes one of a resolved pair. Whoever brings a target of their own makes one of it.
    """

    target: Target
    tokenizer: Tokenizer
    num_context: int  # most tokens of a text
    drafter: Drafter | None = None
    datastore: Datastore | None = None
    cores: CoreSharing = field(default_factory=CoreSharing)
    costs: Costs = field(default_factory=Costs)  # what the planner expects at first
    num_slots: int = 1  # requests that share forward passes
    memory: MemoryUse | None = None  # memory that it takes, if that was estimated
    parse_special: bool = False  # control tokens spelled in users' texts are control tokens
    grammars: GrammarCompiler | None = None  # None: the tokenizer's, with the usual limits
    clock: Callable[[], float] = perf_counter  # the target's time, in seconds
    resources: ExitStack = field(default_factory=ExitStack)  # closing it ends the models


def load(
    pair: ResolvedPair, *, on_warning: Callable[[str], None] = warn, taken_bytes: int = 0
) -> Loaded:
    """Load the models of a pair. ``taken_bytes`` of the memory that looks free are other models'
    weights, mapped from files. Raises an error if something is wrong with the models or the
    pair."""
    config, others = pair.config, OtherPrograms()
    with ExitStack() as stack:
        loaded = load_target(pair, on_warning, taken_bytes=taken_bytes + draft_bytes(pair))
        model = loaded.model
        stack.callback(model.close)
        pair = unless_busy(pair, loaded.placement, others.num_cores)
        plan = core_plan(pair, loaded)
        drafter: PlacedDrafter | None = None
        is_for_device = pair.draft is not None and placing.is_for_device(config, loaded.placement)
        try:
            if pair.draft and not is_for_device:
                drafter = open_drafter(pair, model, loaded.num_context, plan, on_warning=on_warning)
                stack.callback(drafter.close)
        except DuodecError as error:
            pair = pair.refuse_draft(error)
        target = loaded.start(loaded.num_context, plan)
        stack.callback(target.close)
        if pair.draft and not target.traits.max_draft:
            on_warning(f"{pair.name}: {_NO_STATES}")
            drafter.close() if drafter else None
            drafter, pair = None, pair.without_draft()
        costs = _costs(pair, plan, loaded, target)
        try:
            if pair.draft and is_for_device:
                drafter = placing.place(pair, loaded, target, plan, costs, on_warning)
                stack.callback(drafter.close)
            if isinstance(drafter, ProcessDrafter):
                drafter.wait_ready()
        except DuodecError as error:
            drafter.close() if drafter else None
            drafter, pair = None, pair.refuse_draft(error)
            costs = _costs(pair, plan, loaded, target)
        if pair.no_draft:
            on_warning(f"no draft: {pair.no_draft}")
        return Loaded(
            PacedTarget(target, config.pace_curve) if config.pace_curve else target,
            model,
            loaded.num_context,
            drafter,
            _datastore(config, model),
            CoreSharing(
                plan.shares_cores,
                plan.target_beside,
                takes_turns=_turns(drafter, loaded.placement, config),
                prepare=_sharing(plan, target, stack),
            ),
            costs=costs,
            num_slots=config.num_slots,
            memory=MemoryUse.of(pair, loaded),
            parse_special=config.parse_special,
            grammars=GrammarCompiler(model, GrammarTrial(config.grammar_s, config.grammar_bytes)),
            resources=stack.pop_all(),
        )
    raise AssertionError("the stack swallows nothing")


def unless_busy(pair: ResolvedPair, placement: Placement, num_busy: float) -> ResolvedPair:
    """Return the pair, without an automatically found draft model if that would compute on the
    target's cores while other programs keep ``num_busy`` of them busy: it was measured to halve the
    rate there."""
    is_named = pair.config.draft != "auto" or pair.config.target.lower() in ALIASES
    if pair.draft is None or is_named or placement is not Placement.CPU or num_busy < NOTABLE:
        return pair
    why = BackendUnavailable(
        f"other programs keep {num_busy:.1f} cores busy, which makes drafting with "
        f"{pair.draft_name} on them slow; name it as `draft` to use it all the same"
    )
    return pair.refuse_draft(why)


def _costs(pair: ResolvedPair, plan: CorePlan, loaded: LoadedTarget, target: Target) -> Costs:
    """Return what a pair costs: as its profile says, or as its target on a device is measured here,
    so that the first text is not spent on measuring."""
    if known := pair.profile:
        return known.costs(is_drafting=not plan.shares_cores)
    costs = Costs()
    if loaded.placement is Placement.ELSEWHERE and pair.config.pace_curve is None:
        pass_s, widths = loaded.pass_s, loaded.widths
        if widths and not pass_s:
            pass_s = {widths.padded(1): placing.timed_pass_s(target, loaded.num_context)}
        costs.teach_rows(pass_s)
    return costs


def _turns(
    drafter: PlacedDrafter | None, placement: Placement, config: EngineConfig
) -> Callable[[], bool]:
    """Return a function that says whether the drafter takes turns with the target now."""
    if isinstance(drafter, DrafterInTurns):
        return lambda: drafter.takes_turns
    # A target that is slowed for a demo leaves its cores idle, and so do a GPU's layers.
    in_turns = placement is Placement.CPU and config.pace_curve is None
    return lambda: in_turns


def load_target(
    target: ResolvedTarget, on_warning: Callable[[str], None] = warn, *, taken_bytes: int = 0
) -> LoadedTarget:
    """Load the target's model; ``taken_bytes`` of the memory that looks free are in use. Raises an
    error if something is wrong with its files, or with the backend's options."""
    loaded = target.backend.load(
        vetted_files(target), target.config, on_warning, taken_bytes=taken_bytes
    )
    if (template := target.config.template_text) is not None:
        loaded.model.chat_template = template
    return loaded


def fits(pair: ResolvedPair, taken_bytes: int) -> bool:
    """Estimate whether memory holds a target with caches of a short context. ``taken_bytes`` of
    what looks free are other models' weights. Raises an error if something is wrong with its
    files."""
    return pair.backend.fits(
        vetted_files(pair).file, pair.config, taken_bytes=taken_bytes, draft_bytes=draft_bytes(pair)
    )


def draft_bytes(pair: ResolvedPair) -> int:
    """Return the size of the draft model's weights; its cache is small."""
    return pair.draft.num_bytes if pair.draft else 0


def core_plan(pair: ResolvedPair, target: LoadedTarget) -> CorePlan:
    """Return how this target and its draft share the cores that this process may use: as a profile
    measured it to be best, if there is one."""
    config = pair.config
    known = None if target.is_on_cpu else pair.profile
    return CorePlan.make(
        Topology.read(),
        target_is_on_cpu=target.is_on_cpu,
        num_threads=config.threads,
        num_draft_threads=config.draft_threads or (known.draft_threads if known else None),
    )


def another_drafter(
    pair: ResolvedPair, target: SentVocabulary, num_context: int, num_threads: int
) -> ProcessDrafter:
    """Start another drafter with ``num_threads`` threads for comparison, for a target that computes
    elsewhere."""
    plan = CorePlan.make(Topology.read(), target_is_on_cpu=False, num_draft_threads=num_threads)
    drafter = open_drafter(pair, target, num_context, plan)
    drafter.wait_ready()
    return drafter


def _sharing(plan: CorePlan, target: RunningTarget, stack: ExitStack) -> Callable[[bool], None]:
    """Return a function that shares the cores before a completion, with a drafter or without."""
    if plan.shares_cores:
        return lambda is_drafting: target.use_threads(
            plan.target_beside if is_drafting else plan.target_alone
        )
    # The thread that launches a GPU's work must never wait for a core that the drafter uses.
    every = available_cores()
    stack.callback(keep_to, every)
    return lambda is_drafting: keep_to(plan.launch_cores if is_drafting else every)


def _datastore(config: EngineConfig, model: Tokenizer) -> Datastore | None:
    if config.datastore is None:
        return None
    return open_for(model, None if config.datastore == "auto" else Path(config.datastore))
