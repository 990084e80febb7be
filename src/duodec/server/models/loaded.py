"""Serve one loaded model: its scheduler's thread, the limits of its prompts, and its leases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields, replace
from itertools import count
from threading import Lock
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.methods.method import Method
from duodec.methods.registry import DEFAULT_METHOD
from duodec.server.api.bodies import Speculation
from duodec.server.api.shapes import progress
from duodec.server.api.tools.chat_format import ChatFormat
from duodec.server.errors import unavailable
from duodec.server.http.intake import Intake
from duodec.server.metrics import Meters
from duodec.server.models.prompt_limits import PromptLimits
from duodec.server.models.scheduler_thread import SchedulerThread
from duodec.server.settings import Settings

_P = ParamSpec("_P")
_T = TypeVar("_T")
_WARM_TOKENS = 16
_WARM_S, _WARM_PASSES = (
    1.0,
    3,
)  # of a slow target: not all of those tokens, but a few forward passes
UNLOADED: dict[str, Any] = {
    "total_slots": None, "n_ctx": None, "method": None, "chat_template": None,
    "speculation": {"has_draft_model": None, "shares_cores": None, "drafter_restarts": 0},
}  # fmt: skip
"""The properties of a model that is not loaded."""


class LoadedModel:
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
        self.name, self.llm = name, llm
        self.clock = clock
        self.chat_format = ChatFormat.of(llm.tokenizer)
        self.method = method  # where a request names none; None: the default
        self.num_leases = 0  # requests that use it, from their preparation to their last output
        self.used_s = clock()
        self.mapped_bytes = _mapped_bytes(llm)
        self._lock = Lock()
        self._num_calls = 0  # of other threads, which go on when their request has ended
        self._is_over = False
        lock = lock or nullcontext()
        llm.scheduler.num_chunk = 128 if llm.shares_cores else 512
        tokens = llm.tokens_of([0])
        params = SamplingParams(logit_bias=_without_ends(llm), max_tokens=_WARM_TOKENS)
        end_s, passes = monotonic() + _WARM_S, count(1)

        def is_warm() -> bool:
            return next(passes) >= _WARM_PASSES and monotonic() >= end_s

        with lock:
            for _ in llm.stream(tokens, params, method=method, should_stop=is_warm):
                pass
        with suppress(BadOption):  # a model that has no grammars refuses them when one is asked for
            llm.check(tokens, SamplingParams(grammar=Grammar("regex", "warm")))
        self.prompt_limits = PromptLimits.of(
            llm.tokenizer, llm.num_context, parse_special=llm.parse_special
        )
        llm.scheduler.on_end = meters.ended
        llm.scheduler.most_slots = max(1, llm.scheduler.num_slots - 1)
        if llm.shares_cores:
            llm.scheduler.num_chunk_in_company = 16  # takes two to three times as long as a token
            llm.scheduler.is_crowded = lambda: intake.is_computing_long
        self.scheduler = SchedulerThread(llm.scheduler, num_queued=settings.num_queued, lock=lock)

    @property
    def is_busy(self) -> bool:
        """Somebody uses it."""
        num_there = self.scheduler.num_running + self.scheduler.num_waiting
        return self.num_leases + self._num_calls + num_there > 0

    @property
    def computes_on_all_cores(self) -> bool:
        """A forward pass of it does now, on cores that preparing requests needs, too."""
        return self.llm.shares_cores and self.llm.scheduler.has_all_cores

    def end(self) -> bool:
        """Whether nobody uses it; then nobody can from now on."""
        with self._lock:
            self._is_over = self._is_over or not self.is_busy
            return self._is_over

    def guarded(self, call: Callable[_P, _T]) -> Callable[_P, _T]:
        """A call that uses the model in another thread: the model stays in memory until it returns,
        even if the request has ended meanwhile. Raises ApiError where the model is gone."""

        def made(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with self._lock:
                if self._is_over:
                    raise unavailable(f"the model '{self.name}' was unloaded; ask again")
                self._num_calls += 1
            try:
                return call(*args, **kwargs)
            finally:
                with self._lock:
                    self._num_calls -= 1

        return made

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
        """Starts of its drafter after the first."""
        return self.llm.drafter.restarts if self.llm.drafter else 0

    def lease(self) -> ModelLease:
        """Keep it in memory until the lease is released."""
        self.num_leases += 1
        return ModelLease(self)

    def close(self, wait_s: float | None = None) -> bool:
        """End the scheduler's thread: whether it has ended by then."""
        return self.scheduler.close(wait_s)

    def num_tokens(self, text: str) -> int:
        """Of a text that is no prompt."""
        return len(self.llm.tokenizer.tokenize(text, is_templated=False))

    # --- what it is

    def props(self) -> dict[str, Any]:
        """How it is served."""
        llm = self.llm
        return {
            "total_slots": self.scheduler.num_slots,
            "n_ctx": llm.num_context,
            "default_generation_settings": {"n_ctx": llm.num_context},  # where clients look
            "method": self.method or DEFAULT_METHOD,
            "chat_template": llm.tokenizer.chat_template,
            "speculation": {
                "has_draft_model": llm.drafter is not None,
                "shares_cores": llm.shares_cores,
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


class ModelLease:
    """A request's use of a model; on the event loop only."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self._is_open = True

    def release(self) -> None:
        """The model may be unloaded, as far as this request goes. Can be called twice."""
        if self._is_open:
            self._is_open = False
            self.model.num_leases -= 1
            self.model.used_s = self.model.clock()


def _mapped_bytes(llm: LLM) -> int:
    """Bytes of weights that count as free memory, as they are mapped from a file."""
    return llm.target.traits.num_mapped_bytes if llm.shares_cores else 0


def _without_ends(llm: LLM) -> dict[int, float]:
    """A bias that keeps a completion from ending early."""
    eos = llm.tokenizer.eos
    return {eos: -float("inf")} if eos >= 0 else {}
