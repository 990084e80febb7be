"""Check options before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from duodec.core.grammar import Grammar
from duodec.errors import BadOption
from duodec.methods.registry import method as method_named
from duodec.models.config import EngineConfig


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


def grammar_or_none(json_schema: str | None, regex: str | None) -> Grammar | None:
    """The grammar of the completion. A schema that is not a JSON object is the name of its file.
    Raises BadOption."""
    if json_schema is not None and regex is not None:
        raise BadOption("--json-schema and --regex exclude each other; choose one")
    if regex is not None:
        return Grammar("regex", regex)
    if json_schema is None:
        return None
    if json_schema.lstrip().startswith("{"):
        return Grammar("json_schema", json_schema)
    try:
        return Grammar("json_schema", Path(json_schema).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(
            f"the JSON schema {json_schema} cannot be read ({error}); name a file, or write it out"
        ) from error


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
