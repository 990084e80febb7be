"""The server's parts put together: models, pool, meters; what is loaded and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

from duodec.backends.grammar_trial import GrammarTrial
from duodec.core.grammar import Grammar
from duodec.core.protocols import Target
from duodec.core.sampling import SamplingParams
from duodec.decoding.methods import DEFAULT_METHOD
from duodec.engine import Engine
from duodec.errors import BadOption
from duodec.server.asking import ChatWish, Wish, parse_chat, parse_completion
from duodec.server.bounds import PromptBounds
from duodec.server.choosing import keep_for, method_for
from duodec.server.errors import ApiError, unavailable
from duodec.server.feed import Feed
from duodec.server.forms import ChatForm, CompletionForm, Form
from duodec.server.intake import Intake
from duodec.server.jobs import Ask, Job
from duodec.server.meters import Meters
from duodec.server.pool import Pool
from duodec.server.settings import Settings
from duodec.server.shapes import progress

_WARM_TOKENS = 16
_SHUTTING_DOWN = "the server is shutting down; ask again in a moment"


class Service:
    """One model for many clients. Loading is `start`; until then everything but the list of
    models is refused with 503."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meters = Meters(settings.metrics_prefix)
        self.created = int(time.time())
        self.intake = Intake(settings)
        self.meters.watch(
            "num_requests_preparing", "Requests on their way to the scheduler.",
            lambda: self.intake.num_preparing,
        )  # fmt: skip
        self._trial = GrammarTrial(settings.grammar_s, settings.grammar_bytes)
        self._bounds: PromptBounds
        self._engine: Engine | None = None
        self._pool: Pool | None = None
        self._is_closing = False

    # --- its life

    def start(
        self,
        engine: Engine,
        target: Target,
        trees: Target | None = None,
        lone: Target | None = None,
        *,
        prepare: Callable[[bool], None] | None = None,
        num_slots: int | None = None,
    ) -> None:
        """Serve this engine, whose queries ``target`` computes (see `Pool` for the others), once it
        has answered one of our own: clients find a warm one."""
        pool = Pool(
            engine,
            target,
            trees,
            lone,
            num_slots=num_slots or self.settings.num_slots,
            num_queued=self.settings.num_queued,
            on_end=self.meters.ended,
            prepare=prepare,
            num_chunk=128 if engine.shares_cores else 512,
        )
        tokens = engine.tokens_of([0])
        sampling = SamplingParams(logit_bias=_without_ends(engine))
        pool.warm_up(Job(Ask(tuple(tokens), sampling, _WARM_TOKENS, method=self.settings.method),
                         lambda word: None, engine.clock))  # fmt: skip
        with suppress(BadOption):  # a model that has no grammars refuses them when one is asked for
            engine.check(tokens, SamplingParams(grammar=Grammar("regex", "warm")))
        self._bounds = PromptBounds.of(engine.tokenizer, engine.num_context)
        self._watch(pool, engine)
        self._engine, self._pool = engine, pool

    def _watch(self, pool: Pool, engine: Engine) -> None:
        watch = self.meters.watch
        watch("num_requests_running", "Answers in work.", lambda: pool.num_running)
        watch("num_requests_waiting", "Answers that wait for a slot.", lambda: pool.num_waiting)
        watch("target_forwards", "Forwards of the target.", lambda: pool.num_forwards)
        if (drafter := engine.drafter) is not None:
            watch("drafter_restarts", "Starts of the drafter after the first.",
                  lambda: drafter.restarts)  # fmt: skip

    @property
    def is_ready(self) -> bool:
        return self._pool is not None and not self._is_closing

    @property
    def state(self) -> str:
        if self._is_closing:
            return "shutting down"
        return "ok" if self._pool else "loading"

    @property
    def pool(self) -> Pool:
        """Raises ApiError while there is none."""
        if self._pool is None or self._is_closing:
            raise unavailable(f"the server is {self.state}; ask again in a moment")
        return self._pool

    @property
    def room(self) -> int:
        """Requests that may be with the scheduler or on their way to it, besides those there are.
        Raises ApiError while there is no scheduler."""
        pool = self.pool
        return pool.num_slots - pool.num_running + self.settings.num_queued - pool.num_waiting

    @property
    def engine(self) -> Engine:
        """Raises ApiError while there is none."""
        if self._engine is None:
            raise unavailable("the model is loading; ask again in a moment")
        return self._engine

    def drain(self) -> None:
        """Let answers in work come to their end, for as long as they are given; then end them."""
        self._is_closing = True
        self.intake.close(unavailable(_SHUTTING_DOWN))
        if self._pool is not None and not self._pool.drain(self.settings.grace_s):
            self.end_all()

    def end_all(self) -> None:
        """End what is in work, or waits."""
        if self._pool is not None:
            self._pool.end_all(unavailable(_SHUTTING_DOWN))

    def close(self) -> None:
        """End the pool; the engine is the caller's."""
        self._is_closing = True
        if self._pool is not None:
            self._pool.close()

    # --- what it is

    @property
    def num_context(self) -> int | None:
        """Tokens that a text may reach; None until that is known."""
        return self._engine.num_context if self._engine else None

    def props(self) -> dict[str, Any]:
        """What is served, and with what."""
        engine, pool = self._engine, self._pool
        return {
            "model": self.settings.model,
            "state": self.state,
            "total_slots": pool.num_slots if pool else None,
            "n_ctx": self.num_context,
            "method": self.settings.method or DEFAULT_METHOD,
            "chat_template": engine.tokenizer.chat_template if engine else None,
            "speculation": {
                "has_draft_model": bool(engine and engine.drafter),
                "shares_cores": bool(engine and engine.shares_cores),
                "drafter_restarts": engine.drafter.restarts if engine and engine.drafter else 0,
            },
        }

    def slots(self) -> list[dict[str, Any]]:
        """What each slot works at; texts are nobody's business."""
        states = self._pool.states if self._pool else []
        return [
            {
                "id": i, "is_processing": job is not None, "n_cached": num_cached,
                **(progress(job.counts) if job else {}),
            }
            for i, (job, num_cached) in enumerate(states)
        ]  # fmt: skip

    # --- requests

    def check_model(self, name: str | None) -> None:
        """A request without a model means the one there is."""
        if name is not None and name != self.settings.model:
            raise ApiError(
                404, f"the model '{name[:200]}' does not exist; this server has "
                f"'{self.settings.model}'", param="model", code="model_not_found",
            )  # fmt: skip

    async def chat(self, body: Mapping[str, Any]) -> tuple[Wish, Form, Feed]:
        """A chat request on its way. Raises ApiError and what the engine raises."""
        pool, engine = self.pool, self.engine
        template = engine.tokenizer.chat_template
        asked = await self.intake.run(parse_chat, body, self.check_model, template)
        await self.intake.run(self._bounds.check_chat, asked.messages, asked.tools)
        tokens = await self.intake.run(_chat_tokens, engine, asked)
        asks = await self._asks(engine, asked.wish, tokens)
        form = ChatForm(
            asked.wish, self.settings.model, len(asks), len(tokens), engine.tokenizer.piece
        )
        if asked.tools:
            form.watch_for_calls()
        return asked.wish, form, self._feed(pool, asks, asked.wish)

    async def complete(self, body: Mapping[str, Any]) -> tuple[Wish, Form, Feed]:
        """A text request on its way. Raises ApiError and what the engine raises."""
        pool, engine = self.pool, self.engine
        asked = await self.intake.run(parse_completion, body, self.check_model)
        for prompt in asked.prompts:
            await self.intake.run(self._bounds.check_text, prompt)
        prompts = [await self.intake.run(engine.tokens_of, prompt) for prompt in asked.prompts]
        asks = [ask for tokens in prompts for ask in await self._asks(engine, asked.wish, tokens)]
        num_prompt = sum(map(len, prompts))
        form = CompletionForm(
            asked.wish, self.settings.model, len(asks), num_prompt, engine.tokenizer.piece
        )
        if asked.is_echoed:
            texts = [await self.intake.run(_text, engine, prompt) for prompt in asked.prompts]
            form.begin_with([text for text in texts for _ in range(asked.wish.num_choices)])
        return asked.wish, form, self._feed(pool, asks, asked.wish)

    def _feed(self, pool: Pool, asks: Sequence[Ask], wish: Wish) -> Feed:
        interval_s = self.settings.interval_s if wish.is_streamed else inf
        return Feed(pool, asks, self.settings.timeout_s, interval_s, self.intake.begin_s)

    async def _asks(self, engine: Engine, wish: Wish, tokens: list[int]) -> list[Ask]:
        method = wish.method or self.settings.method
        if wish.sampling.grammar is not None:
            await self.intake.compile(self._trial, wish.sampling.grammar)
            await self.intake.compile(engine.check, tokens, wish.sampling, method)
        else:
            await self.intake.run(engine.check, tokens, wish.sampling, method)
        keep_for(method_for(engine, method, wish.max_draft), [], wish.num_logprobs)
        first = Ask(
            tuple(tokens), wish.sampling, wish.max_tokens, wish.stop, 0, method, wish.max_draft,
            wish.num_logprobs,
        )  # fmt: skip
        return [replace(first, choice=choice) for choice in range(wish.num_choices)]


def _chat_tokens(engine: Engine, asked: ChatWish) -> list[int]:
    return engine.tokens_of(asked.messages, tools=asked.tools)


def _text(engine: Engine, prompt: str | list[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(map(engine.tokenizer.piece, prompt)).decode("utf-8", "replace")


def _without_ends(engine: Engine) -> dict[int, float]:
    """A bias that keeps an answer from ending early."""
    eos = engine.tokenizer.eos
    return {eos: -float("inf")} if eos >= 0 else {}
