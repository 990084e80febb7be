"""Put the server's parts together: models, the preparation of requests, meters."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from duodec.llm import LLM
from duodec.scheduler.task import Task
from duodec.server.asking import ChatWish, Wish, parse_chat, parse_completion
from duodec.server.calls.splitting import Reader
from duodec.server.choosing import method_for
from duodec.server.errors import ApiError, unavailable
from duodec.server.feed import Feed
from duodec.server.forms import ChatForm, CompletionForm
from duodec.server.intake import Intake
from duodec.server.meters import Meters
from duodec.server.models import Models, Source
from duodec.server.prompt_log import PromptLog
from duodec.server.responses.form import ResponseForm
from duodec.server.responses.schemas import ResponsesBody, messages_of
from duodec.server.responses.store import Store, continued, conversation
from duodec.server.schemas import ChatBody, validated
from duodec.server.served import UNLOADED, Hold, Served
from duodec.server.settings import Settings
from duodec.server.speech import Speech
from duodec.server.stream import Form
from duodec.server.turns import Turns

_P = ParamSpec("_P")
_T = TypeVar("_T")
_SHUTTING_DOWN = "the server is shutting down; ask again in a moment"


class Service:
    """Models for many clients, the first of them for who names none. It is loaded by `start`; until
    then everything but the list of models is refused with 503."""

    def __init__(self, settings: Settings, sources: Mapping[str, Source] | None = None) -> None:
        self.settings = settings
        self.meters = Meters(settings.metrics_prefix)
        self.created = int(time.time())
        self.intake = Intake(settings)
        self._prompt_log = PromptLog(Path(settings.prompt_log)) if settings.prompt_log else None
        self.store = Store()
        sources = sources or {settings.model: Source(_never, method=settings.method)}
        self.models = Models(sources, settings.num_models, self._served)
        self._turns = Turns() if len(sources) > 1 else None
        self._is_started = self._is_closing = False
        self._watch()

    # --- its life

    def start(self, llm: LLM | None = None) -> None:
        """Load the first model, or serve this one in its place. Raises what is wrong with it."""
        self.models.load_now(self.settings.model, llm)
        self._is_started = True

    def _served(self, name: str, llm: LLM, method: str | None) -> Served:
        return Served(name, llm, method, self.settings, self.intake, self.meters, self._turns)

    def _watch(self) -> None:
        gauge, counter, models = self.meters.gauge, self.meters.counter, self.models
        gauge("num_requests_preparing", "Requests on their way to the scheduler.",
              lambda: self.intake.num_preparing)  # fmt: skip
        gauge("num_requests_running", "Requests in slots.",
              lambda: sum(served.scheduler.num_running for served in models.loaded))  # fmt: skip
        gauge("num_requests_waiting", "Requests in the queue.",
              lambda: sum(served.scheduler.num_waiting for served in models.loaded))  # fmt: skip
        gauge("num_models_loaded", "Models in memory.", lambda: len(models.loaded))
        counter("target_forwards", "Forward passes.", lambda: models.num_forwards)
        counter("drafter_restarts", "Starts of a drafter after its first.",
                lambda: models.num_restarts)  # fmt: skip

    @property
    def is_ready(self) -> bool:
        return self._is_started and not self._is_closing

    @property
    def state(self) -> str:
        if self._is_closing:
            return "shutting down"
        return "ok" if self._is_started else "loading"

    def check_ready(self) -> None:
        """Raises ApiError before `start` has ended, and at the end."""
        if not self.is_ready:
            raise unavailable(f"the server is {self.state}; ask again in a moment")

    @property
    def room(self) -> int:
        """Requests that may be with a scheduler or on their way to it, besides those there are.
        Raises ApiError while nobody is served."""
        self.check_ready()
        threads = [served.scheduler for served in self.models.loaded]
        num_there = sum(thread.num_taken for thread in threads)
        num_slots = self.settings.num_slots * max(1, len(threads))
        return num_slots + self.settings.num_queued - num_there

    def drain(self) -> None:
        """Let answers in work come to their end, for as long as they are given; then end them."""
        self._is_closing = True
        self.intake.close(unavailable(_SHUTTING_DOWN))
        end_s = time.monotonic() + self.settings.grace_s
        threads = [served.scheduler for served in self.models.loaded]
        if not all(thread.drain(max(0.0, end_s - time.monotonic())) for thread in threads):
            self.end_all()

    def end_all(self) -> None:
        """End what is in work, or waits."""
        for served in self.models.loaded:
            served.scheduler.end_all(unavailable(_SHUTTING_DOWN))

    def close(self, wait_s: float | None = None) -> bool:
        """End the schedulers' threads: whether they have ended by then."""
        self._is_closing = True
        ended = [served.close(wait_s) for served in self.models.loaded]
        return all(ended)

    # --- what it is

    def described(self, name: str) -> dict[str, Any]:
        """A model of the list of models."""
        served = self.models.get(name)
        length = served.llm.num_context if served else None
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "duodec",
            "status": {"value": self.models.state(name)},
            "max_model_len": length,
            "meta": {"n_ctx": length},
        }

    def props(self, name: str | None) -> dict[str, Any]:
        """What is served, and with what. Raises ApiError for a model that does not exist."""
        name = self.named(name)
        served = self.models.get(name)
        return {"model": name, "state": self.state, **(served.props() if served else UNLOADED)}

    def slots(self, name: str | None) -> list[dict[str, Any]]:
        """What each slot of a model works at. Raises ApiError for one that does not exist."""
        served = self.models.get(self.named(name))
        return served.slots() if served else []

    # --- requests

    def named(self, name: str | None) -> str:
        """The model of a request; one that names none means the first. Raises ApiError."""
        if name is None:
            return self.settings.model
        if name not in self.models.names:
            known = ", ".join(f"'{own}'" for own in self.models.names)
            raise ApiError(
                404, f"the model '{name[:200]}' does not exist; this server has {known}",
                param="model", code="model_not_found",
            )  # fmt: skip
        return name

    @asynccontextmanager
    async def _held(self, body: Mapping[str, Any]) -> AsyncIterator[Hold]:
        """The model that a body names, loaded; a request that fails holds it no longer."""
        self.check_ready()
        name = body.get("model")
        hold = await self.models.hold(self.named(name if isinstance(name, str) else None))
        try:
            yield hold
        except BaseException:
            hold.release()
            raise

    async def chat(self, body: Mapping[str, Any]) -> tuple[Wish, Form, Feed]:
        """A chat request on its way. Raises ApiError and what the model refuses."""
        if self._must_wait(body):
            await self.intake.run(validated, ChatBody, body)  # what is refused waits for no model
        async with self._held(body) as hold:
            chat = await self._chat(hold.served, body)
            wish = chat.asked.wish
            form = ChatForm(wish, hold.served.name, wish.num_choices, len(chat.tokens), chat.piece)
            form.read_with(chat.reader, chat.asked.most_calls)
            return wish, form, await self._fed(hold, chat)

    def _must_wait(self, body: Mapping[str, Any]) -> bool:
        """For its model, which is not loaded."""
        name = body.get("model")
        return isinstance(name, str) and self.models.get(self.named(name)) is None

    async def _run(
        self, served: Served, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """A part of the request in work that uses a model, in a thread."""
        return await self.intake.run(served.guarded(call), *args, **kwargs)

    async def respond(self, body: Mapping[str, Any]) -> tuple[Wish, Form, Feed]:
        """A request of ``/v1/responses`` on its way. Raises ApiError and what the model refuses."""
        own = await self.intake.run(validated, ResponsesBody, body)
        messages = messages_of(own.input)
        if (previous := own.previous_response_id) is not None:
            stored = self.store.get(previous, "previous_response_id")
            messages = [*await self.intake.run(stored.messages), *messages]
        begun = await self.intake.run(conversation, messages) if own.store else b""

        def remember(response: dict[str, Any], message: dict[str, Any]) -> None:
            if own.store:
                self.store.add(response, continued(begun, message))

        as_chat = own.as_chat(dict(body), messages)
        if self._must_wait(body):
            await self.intake.run(validated, ChatBody, as_chat)
        async with self._held(body) as hold:
            chat = await self._chat(hold.served, as_chat)
            form = ResponseForm(
                own, chat.asked, hold.served.name, len(chat.tokens), chat.reader(),
                lambda text: len(chat.llm.tokenizer.tokenize(text, is_templated=False)), remember,
            )  # fmt: skip
            return chat.asked.wish, form, await self._fed(hold, chat)

    async def _chat(self, served: Served, body: Mapping[str, Any]) -> _Chat:
        """A chat request that is understood and fits."""
        llm, bounds = served.llm, served.bounds
        bounds.check_number(body.get("messages"))
        speech = Speech.of(llm.tokenizer)
        asked = await self.intake.run(parse_chat, body, speech.dialect)
        await self._run(served, bounds.check_chat, asked.messages, asked.tools)
        tokens = await self._run(served, speech.prompt, llm, asked, bounds.check_rendered)
        if self._prompt_log is not None:
            await self.intake.run(self._prompt_log.write, asked.messages)
        end = speech.end_of(tokens)
        grammar = await self._run(served, speech.grammar, asked.wanted, end)
        wish = asked.wish.constrained(grammar)
        return _Chat(llm, speech, replace(asked, wish=wish), tokens, end)

    async def _fed(self, hold: Hold, chat: _Chat) -> Feed:
        wish, shown = chat.asked.wish, chat.speech.shown(chat.asked.tools)
        return self._feed(hold, await self._tasks(hold.served, wish, chat.tokens, shown), wish)

    async def complete(self, body: Mapping[str, Any]) -> tuple[Wish, Form, Feed]:
        """A text request on its way. Raises ApiError and what the model refuses."""
        asked = await self.intake.run(parse_completion, body)
        wish = asked.wish
        async with self._held(body) as hold:
            served, llm = hold.served, hold.served.llm
            for prompt in asked.prompts:
                await self._run(served, served.bounds.check_text, prompt)
            prompts = [await self._run(served, llm.tokens_of, prompt) for prompt in asked.prompts]
            tasks = [task for tokens in prompts for task in await self._tasks(served, wish, tokens)]
            num_prompt = sum(map(len, prompts))
            form = CompletionForm(wish, served.name, len(tasks), num_prompt, llm.tokenizer.piece)
            if asked.is_echoed:
                texts = [await self._run(served, _text, llm, prompt) for prompt in asked.prompts]
                form.begin_with([text for text in texts for _ in range(wish.num_choices)])
            return wish, form, self._feed(hold, tasks, wish)

    def _feed(self, hold: Hold, tasks: Sequence[Task], wish: Wish) -> Feed:
        """The model is held until the response has its last word, read or not."""
        interval_s = self.settings.interval_s if wish.is_streamed else inf
        return Feed(
            hold.served.scheduler, tasks, self.settings.timeout_s, interval_s,
            self.intake.begin_s, hold.release,
        )  # fmt: skip

    async def _tasks(
        self, served: Served, wish: Wish, tokens: list[int], shown: Collection[int] = ()
    ) -> list[Task]:
        """The requests of a wish; a new grammar that takes long is compiled where only others of
        its kind wait."""
        grammar, llm = wish.sampling.grammar, served.llm
        is_quick = (
            grammar is None
            or llm.is_compiled(grammar)
            or await self.intake.glance(served.guarded(llm.is_compiled_soon), grammar)
        )
        run = self.intake.run if is_quick else self.intake.compile
        return await run(served.guarded(_made), served, wish, tokens, shown)


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
        is_certain = bool(self.asked.wanted.called)
        return self.speech.dialect.reader(self.asked.tools, self.prompt_end, is_certain=is_certain)


def _made(served: Served, wish: Wish, tokens: list[int], shown: Collection[int]) -> list[Task]:
    """The tasks of a wish, one a choice."""
    llm = served.llm
    method = method_for(llm, wish.method or served.method, wish.max_draft)
    params = replace(
        wish.sampling, max_tokens=wish.max_tokens, stop=wish.stop, logprobs=wish.num_logprobs
    )
    return [
        llm.task(tokens, params, method=method, say=lambda output: None, choice=choice, shown=shown)
        for choice in range(wish.num_choices)
    ]


def _text(llm: LLM, prompt: str | list[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(map(llm.tokenizer.piece, prompt)).decode("utf-8", "replace")


def _never(taken: int) -> NoReturn:
    raise AssertionError("the model was given, and is never loaded again")
