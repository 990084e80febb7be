"""Serve one loaded model: its scheduler's thread, the limits of its prompts, and its leases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields, replace
from itertools import count
from time import monotonic
from typing import Any

from duodec.core.prompts.pictures import sight_of
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.loading.load import Loaded
from duodec.methods.method import Method
from duodec.methods.registry import DEFAULT_METHOD
from duodec.models.metadata import Use
from duodec.server.api.bodies import Speculation
from duodec.server.api.shapes import progress
from duodec.server.api.tools.chat_format import ChatFormat
from duodec.server.http.intake import Intake
from duodec.server.metrics import Meters
from duodec.server.models.prompt_limits import PromptLimits
from duodec.server.models.scheduler_thread import SchedulerThread
from duodec.server.models.served import Served
from duodec.server.settings import Settings

_WARM_TOKENS = 16
_WARM_S, _WARM_PASSES = (
    1.0,
    3,
)  # of a slow target: not all of those tokens, but a few forward passes
UNLOADED: dict[str, Any] = {
    "total_slots": None, "n_ctx": None, "method": None, "chat_template": None,
    "speculation": {"has_draft_model": None, "shares_cores": None, "drafter_restarts": 0},
    "capabilities": None,
}  # fmt: skip
"""The properties of a model that is not loaded."""


class LoadedModel(Served):
    """A model that has completed a request of our own: clients find it warm. ``lock`` is held
    while it computes."""

    def __init__(
        self,
        name: str,
        llm: LLM,
        method: str | None,
        settings: Settings,
        intake: Intake,
        meters: Meters,
        lock: AbstractContextManager[None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(name, clock)
        self.llm, loaded = llm, llm.loaded
        self.chat_format = ChatFormat.of(loaded.tokenizer)
        self.method = method  # where a request names none; None: the default
        self.mapped_bytes = _mapped_bytes(loaded)
        lock = lock or nullcontext()
        llm.scheduler.num_chunk = 128 if loaded.cores.is_shared else 512
        tokens = llm.tokens_of([0])
        params = SamplingParams(logit_bias=_without_ends(loaded), max_tokens=_WARM_TOKENS)
        end_s, passes = monotonic() + _WARM_S, count(1)

        def is_warm() -> bool:
            return next(passes) >= _WARM_PASSES and monotonic() >= end_s

        with lock:
            for _ in llm.stream(tokens, params, method=method, should_stop=is_warm):
                pass
        with suppress(BadOption):  # a model that has no grammars refuses them when one is asked for
            llm.check(tokens, SamplingParams(grammar=Grammar("regex", "warm")))
        self.prompt_limits = PromptLimits.of(
            loaded.tokenizer, loaded.num_context, parse_special=loaded.parse_special
        )
        llm.scheduler.on_end = meters.ended
        llm.scheduler.most_slots = max(1, llm.scheduler.num_slots - 1)
        if loaded.cores.is_shared:
            llm.scheduler.num_chunk_in_company = 16  # takes two to three times as long as a token
            llm.scheduler.is_crowded = lambda: intake.is_computing_long
        self._thread = SchedulerThread(llm.scheduler, num_queued=settings.num_queued, lock=lock)

    @property
    def scheduler(self) -> SchedulerThread:
        return self._thread

    @property
    def use(self) -> Use:
        return "completion"

    @property
    def capabilities(self) -> list[str]:
        syntax = self.chat_format.syntax
        found = ["completion"]
        found += ["vision"] if sight_of(self.llm.loaded.tokenizer) else []
        found += ["tools"] if syntax.has_tools else []
        return found + (["thinking"] if syntax.has_reasoning else [])

    @property
    def num_context(self) -> int:
        return self.llm.loaded.num_context

    @property
    def shares_cores(self) -> bool:
        return self.llm.loaded.cores.is_shared

    @property
    def chat_template(self) -> str | None:
        return self.llm.loaded.tokenizer.chat_template

    def free(self) -> None:
        self.llm.close()

    @property
    def computes_on_all_cores(self) -> bool:
        """A forward pass of it does now, on cores that preparing requests needs, too."""
        return self.llm.loaded.cores.is_shared and self.llm.scheduler.has_all_cores

    def method_for(self, speculation: Speculation) -> Method:
        """The method that a request is decoded with. Raises BadOption."""
        method = self.llm.method(speculation.method_name or self.method)
        if (most := speculation.most_drafted) is None:
            return method
        if "num_tokens" not in [field.name for field in fields(method)]:  # type: ignore[arg-type]
            raise BadOption(f"method '{method.name}' takes no max_draft; leave it out")
        # what it has learned is shared with the one that it is a copy of
        return replace(method, num_tokens=most)  # type: ignore[type-var]

    @property
    def num_restarts(self) -> int:
        drafter = self.llm.loaded.drafter
        return drafter.restarts if drafter else 0

    def num_tokens(self, text: str) -> int:
        """Of a text that is no prompt."""
        return len(self.llm.loaded.tokenizer.tokenize(text, is_templated=False))

    # --- what it is

    def props(self) -> dict[str, Any]:
        """How it is served."""
        loaded = self.llm.loaded
        return {
            "total_slots": self.scheduler.num_slots,
            "n_ctx": loaded.num_context,
            "default_generation_settings": {"n_ctx": loaded.num_context},  # where clients look
            "method": self.method or DEFAULT_METHOD,
            "chat_template": loaded.tokenizer.chat_template,
            "capabilities": self.capabilities,
            "speculation": {
                "has_draft_model": loaded.drafter is not None,
                "shares_cores": loaded.cores.is_shared,
                "drafter_restarts": self.num_restarts,
            },
        }

    def slots(self, owner: str | None) -> list[dict[str, Any]]:
        """What each slot works at; texts are not shown, and of others' not even how long they
        are."""
        found = []
        for i, (entry, slot) in enumerate(self.scheduler.slots):
            shown: dict[str, Any] = {"id": i, "is_processing": entry is not None}
            if slot.owner == owner:
                shown["n_cached"] = slot.num_cached
            if entry is not None and entry.request.owner == owner:
                shown |= progress(entry.counts)
            found.append(shown)
        return found


def _mapped_bytes(loaded: Loaded) -> int:
    """Bytes of weights that count as free memory, as they are mapped from a file."""
    return loaded.target.traits.num_mapped_bytes if loaded.cores.is_shared else 0


def _without_ends(loaded: Loaded) -> dict[int, float]:
    """A bias that keeps a completion from ending early."""
    eos = loaded.tokenizer.eos
    return {eos: -float("inf")} if eos >= 0 else {}
