"""Check what `duodec doctor` reports, one `Check` each."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.header import Header, ggml
from duodec.chat.prompting import chat_tokens
from duodec.cli.closing import rate, seconds
from duodec.cli.models import size
from duodec.cli.speed import NUM_LEAVES, NUM_SCORED, Speed
from duodec.errors import BackendUnavailable, BadOption, DuodecError
from duodec.machine.busy import NOTABLE
from duodec.machine.cores import CorePlan
from duodec.machine.memory import available_bytes
from duodec.models import ModelFile
from duodec.models.config import LLAMA_CPP, TORCH
from duodec.models.pairing import difference

if TYPE_CHECKING:
    from duodec.backends.llamacpp.row_trial import RowTrial
    from duodec.cli.draft_trial import DraftTrial
    from duodec.models.discovery import Candidate
    from duodec.models.targets import LoadedTarget, TargetModel

TORCH_SETUP = "make setup-torch, or pip install 'duodec[torch]'"
_TIGHT = 0.9  # share of the free memory above which a warning is due
_WORTH = 1.1  # best case below which drafts are not worth it


@dataclass(frozen=True)
class Check:
    """One result; fail means that this pair cannot be used."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    words: str
    remedy: str = ""


NO_DRAFT = Check(
    "draft",
    "warn",
    "none is known for this target: it decodes plainly, or drafts by lookup",
    "name a small model with --draft; `duodec models drafts` lists what is there",
)


def failed(error: DuodecError) -> Check:
    """The check of an error that makes the pair unusable."""
    words, _, remedy = str(error).rpartition("; ")
    return Check("use", "fail", words or remedy, remedy if words else "")


def check_model(role: str, file: ModelFile, model: TargetModel) -> Check:
    from duodec.models.targets import file_bytes

    terms = file.license or model.license or "unknown"
    kind = f"{model.architecture}, {model.num_params / 1e6:.0f} M parameters"
    words = f"{kind}, {size(file_bytes(file))}, licence {terms}, from {file.source}: {file.path}"
    return Check(role, "ok", words)


def check_vocabularies(target: TargetModel, draft: TargetModel) -> Check:
    """Every token is compared; a padded vocabulary is one, another one is translated."""
    found = difference(target, draft)
    if found is not None:
        words = f"{found}: the draft's text is tokenised anew, and accepted less often"
        return Check("vocabularies", "ok", words)
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
        "none in the target's file: it continues texts, and was not trained to chat",
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
    if plan.shares_cores:
        words = f"{num_cores}: target and draft take turns on {plan.target_alone}"
    else:
        words = f"{num_cores}: the draft computes on {len(plan.draft_cores)}, the target elsewhere"
    return Check("cores", "ok", words)


def check_rows(trial: RowTrial, num_rows: int | None) -> Check:
    """Whether a seed has one text on this device, whatever is drafted."""
    if trial.is_exact:
        rows = f"{num_rows} rows a forward pass" if num_rows else "rows as many as are asked for"
        return Check("exactness", "ok", f"no bit depends on drafts or other requests: {rows}")
    what, most = trial.worst
    words = f"logits move by up to {most:.2g} with {what}: near ties, texts depend on drafts"
    if num_rows:
        return Check("exactness", "warn", words, "report it, with the device's name and driver")
    return Check("exactness", "warn", words, "use --exact, which pads forward passes")


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
    if target.free_bytes is not None:  # its weights are already there
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
    """The machine's main memory."""
    cache = _cache_bytes(models, num_context)
    return _memory("memory", available_bytes(), weights=_weight_bytes(models), cache=cache)


def _memory(name: str, free: int, **parts: int) -> Check:
    """Compare the bytes needed, by purpose, with the bytes free."""
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
    """llama.cpp's build; one for another processor never gets this far."""
    from duodec.models.targets import GPU_BUILD

    info = lib.llama_print_system_info().decode("utf-8", "replace")
    parts = [part.split(":")[-1].partition("=") for part in info.split("|")]
    features = " ".join(name.strip() for name, _, value in parts if value.strip() == "1")
    can_offload = lib.llama_supports_gpu_offload()
    words = (
        f"llama-cpp-python {version('llama-cpp-python')} {'with' if can_offload else 'without'} "
        f"GPU offload, for this processor ({cpu_key()}): {features}"
    )
    if has_gpu and not can_offload and backend == LLAMA_CPP:
        return Check(LLAMA_CPP, "warn", f"{words}; the GPU of this machine stays idle", GPU_BUILD)
    return Check(LLAMA_CPP, "ok", words)


def check_kernels(lib: Any, path: Path) -> Check:
    """Which kernels compute weights on the CPU, and what they leave to llama.cpp's."""
    named = library.kernels(lib)
    if not named:
        words = "llama.cpp's own for weights on the CPU: near ties, texts of K-quants can differ"
        remedy = "`duodec setup --rebuild` builds ours, where the processor has AVX2 or NEON"
        return Check("kernels", "warn", words, remedy)
    words = f"ours for {named}: weights on the CPU give a row the same bits at any width"
    header = Header.read(lib, path)
    left = [
        name
        for name, type_ in (header.types if header else {}).items()
        if not library.packs(lib, type_)
    ]
    if not header or not left:
        return Check("kernels", "ok", words)
    type_name = ggml(lib, "ggml_type_name", ctypes.c_char_p, ctypes.c_int)
    formats = sorted({type_name(header.types[name]).decode() for name in left})
    share = sum(header.tensors[name] for name in left) / header.num_bytes
    return Check(
        "kernels",
        "warn",
        f"{words}; llama.cpp's compute {len(left)} tensors in {', '.join(formats)}, {share:.0%} of "
        "the weights, in which several tokens cost nearly as many times one",
        "on a CPU take another quantisation, such as Q4_K_M",
    )


def check_torch(backend: str, *, has_gpu: bool) -> Check:
    """Check torch, which computes targets in safetensors."""
    try:
        words = f"torch {version('torch')}, transformers {version('transformers')}"
    except PackageNotFoundError:
        return Check(TORCH, "ok", "not installed; targets in safetensors need it", TORCH_SETUP)
    if backend != TORCH and not has_gpu:  # loading it would take seconds
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
    """Whether Linux lists an NVIDIA GPU, usable or not."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def check_idle(num_cores_busy: float) -> Check:
    """Other programs' share of the cores while the speed was measured."""
    words = f"other programs kept {num_cores_busy:.1f} cores busy during the measurement"
    if num_cores_busy < NOTABLE:
        return Check("idle", "ok", words)
    remedy = "the times below are unreliable: stop them, or leave them cores with --threads"
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
    how = "in turn" if shares_cores else "in parallel"
    costs = (
        f"scoring {NUM_SCORED} draft tokens takes {seconds(speed.verify_s)}, "
        f"{speed.verify_cost:.1f} plain passes, and drafting them {speed.draft_cost:.1f}, {how}"
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


def check_trials(target: str, trials: Sequence[DraftTrial]) -> list[Check]:
    """Drafts on this machine, the best first, and the command that uses each."""
    return [
        Check(
            "draft found" if i else "best draft",
            "ok",
            f"{one.candidate.name} ({one.candidate.place}, "
            f"{'same' if one.candidate.is_same else 'another'} vocabulary): {one.agreement:.0%} of "
            f"first guesses right, {seconds(one.step_s)} a step, about {one.speedup:.1f}x plain "
            f"decoding; duodec chat --target {target} --draft {one.candidate.path}",
        )
        for i, one in enumerate(trials)
    ]


def check_skipped(found: Sequence[Candidate]) -> list[Check]:
    """Files that cannot draft here, and why; those that are only too large go without saying."""
    return [
        Check("draft skipped", "ok", f"{one.path} ({one.place}): {one.fault}")
        for one in found
        if one.fault and "large" not in one.fault
    ]
