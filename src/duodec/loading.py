"""Load an `LLM` from names of models: files, threads, the drafter's process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.drafter.window import DEFAULT_WINDOW
from duodec.backends.grammar_trial import GrammarTrial
from duodec.backends.llamacpp.recipe import LlamaRecipe
from duodec.backends.llamacpp.target import LlamaTarget
from duodec.backends.placement import Placement
from duodec.backends.testbeds import PacedTarget
from duodec.batching import share
from duodec.core.protocols import Datastore, Target, Tokenizer, max_draft
from duodec.datastores import open_for
from duodec.drafts import recipe_for
from duodec.errors import DuodecError, warn
from duodec.llm import LLM
from duodec.machine.busy import SpareCores
from duodec.machine.cores import CorePlan, available_cores, keep_to, memory_nodes
from duodec.models import ALIASES, resolve
from duodec.models.config import DEFAULT_TARGET as DEFAULT_TARGET
from duodec.models.config import EngineConfig as EngineConfig
from duodec.models.discovery import best_for
from duodec.models.targets import (
    LoadedTarget,
    RunningTarget,
    backend_of,
    file_bytes,
    load_target,
    target_file,
)
from duodec.models.vetting import vetted
from duodec.profiling import Profile, key_of

_DRAFT_TOKENS = 1 << 14  # in a draft's cache, for all texts together
_NO_STATES = (
    "this build of llama.cpp cannot take back the state of its recurrent layers, so that no draft "
    "can be scored; every method decodes plainly"
)


def draft_for(config: EngineConfig) -> str | None:
    """The draft's reference: the one named, the one known to suit the target, or the smallest
    of its vocabulary that is on this machine."""
    if config.draft != "auto":
        return None if config.draft in (None, "none") else config.draft
    alias = ALIASES.get(config.target.lower())
    if alias:
        return alias.draft
    with suppress(DuodecError):  # the target is not on this machine yet
        found = best_for(target_file(replace(config, offline=True)).path)
        return str(found) if found else None
    return None


def load(
    config: EngineConfig, *, on_warning: Callable[[str], None] = warn, taken_bytes: int = 0
) -> LLM:
    """Load the models of ``config``. ``taken_bytes`` of the memory that looks free are other
    models' weights, mapped from files. Raises what is wrong with the models or the pair."""
    spare = SpareCores(len(available_cores()))  # looks at the cores while the models load
    with ExitStack() as stack:
        loaded = load_target(config, on_warning, taken_bytes)
        model = loaded.model
        stack.callback(model.close)
        num_context = loaded.num_context
        plan = core_plan(config, loaded)
        drafter = _drafter(config, model, num_context, plan, on_warning)
        if drafter:
            stack.callback(drafter.close)
        target = loaded.start(num_context, plan)
        stack.callback(target.close)
        if isinstance(target, LlamaTarget) and plan.shares_cores and config.threads is None:
            target.context.most_threads = spare
        if drafter and not max_draft(target):
            on_warning(f"{config.target}: {_NO_STATES}")
            drafter.close()
            drafter = None
        drafter = _when_ready(drafter, config, on_warning)
        pace = config.pace_curve
        shown: Target = PacedTarget(target, pace) if pace else target
        llm = LLM(
            shown,
            model,
            num_context,
            drafter,
            _datastore(config, model),
            shares_cores=plan.shares_cores,
            cores_for_target=plan.target_beside,
            takes_turns=_takes_turns(config, loaded),
            pace_s=pace.forward_s if pace else 0.0,
            parse_special=config.parse_special,
            try_grammar=GrammarTrial(config.grammar_s, config.grammar_bytes),
            prepare=_sharing(plan, target, stack),
            resources=stack.pop_all(),
        )
        known = Profile.read(profile_key(config if drafter else replace(config, draft=None)))
        if known is not None:
            llm.costs = known.costs(is_drafting=not plan.shares_cores)
        target.on_chunk = lambda: llm.on_chunk()
        share(llm, config)
        return llm
    raise AssertionError("the stack swallows nothing")


def _sharing(plan: CorePlan, target: RunningTarget, stack: ExitStack) -> Callable[[bool], None]:
    """A function that shares the cores before a completion, with a drafter or without."""
    if plan.shares_cores:
        return lambda is_drafting: target.use_threads(
            plan.target_beside if is_drafting else plan.target_alone
        )
    # the thread that launches a GPU's work must never wait for a core that the drafter uses
    every = available_cores()
    stack.callback(keep_to, every)
    return lambda is_drafting: keep_to(plan.launch_cores if is_drafting else every)


def _datastore(config: EngineConfig, model: Tokenizer) -> Datastore | None:
    if config.datastore is None:
        return None
    return open_for(model, None if config.datastore == "auto" else Path(config.datastore))


def profile_key(config: EngineConfig) -> str:
    """The key of this configuration's costs, once its models are on this machine: see
    `duodec.profiling`."""
    there = replace(config, offline=True)  # they are: nothing is downloaded again
    target = target_file(there)
    reference = draft_for(config)
    draft = resolve(reference, offline=True).path if reference else None
    settings = (
        config.threads, config.draft_threads, config.gpu_layers, config.exact, config.fast,
        config.no_repack, config.cpu_moe, config.n_cpu_moe, config.override_tensor,
        config.cache_type_k, config.cache_type_v,
        backend_of(there), config.dtype_name, config.device, file_bytes(target),
    )  # fmt: skip
    return key_of(target.path, draft, settings)


def _takes_turns(config: EngineConfig, target: LoadedTarget) -> bool:
    """Whether nothing is drafted while the target computes: both would slow each other. A target
    that is slowed for a demo leaves its cores idle, and so do the layers on a GPU."""
    return target.placement is Placement.CPU and config.pace_curve is None


def core_plan(config: EngineConfig, target: LoadedTarget) -> CorePlan:
    """How this target and its draft share the cores that this process may use: as a profile
    measured it to be best, if there is one."""
    cores = available_cores()
    known = None if target.is_on_cpu else _known_profile(config)
    return CorePlan.make(
        cores,
        target_is_on_cpu=target.is_on_cpu,
        num_threads=config.threads,
        num_draft_threads=config.draft_threads or (known.draft_threads if known else None),
        nodes=memory_nodes(cores),
    )


def _known_profile(config: EngineConfig) -> Profile | None:
    """The profile of this configuration on this machine, if there is one."""
    with suppress(DuodecError):  # the draft is not on this machine yet, or there is none
        return Profile.read(profile_key(config))
    return None


def drafter_with(config: EngineConfig, llm: LLM, num_threads: int) -> ProcessDrafter:
    """Start another drafter for this model with ``num_threads`` threads, to compare."""
    cores = available_cores()
    plan = CorePlan.make(
        cores,
        target_is_on_cpu=llm.shares_cores,
        num_draft_threads=num_threads,
        nodes=memory_nodes(cores),
    )
    drafter = open_drafter(config, llm.tokenizer, llm.num_context, plan)
    drafter.wait_ready()
    return drafter


def _drafter(
    config: EngineConfig,
    target: Tokenizer,
    num_context: int,
    plan: CorePlan,
    on_warning: Callable[[str], None],
) -> ProcessDrafter | None:
    """The drafter; None if there is none, or if the default draft does not suit."""
    if draft_for(config) is None:
        return None
    try:
        return open_drafter(config, target, num_context, plan, on_warning=on_warning)
    except DuodecError as error:
        _without(config, error, on_warning)
        return None


def open_drafter(
    config: EngineConfig,
    target: Tokenizer,
    num_context: int,
    plan: CorePlan,
    *,
    on_warning: Callable[[str], None] = warn,
) -> ProcessDrafter:
    """Start the draft model in its own process, which loads while the target does. Raises what is
    wrong with it, or with the pair."""
    reference = draft_for(config)
    assert reference, "the caller checked for a draft"
    path = vetted(resolve(reference, offline=config.offline)).path
    num_threads = len(plan.draft_cores)
    window = min(num_context, config.draft_window or DEFAULT_WINDOW)
    known = _known_profile(config)
    num_texts = min(config.num_slots, max(1, _DRAFT_TOKENS // window))
    recipe = LlamaRecipe(
        path,
        num_context,
        num_threads,
        target.num_vocab,
        num_texts,
        window,
        known.draft_uses_flash_attention if known else None,
        config.num_slots,
    )
    return ProcessDrafter(
        recipe_for(target, recipe),
        # on the target's cores it takes turns with it
        cores=available_cores() if plan.shares_cores else plan.draft_cores,
        num_threads=plan.target_alone if plan.shares_cores else num_threads,
        on_warning=on_warning,
    )


def _when_ready(
    drafter: ProcessDrafter | None, config: EngineConfig, on_warning: Callable[[str], None]
) -> ProcessDrafter | None:
    """The drafter once its model is loaded; None if it does not load and the user did not name
    it."""
    if drafter is None:
        return None
    try:
        drafter.wait_ready()
    except DuodecError as error:
        drafter.close()
        _without(config, error, on_warning)
        return None
    return drafter


def _without(config: EngineConfig, error: DuodecError, on_warning: Callable[[str], None]) -> None:
    """Fail if the user named the draft; warn if it is the default draft."""
    if config.draft != "auto":
        raise error
    on_warning(f"no draft: {error}")
