"""From names of models to an `Engine`: files, threads, the drafter's process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import LlamaRecipe, LlamaTarget
from duodec.backends.process import ProcessDrafter
from duodec.backends.testbeds import PacedTarget
from duodec.config import CorePlan, available_cores
from duodec.core.protocols import Target
from duodec.decoding.methods import Method
from duodec.engine import Engine, warn
from duodec.errors import BadOption, ContextExceeded
from duodec.models import ALIASES, ModelFile, resolve
from duodec.pairing import check_pair

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
    offline: bool = False

    def __post_init__(self) -> None:
        if self.exact and self.fast:
            raise BadOption("exact and fast exclude each other; choose one")
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
        drafter = None
        if reference := draft_for(config):
            drafter = _drafter(reference, config, model, num_context, plan, on_warning)
            stack.callback(drafter.close)
        target = LlamaTarget(
            model,
            num_context=num_context,
            num_threads=plan.target_alone,
            is_width_exact=plan.shares_cores and not config.fast,
        )
        stack.callback(target.close)
        if drafter:
            drafter.wait_ready()

        def prepare(method: Method) -> None:
            target.use_threads(plan.target_beside if method.is_overlapped else plan.target_alone)

        shown: Target = PacedTarget(target, config.pace) if config.pace else target
        engine = Engine(
            shown,
            model,
            num_context,
            drafter,
            shares_cores=plan.shares_cores,
            prepare=prepare,
            resources=stack.pop_all(),
        )
        target.context.on_chunk = lambda: engine.on_chunk()
        return engine
    raise AssertionError("the stack swallows nothing")


def core_plan(config: EngineConfig, model: LlamaModel) -> CorePlan:
    """How this target and its draft share the cores that this process may use."""
    is_on_gpu = config.gpu_layers != 0 and bool(model.lib.llama_supports_gpu_offload())
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
    reference: str,
    config: EngineConfig,
    target: LlamaModel,
    num_context: int,
    plan: CorePlan,
    on_warning: Callable[[str], None],
) -> ProcessDrafter:
    """The draft model in a process of its own, loading while the target does."""
    file: ModelFile = resolve(reference, offline=config.offline)
    vocabulary = LlamaModel(file.path, vocabulary_only=True, num_gpu_layers=0)
    try:
        check_pair(target, vocabulary, stride=_SAMPLED_STRIDE)
    finally:
        vocabulary.close()
    num_threads = len(plan.draft_cores)
    return ProcessDrafter(
        LlamaRecipe(file.path, num_context, num_threads),
        cores=plan.draft_cores,
        num_threads=num_threads,
        on_warning=on_warning,
    )
