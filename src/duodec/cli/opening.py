"""Check what a command is to load, and open it: downloads with a bar, loading with a spinner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from duodec.__main__ import interrupted_at_once
from duodec.cli.output import status
from duodec.errors import BadOption
from duodec.methods.registry import method as method_named
from duodec.models.config import EngineConfig

if TYPE_CHECKING:
    from duodec.llm import LLM


def open_engine(
    config: EngineConfig, *, on_warning: Callable[[str], None], is_quiet: bool = False
) -> LLM:
    """Open a command's engine; the caller closes it."""
    from duodec import loading
    from duodec.models import resolve
    from duodec.models.targets import target_file

    draft = loading.draft_for(config)
    # downloads first: their bar and the spinner cannot share the terminal
    target_file(config)
    if draft:
        resolve(draft, offline=config.offline)
    names = f"{config.target} and {draft}" if draft else config.target
    with status(f"loading {names}", is_quiet=is_quiet), interrupted_at_once():
        return loading.load(config, on_warning=on_warning)


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


def method_or_none(name: str, draft: str | None) -> str | None:
    """A method's name; None for the default. If the user names a draft, it is used. Raises
    BadOption, which lists the methods."""
    if name == "auto":
        return None if draft in ("auto", "none") else "stream"
    method_named(name)
    return name


def with_datastore(config: EngineConfig, method: str) -> EngineConfig:
    """The configuration with the datastore to open: one named, or one that this method needs."""
    is_needed = method_named(method).needs_datastore or config.datastore != "auto"
    return config if is_needed else replace(config, datastore=None)


def draft_reference(config: EngineConfig, method: str | None) -> str | None:
    """The draft model that this method needs, by name. Raises BadOption if it needs one and there
    is none."""
    from duodec.loading import draft_for

    draft = draft_for(config)
    if method is None and config.draft == "auto" and draft is None:
        return None
    if method is None or method_named(method).needs_draft_model:
        if method is not None and draft is None:
            why = (
                f"no draft is known for {config.target}"
                if config.draft == "auto"
                else "--draft is none"
            )
            raise BadOption(
                f"method '{method}' needs a draft model and {why}; name one with --draft, "
                "or use --method ar or lookup"
            )
        return draft
    return None
