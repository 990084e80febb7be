"""Check what a command is about to load, and open it: downloads with a bar, loading with a
spinner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from duodec.cli.output import say_dim, size, status
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec.machine.signals import interrupted_at_once
from duodec.methods.registry import method as method_named

if TYPE_CHECKING:
    from duodec.llm import LLM
    from duodec.loading.embedding import EmbedderUse
    from duodec.loading.memory import MemoryUse
    from duodec.loading.resolve import ResolvedPair


def resolve_for(config: EngineConfig, method: str | None) -> ResolvedPair:
    """Return the files that a method needs. They are downloaded first, because their bar and the
    spinner cannot share the terminal. Raises BadOption if the method needs a draft and there is
    none."""
    from duodec.loading.resolve import resolve_pair

    is_needed = method is not None and method_named(method).needs_draft_model
    if is_needed and config.draft in (None, "none"):
        raise _no_draft(method, "--draft is none")
    pair = resolve_pair(config if is_needed or method is None else replace(config, draft=None))
    if is_needed and pair.draft is None:
        raise pair.no_draft or _no_draft(method, f"no draft is known for {pair.name}")
    return pair


def _no_draft(method: str | None, why: str) -> BadOption:
    return BadOption(
        f"method '{method}' needs a draft model and {why}; name one with --draft, or use --method "
        "ar or lookup"
    )


def open_llm(
    pair: ResolvedPair, *, on_warning: Callable[[str], None], is_quiet: bool = False
) -> LLM:
    """Open a command's engine; the caller closes it."""
    from duodec import llm

    names = " and ".join(name for name in (pair.name, pair.draft_name) if name)
    with status(f"loading {names}", is_quiet=is_quiet), interrupted_at_once():
        return llm.load(pair, on_warning=on_warning)


def say_memory(opened: LLM) -> None:
    """Print what memory an engine takes, if that was estimated."""
    if memory := opened.loaded.memory:
        say_dim(memory_line(memory))


def memory_line(use: MemoryUse) -> str:
    """Return what memory a pair takes, and which option reduces it."""
    parts = [f"{size(use.weight_bytes)} of weights"]
    if use.draft_bytes:
        parts.append(f"{size(use.draft_bytes)} of draft")
    texts = f"{use.num_context} tokens"
    if use.num_slots > 1:
        texts = f"{use.num_slots} requests of {texts}"
    parts.append(f"at most {size(use.cache_bytes)} of caches ({texts})")
    less = f"-c {use.num_context // 2} halves the caches"
    if use.num_slots > 1:
        less += ", -np 1 keeps one, for a single user"
    return f"memory: {', '.join(parts)}; {less}"


def embedder_line(use: EmbedderUse) -> str:
    """Return what memory a model of embeddings takes, and which option reduces it."""
    return (
        f"memory: {size(use.weight_bytes)} of weights, at most {size(use.work_bytes)} to compute "
        f"texts of {use.num_context} tokens; -c {max(1, use.num_context // 2)} allows shorter ones"
    )


def check_length(max_tokens: int | None, stop: Sequence[str]) -> None:
    """Refuse what the engine would refuse, before a model is loaded."""
    if max_tokens is not None and max_tokens < 1:
        raise BadOption(
            f"max-tokens is {max_tokens}; use 1 or more",
            option="max-tokens",
            flags=("--max-tokens", "-n"),
        )
    if any(not text for text in stop):
        raise BadOption("a --stop text is empty; leave it out")


def method_or_none(name: str) -> str | None:
    """Return a method's name; None for the default. Raises BadOption, which lists the methods."""
    if name == "auto":
        return None
    method_named(name)
    return name


def with_datastore(config: EngineConfig, method: str) -> EngineConfig:
    """Return the configuration with the datastore to open: a named one, or one that this method
    needs."""
    is_needed = method_named(method).needs_datastore or config.datastore != "auto"
    return config if is_needed else replace(config, datastore=None)
