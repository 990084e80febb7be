"""Describe for people how a run was made: its settings and its machine as names and words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from duodec.bench.results import Results

_NONE = "-"
_LONG_LIST = 16


def flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, words) of every fact; a nested one is named as in `packages numpy`."""
    for key, value in facts.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict) and value:
            yield from flat(value, f"{name} ")
        elif isinstance(value, list):
            yield name, _listed(list(map(str, value)))
        elif key.endswith("_bytes") and isinstance(value, (int, float)):
            yield name.removesuffix(" bytes"), f"{value / 2**30:.2f} GiB"
        elif key.endswith("_gib") and value is not None:
            yield name.removesuffix(" gib"), f"{value} GiB"
        elif isinstance(value, bool):
            yield name, "yes" if value else "no"
        else:
            yield name, _NONE if value in (None, "", {}) else str(value)


def _listed(words: list[str]) -> str:
    if len(words) > _LONG_LIST:
        return f"{len(words)}, from {words[0]} to {words[-1]}"
    return ", ".join(words) or _NONE


def headline(results: Results) -> list[tuple[str, str]]:
    """What a reader needs to know before any figure."""
    settings = results.settings
    completions = results.generations
    facts: list[tuple[str, object]] = [
        ("prompts", len({(g.task, g.prompt_id) for g in completions})),
        ("tasks", len(results.tasks)),
        ("methods", len(results.methods)),
        ("completions", len(completions)),
        ("repeats", settings.get("repeats")),
        ("test bed", ", ".join(dict.fromkeys(g.test_bed for g in completions))),
        ("ms a forward pass", settings.get("replay_ms") or settings.get("simulate_ms")),
        ("what these costs are", (settings.get("curve") or {}).get("origin")),
        ("ms of a draft step, by tokens", settings.get("draft_ms")),
        ("us of the host's work", settings.get("host_us")),
        ("tokens a completion, at most", settings.get("max_tokens")),
        ("temperature", settings.get("temperature")),
        ("control", settings.get("control")),
    ]
    return [(name, str(value)) for name, value in facts if value is not None]
