"""From names of models to an `LLM`: files, threads, the drafter's process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from duodec.backends.llamacpp.library import EXACT_SWITCH
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import LlamaRecipe, LlamaTarget
from duodec.backends.placement import Placement
from duodec.backends.process import ProcessDrafter
from duodec.backends.testbeds import PacedTarget
from duodec.backends.window import DEFAULT_WINDOW
from duodec.batching import share
from duodec.busy import SpareCores
from duodec.config import DEFAULT_TARGET as DEFAULT_TARGET
from duodec.config import CorePlan, available_cores, keep_to, memory_nodes
from duodec.config import EngineConfig as EngineConfig
from duodec.core.protocols import Datastore, Target, Tokenizer
from duodec.datastores import open_for
from duodec.errors import DuodecError, warn
from duodec.llm import LLM
from duodec.models import ALIASES, resolve
from duodec.pairing import check_pair
from duodec.profiling import Profile, key_of
from duodec.targets import (
    LoadedTarget,
    RunningTarget,
    backend_of,
    file_bytes,
    forwards_are_padded,
    load_target,
    target_file,
    target_is_elsewhere,
)
from duodec.vetting import vetted

_DRAFT_TOKENS = 1 << 14  # that a draft keeps of several texts together
_SAMPLED_STRIDE = 16  # tokens compared at load; `duodec doctor` compares all of them


def draft_for(config: EngineConfig) -> str | None:
    """The draft's reference: the one asked for, or the one known to suit the target."""
    if config.draft != "auto":
        return None if config.draft in (None, "none") else config.draft
    alias = ALIASES.get(config.target.lower())
    return alias.draft if alias else None


def load(config: EngineConfig, *, on_warning: Callable[[str], None] = warn) -> LLM:
    """A model for this machine. Raises what is wrong with the models or the pair."""
    spare = SpareCores(len(available_cores()))  # looks at the cores while the models load
    with ExitStack() as stack:
        loaded = load_target(config, on_warning)
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
        drafter = _when_ready(drafter, config, on_warning)
        shown: Target = PacedTarget(target, config.pace) if config.pace else target
        llm = LLM(
            shown,
            model,
            num_context,
            drafter,
            _datastore(config, model),
            shares_cores=plan.shares_cores,
            cores_beside=plan.target_beside,
            num_padded=loaded.num_padded,
            is_split=loaded.placement is Placement.SPLIT,
            pace_s=config.pace,
            parse_special=config.parse_special,
            prepare=_sharing(plan, target, stack),
            resources=stack.pop_all(),
        )
        known = Profile.read(profile_key(config if drafter else replace(config, draft=None)))
        if known is not None:
            llm.costs = known.costs(is_beside=not plan.shares_cores)
        target.on_chunk = lambda: llm.on_chunk()
        share(llm, config)
        return llm
    raise AssertionError("the stack swallows nothing")


def _sharing(plan: CorePlan, target: RunningTarget, stack: ExitStack) -> Callable[[bool], None]:
    """How the cores are shared before an answer, with a drafter at work beside it or not."""
    if plan.shares_cores:
        return lambda is_beside: target.use_threads(
            plan.target_beside if is_beside else plan.target_alone
        )
    # what launches a GPU's work must never wait for a core that the drafter keeps busy
    every = available_cores()
    stack.callback(keep_to, every)
    return lambda is_beside: keep_to(plan.launch_cores if is_beside else every)


def _datastore(config: EngineConfig, model: Tokenizer) -> Datastore | None:
    if config.datastore is None:
        return None
    return open_for(model, None if config.datastore == "auto" else Path(config.datastore))


def profile_key(config: EngineConfig) -> str:
    """Where the costs of this configuration are kept, once its models are on this machine: see
    `duodec.profiling`."""
    there = replace(config, offline=True)  # they are: nobody is asked for them again
    target = target_file(there)
    reference = draft_for(config)
    draft = resolve(reference, offline=True).path if reference else None
    settings = (
        config.threads, config.draft_threads, config.gpu_layers, config.exact, config.fast,
        config.cpu_moe, config.n_cpu_moe, config.override_tensor, config.cache_type_k,
        config.cache_type_v,
        backend_of(there), config.dtype_name, config.device, file_bytes(target),
    )  # fmt: skip
    return key_of(target.path, draft, settings)


def drafting_can_pay(config: EngineConfig) -> bool:
    """Whether the target computes elsewhere (or is slowed for a show), or several tokens at the
    price of one: a CPU that scores several at once otherwise pays for several forwards."""
    return config.pace > 0 or target_is_elsewhere(config) or forwards_are_padded(config)


def core_plan(config: EngineConfig, target: LoadedTarget) -> CorePlan:
    """How this target and its draft share the cores that this process may use: as they were
    measured to be shared best, where that was measured."""
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
    """What was measured of this configuration on this machine, if anything was."""
    with suppress(DuodecError):  # the draft is not on this machine yet, or there is none
        return Profile.read(profile_key(config))
    return None


def drafter_with(config: EngineConfig, llm: LLM, num_threads: int) -> ProcessDrafter:
    """Another drafter for this model, on so many cores, ready: to compare."""
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
    """The drafter; None where there is none, or the one that we chose does not suit."""
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
    """The draft model in a process of its own, loading while the target does. Raises what is
    wrong with it, or with the pair."""
    reference = draft_for(config)
    assert reference, "somebody asked for a draft"
    path = vetted(resolve(reference, offline=config.offline)).path
    vocabulary = LlamaModel(path, vocabulary_only=True, num_gpu_layers=0)
    try:
        vocabulary.refuse_recurrent()
        check_pair(target, vocabulary, stride=_SAMPLED_STRIDE)
    finally:
        vocabulary.close()
    num_threads = len(plan.draft_cores)
    window = min(num_context, config.draft_window or DEFAULT_WINDOW)
    known = _known_profile(config)
    num_texts = min(config.num_slots, max(1, _DRAFT_TOKENS // window))
    return ProcessDrafter(
        LlamaRecipe(
            path,
            num_context,
            num_threads,
            target.num_vocab,
            num_texts,
            window,
            known.draft_uses_flash_attention if known else False,
        ),
        cores=plan.draft_cores,
        num_threads=num_threads,
        env={EXACT_SWITCH: "1"},  # the target's exact kernels would only slow the draft
        on_warning=on_warning,
    )


def _when_ready(
    drafter: ProcessDrafter | None, config: EngineConfig, on_warning: Callable[[str], None]
) -> ProcessDrafter | None:
    """The drafter once its model is loaded; None where it does not load and nobody named it."""
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
    """A draft that the user named must work; one that we chose may be missing."""
    if config.draft != "auto":
        raise error
    on_warning(f"no draft: {error}")
