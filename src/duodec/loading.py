"""From names of models to an `Engine`: files, threads, the drafter's process."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from duodec.backends.llamacpp.library import EXACT_SWITCH
from duodec.backends.llamacpp.library import load as load_llama
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import LlamaRecipe, LlamaTarget
from duodec.backends.process import ProcessDrafter
from duodec.backends.testbeds import PacedTarget
from duodec.config import CorePlan, available_cores
from duodec.core.protocols import Datastore, Target
from duodec.datastores import open_for
from duodec.engine import Engine, warn
from duodec.errors import BadOption, ContextExceeded, DuodecError
from duodec.models import ALIASES, resolve
from duodec.pairing import check_pair
from duodec.profiling import Profile, key_of

DEFAULT_TARGET = "smollm2"
DEFAULT_CONTEXT = 8192  # tokens, where the model was trained for as many
_SAMPLED_STRIDE = 16  # tokens compared at load; `duodec doctor` compares all of them


@dataclass(frozen=True)
class EngineConfig:
    """What to load and how; every field is an option of the command line."""

    target: str = DEFAULT_TARGET
    draft: str | None = "auto"  # "auto": the one known to suit the target; None: none
    context: int | None = None
    threads: int | None = None
    draft_threads: int | None = None
    gpu_layers: int = -1  # all that the build can place on a GPU
    exact: bool = False  # bit-identical kernels throughout
    fast: bool = False  # llama.cpp's own choice of kernels throughout
    pace: float = 0.0  # seconds that a target forward takes at least
    datastore: str | None = None  # for `rest`: a file, or "auto", the vocabulary's own
    offline: bool = False

    def __post_init__(self) -> None:
        if self.exact and self.fast:
            raise BadOption("exact and fast exclude each other; choose one")
        if not math.isfinite(self.pace):
            raise BadOption(f"pace is {self.pace}; use a number of seconds")
        for name, least in (("context", 1), ("threads", 1), ("draft_threads", 1), ("pace", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                flag = name.replace("_", "-")
                raise BadOption(f"{flag} is {value}; use {least} or more")


def draft_for(config: EngineConfig) -> str | None:
    """The draft's reference: the one asked for, or the one known to suit the target."""
    if config.draft != "auto":
        return None if config.draft in (None, "none") else config.draft
    alias = ALIASES.get(config.target.lower())
    return alias.draft if alias else None


def load(config: EngineConfig, *, on_warning: Callable[[str], None] = warn) -> Engine:
    """An engine for this machine. Raises what is wrong with the models or the pair."""
    with ExitStack() as stack:
        file = resolve(config.target, offline=config.offline)
        model = LlamaModel(file.path, num_gpu_layers=config.gpu_layers, is_exact=config.exact)
        stack.callback(model.close)
        num_context = num_context_for(config, model)
        plan = core_plan(config, model)
        drafter = _drafter(config, model, num_context, plan, on_warning)
        if drafter:
            stack.callback(drafter.close)
        target = LlamaTarget(
            model,
            num_context=num_context,
            num_threads=plan.target_alone,
            is_width_exact=plan.shares_cores and not config.fast,
        )
        stack.callback(target.close)
        drafter = _when_ready(drafter, config, on_warning)

        def prepare(is_beside: bool) -> None:
            target.use_threads(plan.target_beside if is_beside else plan.target_alone)

        shown: Target = PacedTarget(target, config.pace) if config.pace else target
        engine = Engine(
            shown,
            model,
            num_context,
            drafter,
            _datastore(config, model),
            shares_cores=plan.shares_cores,
            pace_s=config.pace,
            prepare=prepare,
            resources=stack.pop_all(),
        )
        known = Profile.read(profile_key(config if drafter else replace(config, draft=None)))
        if known is not None:
            engine.costs = known.costs(is_beside=not plan.shares_cores)
        target.context.on_chunk = lambda: engine.on_chunk()
        return engine
    raise AssertionError("the stack swallows nothing")


def _datastore(config: EngineConfig, model: LlamaModel) -> Datastore | None:
    if config.datastore is None:
        return None
    return open_for(model, None if config.datastore == "auto" else Path(config.datastore))


def profile_key(config: EngineConfig) -> str:
    """Where the costs of this configuration are kept: see `duodec.profiling`."""
    target = resolve(config.target, offline=config.offline).path
    reference = draft_for(config)
    draft = resolve(reference, offline=config.offline).path if reference else None
    settings = (config.threads, config.draft_threads, config.gpu_layers, config.exact, config.fast)
    return key_of(target, draft, settings)


def drafting_can_pay(config: EngineConfig) -> bool:
    """Whether the target computes elsewhere (or is slowed for a show): a CPU that scores several
    tokens at once pays for several forwards."""
    can_offload = bool(load_llama(is_exact=config.exact).llama_supports_gpu_offload())
    return config.pace > 0 or (config.gpu_layers != 0 and can_offload)


def core_plan(config: EngineConfig, model: LlamaModel) -> CorePlan:
    """How this target and its draft share the cores that this process may use."""
    is_whole = config.gpu_layers < 0 or config.gpu_layers >= model.num_layers
    is_on_gpu = is_whole and bool(model.lib.llama_supports_gpu_offload())
    return CorePlan.make(
        available_cores(),
        target_is_on_cpu=not is_on_gpu,
        num_threads=config.threads,
        num_draft_threads=config.draft_threads,
    )


def num_context_for(config: EngineConfig, model: LlamaModel) -> int:
    """Tokens that a text may reach. Raises ContextExceeded beyond what the model knows."""
    trained = model.num_context_train
    if config.context is None:
        return min(trained, DEFAULT_CONTEXT)
    if config.context > trained:
        raise ContextExceeded(
            f"context is {config.context} and the model was trained for {trained} tokens; "
            f"use {trained} or less"
        )
    return config.context


def _drafter(
    config: EngineConfig,
    target: LlamaModel,
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
    target: LlamaModel,
    num_context: int,
    plan: CorePlan,
    *,
    on_warning: Callable[[str], None] = warn,
) -> ProcessDrafter:
    """The draft model in a process of its own, loading while the target does. Raises what is
    wrong with it, or with the pair."""
    reference = draft_for(config)
    assert reference, "somebody asked for a draft"
    path = resolve(reference, offline=config.offline).path
    vocabulary = LlamaModel(path, vocabulary_only=True, num_gpu_layers=0)
    try:
        check_pair(target, vocabulary, stride=_SAMPLED_STRIDE)
    finally:
        vocabulary.close()
    num_threads = len(plan.draft_cores)
    return ProcessDrafter(
        LlamaRecipe(path, num_context, num_threads, target.num_vocab),
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
