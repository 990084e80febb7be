"""Check a target and a draft: files, vocabularies, template, context, memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duodec.cli.checks import Check
from duodec.cli.output import size
from duodec.cli.spelling import as_options
from duodec.errors import BadOption
from duodec.machine.memory import available_bytes
from duodec.models import ModelFile
from duodec.models.vocabularies import difference

if TYPE_CHECKING:
    from duodec.backends.llamacpp.checks.row_trial import RowTrial
    from duodec.backends.loaded import LoadedTarget, TargetModel
    from duodec.core.traits import Widths

_TIGHT = 0.9  # share of the free memory above which a warning is due

NO_DRAFT = Check(
    "draft",
    "warn",
    "none is known for this target: it decodes plainly, or drafts by lookup",
    "name a small model with --draft; `duodec drafts` lists what is there",
)


def check_model(role: str, file: ModelFile, model: TargetModel) -> Check:
    terms = file.license or model.license or "unknown"
    kind = f"{model.architecture}, {model.num_params / 1e6:.0f} M parameters"
    words = f"{kind}, {size(file.num_bytes)}, licence {terms}, from {file.source}: {file.path}"
    return Check(role, "ok", words)


def check_vocabularies(target: TargetModel, draft: TargetModel) -> Check:
    """Compare every token. A padded vocabulary counts as the same; another one is translated."""
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
    from duodec.chat.prompting import chat_tokens

    if target.chat_template:
        try:
            chat_tokens(target, [{"role": "user", "content": "hi"}])
        except BadOption as error:
            words, _, remedy = as_options(str(error)).rpartition("; ")
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


def check_memory(target: LoadedTarget, draft: TargetModel | None, num_context: int) -> list[Check]:
    """Compare weights, caches and rows with what is free now, on each device."""
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
    """Check the machine's main memory."""
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


def check_rows(
    trial: RowTrial, widths: Widths, classes: Sequence[tuple[int, ...]] = (), *, is_fast: bool
) -> Check:
    """Check whether a seed has one text on this device, whatever is drafted, and which ``classes``
    of widths have equal bits there, if they were compared."""
    if trial.is_exact:
        rows = f"{widths} rows a forward pass"
        if classes:
            told = "; ".join(", ".join(map(str, own)) for own in classes)
            rows += f" (widths that agree: {told})"
        return Check("exactness", "ok", f"no bit depends on drafts or other requests: {rows}")
    what, most = trial.worst
    words = f"logits move by up to {most:.2g} with {what}: near ties, texts depend on drafts"
    remedy = "try fewer --rows, and report it, with the device's name and driver"
    return Check("exactness", "warn", words, "leave --fast out" if is_fast else remedy)
