"""Keep the names from before `duodec.llm` for one version."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from duodec.core.events import Event
from duodec.core.sampling import SamplingParams
from duodec.inputs import Prompt
from duodec.llm import LLM
from duodec.methods.method import Method


class Engine(LLM):
    """Deprecated: `duodec.LLM`, whose `LLM.stream` is what `generate` was here."""

    def __post_init__(self) -> None:
        warnings.warn(
            "duodec.Engine is now duodec.LLM, and Engine.generate is LLM.stream; see CHANGELOG.md",
            DeprecationWarning,
            stacklevel=3,
        )
        super().__post_init__()

    @classmethod
    def load(cls, target: str = "smollm2", draft: str | None = "auto", **options: Any) -> Engine:
        llm = LLM.load(target, draft, **options)
        return cls(**{name: value for name, value in vars(llm).items() if name != "_scheduler"})

    def generate(  # type: ignore[override]
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        method: str | Method | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        choice: int = 0,
    ) -> Iterator[Event]:
        """The events of one completion: see `LLM.stream`."""
        params = replace(sampling or SamplingParams(), max_tokens=max_tokens, stop=tuple(stop))
        return self.stream(prompt, params, method=method, choice=choice)
