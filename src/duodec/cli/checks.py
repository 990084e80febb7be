"""What `duodec doctor` looks at, one `Check` each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import psutil

from duodec.backends.cpu import cpu_key
from duodec.busy import NOTABLE
from duodec.cli.closing import rate, seconds
from duodec.cli.models import size
from duodec.cli.speed import NUM_LEAVES, NUM_SCORED, Speed
from duodec.config import CorePlan
from duodec.errors import PairMismatch
from duodec.models import ModelFile
from duodec.pairing import check_pair

if TYPE_CHECKING:
    from duodec.backends.llamacpp.model import LlamaModel

_BYTES_PER_VALUE = 2  # of the key-value cache: 16-bit floats
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


def check_model(role: str, file: ModelFile, model: LlamaModel) -> Check:
    terms = file.license or model.metadata("general.license") or "unknown"
    disk = size(file.path.stat().st_size)
    kind = f"{model.metadata('general.architecture')}, {model.num_params / 1e6:.0f} M parameters"
    words = f"{kind}, {disk}, licence {terms}, from {file.source}: {file.path}"
    return Check(role, "ok", words)


def check_vocabularies(target: LlamaModel, draft: LlamaModel) -> Check:
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


def check_template(target: LlamaModel) -> Check:
    if target.chat_template:
        return Check("chat template", "ok", "in the target's file")
    return Check(
        "chat template",
        "warn",
        "the target's file has none: it continues texts, and was not trained to chat",
        "use --raw",
    )


def check_context(target: LlamaModel, draft: LlamaModel | None, num_context: int) -> Check:
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


def check_memory(models: list[LlamaModel], num_context: int) -> Check:
    """Weights and caches against what is free now."""
    weights = sum(model.num_bytes for model in models)
    cache = sum(
        _cache_bytes_per_token(model) * min(num_context, model.num_context_train)
        for model in models
    )
    free = psutil.virtual_memory().available
    words = f"{size(weights)} of weights and {size(cache)} of cache, {size(free)} free"
    if weights + cache > free:
        remedy = "close other programs, lower --context, or take a smaller quantisation"
        return Check("memory", "fail", words, remedy)
    if weights + cache > _TIGHT * free:
        return Check("memory", "warn", words, "lower --context")
    return Check("memory", "ok", words)


def _cache_bytes_per_token(model: LlamaModel) -> int:
    """Keys and values of every layer, at 16 bits."""
    lib, handle = model.lib, model.handle
    kind = model.metadata("general.architecture")
    num_heads = lib.llama_model_n_head(handle)
    head = lib.llama_model_n_embd(handle) // max(1, num_heads)
    widths = [
        int(model.metadata(f"{kind}.attention.{part}_length") or head) for part in ("key", "value")
    ]
    layers, heads = lib.llama_model_n_layer(handle), lib.llama_model_n_head_kv(handle)
    return int(sum(widths) * layers * heads * _BYTES_PER_VALUE)


def check_build(lib: Any) -> Check:
    """llama.cpp as it was built here; one for another processor never gets this far."""
    info = lib.llama_print_system_info().decode("utf-8", "replace")
    parts = [part.split(":")[-1].partition("=") for part in info.split("|")]
    features = " ".join(name.strip() for name, _, value in parts if value.strip() == "1")
    gpu = "with" if lib.llama_supports_gpu_offload() else "without"
    words = (
        f"llama-cpp-python {version('llama-cpp-python')} {gpu} GPU offload, for this processor "
        f"({cpu_key()}): {features}"
    )
    return Check("llama.cpp", "ok", words)


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
