"""What `duodec doctor` looks at, one `Check` each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from duodec.backends.cpu import cpu_key
from duodec.busy import NOTABLE
from duodec.cli.closing import rate, seconds
from duodec.cli.models import size
from duodec.cli.speed import NUM_LEAVES, NUM_SCORED, Speed
from duodec.config import LLAMA_CPP, TORCH, CorePlan
from duodec.errors import BackendUnavailable, BadOption, DuodecError, PairMismatch
from duodec.memory import available_bytes
from duodec.models import ModelFile
from duodec.pairing import check_pair
from duodec.prompting import chat_tokens

if TYPE_CHECKING:
    from duodec.targets import LoadedTarget, TargetModel

TORCH_SETUP = "make setup-torch, or pip install 'duodec[torch]'"
_TIGHT = 0.9  # part of the free memory above which a warning is due
_WORTH = 1.1  # best case below which drafts are not worth it


@dataclass(frozen=True)
class Check:
    """One thing looked at: fail means that this pair cannot be used."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    words: str
    remedy: str = ""


NO_DRAFT = Check(
    "draft",
    "warn",
    "none is known for this target: it decodes plainly, or drafts by lookup",
    "name a small model of the target's own family with --draft",
)


def failed(error: DuodecError) -> Check:
    """What kept the pair from being used."""
    words, _, remedy = str(error).rpartition("; ")
    return Check("use", "fail", words or remedy, remedy if words else "")


def check_model(role: str, file: ModelFile, model: TargetModel) -> Check:
    from duodec.targets import file_bytes

    terms = file.license or model.license or "unknown"
    kind = f"{model.architecture}, {model.num_params / 1e6:.0f} M parameters"
    words = f"{kind}, {size(file_bytes(file))}, licence {terms}, from {file.source}: {file.path}"
    return Check(role, "ok", words)


def check_vocabularies(target: TargetModel, draft: TargetModel) -> Check:
    """Every token is compared; a padded vocabulary is tolerated."""
    try:
        check_pair(target, draft, stride=1)
    except PairMismatch as error:
        words, _, remedy = str(error).rpartition("; ")
        return Check("vocabularies", "fail", words, remedy)
    shared = min(target.num_vocab, draft.num_vocab)
    padding = abs(target.num_vocab - draft.num_vocab)
    padded = f", and {padding} of padding" if padding else ""
    end = target.token_text(target.eos).decode("utf-8", "replace") if target.eos >= 0 else "none"
    return Check("vocabularies", "ok", f"{shared} tokens, all equal{padded}; end token {end}")


def check_template(target: TargetModel) -> Check:
    if target.chat_template:
        try:
            chat_tokens(target, [{"role": "user", "content": "hi"}])
        except BadOption as error:
            words, _, remedy = str(error).rpartition("; ")
            return Check("chat template", "warn", words, remedy)
        return Check("chat template", "ok", "in the target's file")
    return Check(
        "chat template",
        "warn",
        "the target's file has none: it continues texts, and was not trained to chat",
        "use --raw",
    )


def check_context(target: TargetModel, draft: TargetModel | None, num_context: int) -> Check:
    words = f"{num_context} tokens are used, the target was trained for {target.num_context_train}"
    if draft and draft.num_context_train < num_context:
        return Check(
            "context",
            "warn",
            f"{words}, the draft for {draft.num_context_train} only",
            "longer texts are drafted from their last part, and worse; --context lowers the limit",
        )
    return Check("context", "ok", words)


def check_cores(plan: CorePlan, num_cores: int) -> Check:
    num_draft = len(plan.draft_cores)
    words = (
        f"{num_cores}: {plan.target_alone} for the target alone, {plan.target_beside} beside the "
        f"draft on {num_draft}"
    )
    if plan.shares_cores and plan.target_beside + num_draft > num_cores:
        return Check("cores", "warn", words, "one core cannot do both at once: use --method ar")
    return Check("cores", "ok", words)


def check_memory(target: LoadedTarget, draft: TargetModel | None, num_context: int) -> list[Check]:
    """Weights, caches and rows against what is free now, on each device."""
    cache = _cache_bytes([target.model], num_context)
    rows = states = 0
    if own := target.footprint:
        cache, rows, states = (
            own.cache_bytes_per_token * num_context,
            own.row_bytes,
            own.state_bytes,
        )
    drafts = [draft] if draft else []
    if target.free_bytes is not None:  # its weights are there already
        gpu = _memory("GPU memory", target.free_bytes(), cache=cache, rows=rows, states=states)
        return [gpu, check_memory_of(drafts, num_context)]
    if not target.is_on_cpu:
        return [check_memory_of(drafts, num_context)]
    weights = _weight_bytes([target.model, *drafts])
    cache += _cache_bytes(drafts, num_context)
    return [
        _memory("memory", available_bytes(), weights=weights, cache=cache, rows=rows, states=states)
    ]


def check_memory_of(models: Sequence[TargetModel], num_context: int) -> Check:
    """This machine's own memory."""
    cache = _cache_bytes(models, num_context)
    return _memory("memory", available_bytes(), weights=_weight_bytes(models), cache=cache)


def _memory(name: str, free: int, **parts: int) -> Check:
    """What is needed, in bytes by what it is for, against what is free."""
    what = ", ".join(f"{size(n)} of {part}" for part, n in parts.items() if n or part == "cache")
    words = f"{what}, {size(free)} free"
    needed = sum(parts.values())
    if needed > free:
        remedy = "close other programs, lower --context, or take a smaller quantisation"
        return Check(name, "fail", words, remedy)
    if needed > _TIGHT * free:
        return Check(name, "warn", words, "lower --context")
    return Check(name, "ok", words)


def _weight_bytes(models: Sequence[TargetModel]) -> int:
    return sum(model.num_bytes for model in models if not model.is_read)


def _cache_bytes(models: Sequence[TargetModel], num_context: int) -> int:
    return sum(
        model.cache_bytes_per_token * min(num_context, model.num_context_train) for model in models
    )


def check_llama(lib: Any, backend: str, *, has_gpu: bool) -> Check:
    """llama.cpp as it was built here; one for another processor never gets this far."""
    from duodec.targets import CUDA_BUILD

    info = lib.llama_print_system_info().decode("utf-8", "replace")
    parts = [part.split(":")[-1].partition("=") for part in info.split("|")]
    features = " ".join(name.strip() for name, _, value in parts if value.strip() == "1")
    can_offload = lib.llama_supports_gpu_offload()
    words = (
        f"llama-cpp-python {version('llama-cpp-python')} {'with' if can_offload else 'without'} "
        f"GPU offload, for this processor ({cpu_key()}): {features}"
    )
    if has_gpu and not can_offload and backend == LLAMA_CPP:
        return Check(LLAMA_CPP, "warn", f"{words}; the GPU of this machine stays idle", CUDA_BUILD)
    return Check(LLAMA_CPP, "ok", words)


def check_torch(backend: str, *, has_gpu: bool) -> Check:
    """torch, which computes targets in safetensors."""
    try:
        words = f"torch {version('torch')}, transformers {version('transformers')}"
    except PackageNotFoundError:
        return Check(TORCH, "ok", "not installed; targets in safetensors need it", TORCH_SETUP)
    if backend != TORCH and not has_gpu:  # not worth the seconds that loading it takes
        return Check(TORCH, "ok", f"{words}; not needed for this target")
    try:
        from duodec.backends.torch.placing import gpu_words
    except BackendUnavailable as error:
        return Check(TORCH, "warn", words, str(error))
    if (found := gpu_words()) is None:
        lacks = f"{words}, without a GPU that it can use"
        remedy = "see docs/torch.md on builds of torch with CUDA" if has_gpu else ""
        return Check(TORCH, "warn" if has_gpu else "ok", lacks, remedy)
    return Check(TORCH, "ok", f"{words}, {found}")


def gpu_is_there() -> bool:
    """Whether Linux shows an NVIDIA GPU, whatever can use it."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def check_idle(num_cores_busy: float) -> Check:
    """Other programs' share of the cores while the speed was measured."""
    words = f"other programs kept {num_cores_busy:.1f} cores busy during the measurement"
    if num_cores_busy < NOTABLE:
        return Check("idle", "ok", words)
    remedy = "the times below are not to be trusted: stop them, or leave them cores with --threads"
    return Check("idle", "warn", words, remedy)


def check_speed(speed: Speed, *, shares_cores: bool) -> list[Check]:
    """The measured times, and whether drafts can pay."""
    plain = Check(
        "plain decoding", "ok", f"{seconds(speed.plain_s)} a token, {rate(1 / speed.plain_s)}"
    )
    if speed.draft_s is None or speed.wide_s is None:
        return [plain]
    steps = Check(
        "draft steps",
        "ok",
        f"{seconds(speed.draft_s)} for one token, {seconds(speed.wide_s)} for {NUM_LEAVES} leaves",
    )
    needed = speed.num_needed(shares_cores=shares_cores)
    how = "in turn" if shares_cores else "at the same time"
    costs = (
        f"scoring {NUM_SCORED} draft tokens takes {seconds(speed.verify_s)}, "
        f"{speed.verify_cost:.1f} plain forwards, and drafting them {speed.draft_cost:.1f}, {how}"
    )
    best = (NUM_SCORED + 1) / (needed + 1)
    if best < _WORTH:
        words = f"{costs}: drafts cannot pay here, at best {best:.1f}x plain decoding"
        return [plain, steps, Check("drafts", "warn", words, "use --method ar or lookup")]
    num_needed = max(1, math.ceil(needed))
    words = (
        f"{costs}: they pay from {num_needed} accepted of {NUM_SCORED} on, at best {best:.1f}x "
        "plain decoding"
    )
    return [plain, steps, Check("drafts", "ok", words)]
