"""Put the server's parts together: the model, the scheduler's thread, meters."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from duodec.core.grammar import Grammar
from duodec.core.sampling import SamplingParams
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.methods.registry import DEFAULT_METHOD
from duodec.scheduler.task import Task
from duodec.server.asking import ChatWish, Wish, parse_chat, parse_completion
from duodec.server.bounds import PromptBounds
from duodec.server.calls.splitting import Reader
from duodec.server.choosing import method_for
from duodec.server.errors import ApiError, unavailable
from duodec.server.feed import Feed
from duodec.server.forms import ChatForm, CompletionForm
from duodec.server.intake import Intake
from duodec.server.meters import Meters
from duodec.server.prompt_log import PromptLog
from duodec.server.responses.form import ResponseForm
from duodec.server.responses.schemas import ResponsesBody, messages_of
from duodec.server.responses.store import Store
from duodec.server.scheduling import SchedulerThread
from duodec.server.schemas import validated
from duodec.server.settings import Settings
from duodec.server.shapes import progress
from duodec.server.speech import Speech
from duodec.server.stream import Form

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
        self._prompt_log = PromptLog(Path(settings.prompt_log)) if settings.prompt_log else None
        self.meters.gauge(
            "num_requests_preparing", "Requests on their way to the scheduler.",
            lambda: self.intake.num_preparing,
        )  # fmt: skip
        self.store = Store()
        self._bounds: PromptBounds
        self._llm: LLM | None = None
        self._scheduler: SchedulerThread | None = None
        self._is_closing = False

    # --- its life

    def start(self, llm: LLM) -> None:
        """Serve this model, once it has completed a request of our own: clients find it warm."""
        llm.num_chunk = 128 if llm.shares_cores else 512
        tokens = llm.tokens_of([0])
        params = SamplingParams(logit_bias=_without_ends(llm), max_tokens=_WARM_TOKENS)
        llm.generate([tokens], params, method=self.settings.method)
        with suppress(BadOption):  # a model that has no grammars refuses them when one is asked for
            llm.check(tokens, SamplingParams(grammar=Grammar("regex", "warm")))
        self._bounds = PromptBounds.of(
            llm.tokenizer, llm.num_context, parse_special=llm.parse_special
        )
        llm.scheduler.on_end = self.meters.ended
        if llm.shares_cores:
            llm.scheduler.is_crowded = lambda: self.intake.is_preparing_large
        thread = SchedulerThread(llm.scheduler, num_queued=self.settings.num_queued)
        self._watch(thread, llm)
        self._llm, self._scheduler = llm, thread

    def _watch(self, scheduler: SchedulerThread, llm: LLM) -> None:
        gauge, counter = self.meters.gauge, self.meters.counter
        gauge("num_requests_running", "Requests in slots.", lambda: scheduler.num_running)
        gauge("num_requests_waiting", "Requests in the queue.", lambda: scheduler.num_waiting)
        counter("target_forwards", "Forward passes.", lambda: scheduler.num_forwards)
        if (drafter := llm.drafter) is not None:
            counter("drafter_restarts", "Starts of the drafter after the first.",
                    lambda: drafter.restarts)  # fmt: skip

    @property
    def is_ready(self) -> bool:
        return self._scheduler is not None and not self._is_closing

    @property
    def state(self) -> str:
        if self._is_closing:
            return "shutting down"
        return "ok" if self._scheduler else "loading"

    @property
    def scheduler(self) -> SchedulerThread:
        """Raises ApiError while there is none."""
        if self._scheduler is None or self._is_closing:
            raise unavailable(f"the server is {self.state}; ask again in a moment")
        return self._scheduler

    @property
    def room(self) -> int:
        """Requests that may be with the scheduler or on their way to it, besides those there are.
        Raises ApiError while there is no scheduler."""
        thread = self.scheduler
        return thread.num_slots - thread.num_running + self.settings.num_queued - thread.num_waiting

    @property
    def llm(self) -> LLM:
        """Raises ApiError while there is none."""
        if self._llm is None:
            raise unavailable("the model is loading; ask again in a moment")
        return self._llm

    def drain(self) -> None:
        """Let answers in work come to their end, for as long as they are given; then end them."""
        self._is_closing = True
        self.intake.close(unavailable(_SHUTTING_DOWN))
        if self._scheduler is not None and not self._scheduler.drain(self.settings.grace_s):
            self.end_all()

    def end_all(self) -> None:
        """End what is in work, or waits."""
        if self._scheduler is not None:
            self._scheduler.end_all(unavailable(_SHUTTING_DOWN))

    def close(self, wait_s: float | None = None) -> bool:
        """End the scheduler's thread: whether it has ended by then. The model is the caller's."""
        self._is_closing = True
        return self._scheduler is None or self._scheduler.close(wait_s)

    # --- what it is

    @property
    def num_context(self) -> int | None:
        """Tokens that a text may reach; None until that is known."""
        return self._llm.num_context if self._llm else None

    def props(self) -> dict[str, Any]:
        """What is served, and with what."""
        llm, scheduler = self._llm, self._scheduler
        return {
            "model": self.settings.model,
            "state": self.state,
            "total_slots": scheduler.num_slots if scheduler else None,
            "n_ctx": self.num_context,
            "method": self.settings.method or DEFAULT_METHOD,
            "chat_template": llm.tokenizer.chat_template if llm else None,
            "speculation": {
                "has_draft_model": bool(llm and llm.drafter),
                "shares_cores": bool(llm and llm.shares_cores),
                "drafter_restarts": llm.drafter.restarts if llm and llm.drafter else 0,
            },
        }

    def slots(self) -> list[dict[str, Any]]:
        """What each slot works at; texts are nobody's business."""
        states = self._scheduler.slots if self._scheduler else []
        return [
            {
                "id": i, "is_processing": task is not None, "n_cached": num_cached,
                **(progress(task.counts) if task else {}),
            }
            for i, (task, num_cached) in enumerate(states)
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
        """A chat request on its way. Raises ApiError and what the model refuses."""
        chat = await self._chat(body)
        wish = chat.asked.wish
        form = ChatForm(wish, self.settings.model, wish.num_choices, len(chat.tokens), chat.piece)
        form.read_with(chat.reader, chat.asked.most_calls)
        return wish, form, await self._fed(chat)

    async def respond(self, body: Mapping[str, Any]) -> tuple[Wish, Form, Feed]:
        """A request of ``/v1/responses`` on its way. Raises ApiError and what the model refuses."""
        own = await self.intake.run(validated, ResponsesBody, body)
        messages = messages_of(own.input)
        if (previous := own.previous_response_id) is not None:
            messages = [*self.store.get(previous, "previous_response_id").messages, *messages]
        chat = await self._chat(own.as_chat(dict(body), messages))
        wish = chat.asked.wish

        def remember(response: dict[str, Any], message: dict[str, Any]) -> None:
            if own.store:
                self.store.add(response, [*messages, message])

        form = ResponseForm(
            own, chat.asked, self.settings.model, len(chat.tokens), chat.reader(),
            lambda text: len(chat.llm.tokenizer.tokenize(text, is_templated=False)), remember,
        )  # fmt: skip
        return wish, form, await self._fed(chat)

    async def _chat(self, body: Mapping[str, Any]) -> _Chat:
        """A chat request that is understood and fits."""
        _, llm = self.scheduler, self.llm
        self._bounds.check_number(body.get("messages"))
        speech = Speech.of(llm.tokenizer)
        asked = await self.intake.run(parse_chat, body, self.check_model, speech.dialect)
        await self.intake.run(self._bounds.check_chat, asked.messages, asked.tools)
        tokens = await self.intake.run(speech.prompt, llm, asked)
        if self._prompt_log is not None:
            await self.intake.run(self._prompt_log.write, asked.messages)
        end = speech.end_of(tokens)
        grammar = await self.intake.run(speech.grammar, asked.wanted, end)
        wish = asked.wish.constrained(grammar)
        return _Chat(llm, speech, replace(asked, wish=wish), tokens, end)

    async def _fed(self, chat: _Chat) -> Feed:
        scheduler, wish = self.scheduler, chat.asked.wish
        shown = chat.speech.shown(chat.asked.tools)
        tasks = await self._tasks(chat.llm, wish, chat.tokens, shown)
        return self._feed(scheduler, tasks, wish)

    async def complete(self, body: Mapping[str, Any]) -> tuple[Wish, Form, Feed]:
        """A text request on its way. Raises ApiError and what the model refuses."""
        scheduler, llm = self.scheduler, self.llm
        asked = await self.intake.run(parse_completion, body, self.check_model)
        for prompt in asked.prompts:
            await self.intake.run(self._bounds.check_text, prompt)
        prompts = [await self.intake.run(llm.tokens_of, prompt) for prompt in asked.prompts]
        tasks = [task for tokens in prompts for task in await self._tasks(llm, asked.wish, tokens)]
        num_prompt = sum(map(len, prompts))
        form = CompletionForm(
            asked.wish, self.settings.model, len(tasks), num_prompt, llm.tokenizer.piece
        )
        if asked.is_echoed:
            texts = [await self.intake.run(_text, llm, prompt) for prompt in asked.prompts]
            form.begin_with([text for text in texts for _ in range(asked.wish.num_choices)])
        return asked.wish, form, self._feed(scheduler, tasks, asked.wish)

    def _feed(self, scheduler: SchedulerThread, tasks: Sequence[Task], wish: Wish) -> Feed:
        interval_s = self.settings.interval_s if wish.is_streamed else inf
        return Feed(scheduler, tasks, self.settings.timeout_s, interval_s, self.intake.begin_s)

    async def _tasks(
        self, llm: LLM, wish: Wish, tokens: list[int], shown: Collection[int] = ()
    ) -> list[Task]:
        """The requests of a wish; a new grammar that takes long is compiled where only others of
        its kind wait."""
        grammar = wish.sampling.grammar
        is_quick = (
            grammar is None
            or llm.is_compiled(grammar)
            or await self.intake.glance(llm.try_grammar.is_quick, grammar)
        )
        run = self.intake.run if is_quick else self.intake.compile
        return await run(self._made, llm, wish, tokens, shown)

    def _made(self, llm: LLM, wish: Wish, tokens: list[int], shown: Collection[int]) -> list[Task]:
        method = method_for(llm, wish.method or self.settings.method, wish.max_draft)
        params = replace(
            wish.sampling, max_tokens=wish.max_tokens, stop=wish.stop, logprobs=wish.num_logprobs
        )
        return [
            llm.task(
                tokens, params, method=method, say=lambda output: None, choice=choice, shown=shown
            )
            for choice in range(wish.num_choices)
        ]


@dataclass(frozen=True)
class _Chat:
    """A chat request on its way, whatever form its response has."""

    llm: LLM
    speech: Speech
    asked: ChatWish
    tokens: list[int]
    prompt_end: str

    @property
    def piece(self) -> Callable[[int], bytes]:
        return self.llm.tokenizer.piece

    def reader(self) -> Reader | None:
        """For one of the choices."""
        return self.speech.dialect.reader(self.asked.tools, self.prompt_end)


def _text(llm: LLM, prompt: str | list[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(map(llm.tokenizer.piece, prompt)).decode("utf-8", "replace")


def _without_ends(llm: LLM) -> dict[int, float]:
    """A bias that keeps an answer from ending early."""
    eos = llm.tokenizer.eos
    return {eos: -float("inf")} if eos >= 0 else {}
