"""Put the server's parts together: models, the preparation of requests, meters."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from duodec.chat.pictures import NoPicture
from duodec.chat.template import Message
from duodec.core.sampling.sampler import SamplingParams
from duodec.llm import LLM
from duodec.machine.busy import LoadMeter
from duodec.models.metadata import Use
from duodec.scheduler.outputs import Output
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.server.api.anthropic.message_bodies import CountTokensBody, MessagesBody
from duodec.server.api.anthropic.messages import MessageWriter
from duodec.server.api.bodies import Body, Conversation, Tool
from duodec.server.api.fields import Object, validated
from duodec.server.api.formats.text import expected_of, text_grammar
from duodec.server.api.ollama import listing
from duodec.server.api.ollama.bodies import GenerateBody, OllamaBody, OllamaChatBody, ShowBody
from duodec.server.api.ollama.listing import tagged
from duodec.server.api.ollama.responses import (
    OllamaWriter,
    Said,
    as_message,
    as_response,
    head,
)
from duodec.server.api.openai.completion_bodies import ChatBody, CompletionBody
from duodec.server.api.openai.completions import ChatWriter, TextWriter
from duodec.server.api.openai.response_bodies import ResponsesBody
from duodec.server.api.openai.response_store import Store, Turn
from duodec.server.api.openai.responses import ResponseWriter
from duodec.server.api.parts import Parts
from duodec.server.api.tokenizing import DetokenizeBody, TokenizeBody
from duodec.server.embedding import EmbeddingRequests
from duodec.server.errors import ApiError, bad_field, unavailable
from duodec.server.http.intake import Intake
from duodec.server.http.json_limits import TooMuch
from duodec.server.http.owners import owner_of
from duodec.server.http.remote_images import fetched, has_remote
from duodec.server.http.streams import Prepared
from duodec.server.metrics import Meters
from duodec.server.models.embedder import LoadedEmbedder
from duodec.server.models.loaded import UNLOADED, LoadedModel
from duodec.server.models.output_collector import OutputCollector
from duodec.server.models.registry import Engine, Models, Source
from duodec.server.models.scheduler_thread import FairLock
from duodec.server.models.served import ModelLease, Served, as_kind, other_use
from duodec.server.prompt_log import PromptLog
from duodec.server.settings import Settings

_B = TypeVar("_B", bound=Object)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_M = TypeVar("_M", bound=Served)
_STAY_SHARE = 0.25  # of a request's time: for so long it may wait for another's model
_SHUTTING_DOWN = "the server is shutting down; ask again in a moment"


class Service:
    """Models for many clients. Requests that name none have the first one for what they want. The
    first of all is loaded by `start`; until then everything but the list of models is refused with
    503."""

    def __init__(self, settings: Settings, sources: Mapping[str, Source] | None = None) -> None:
        self.settings = settings
        self.meters = Meters(settings.metrics_prefix)
        self.created = int(time.time())
        self.intake = Intake(
            settings, lambda: any(model.computes_on_all_cores for model in self.models.loaded)
        )
        self._prompt_log = PromptLog(Path(settings.prompt_log)) if settings.prompt_log else None
        self.store = Store()
        self._load = LoadMeter()
        sources = sources or {settings.model: Source(_never, method=settings.method)}
        self.models = Models(
            sources, settings.num_models, self._started,
            most_stay_s=_STAY_SHARE * settings.timeout_s,
            most_waiting=settings.num_slots + settings.num_queued // 2,
        )  # fmt: skip
        self._lock = FairLock() if len(sources) > 1 else None
        self._is_started = self._is_closing = False
        self.rows = EmbeddingRequests(
            self.intake, partial(self._lease_of, LoadedEmbedder), settings.timeout_s
        )
        self._watch()

    # --- its life

    def start(self, llm: Engine | None = None) -> None:
        """Load the first model, or serve this one in its place. Raises what is wrong with it."""
        self.models.load_now(self.settings.model, llm)
        self._is_started = True

    def _started(self, name: str, engine: Engine, method: str | None) -> Served:
        if isinstance(engine, LLM):
            return LoadedModel(
                name, engine, method, self.settings, self.intake, self.meters, self._lock
            )

        def is_crowded() -> bool:
            others = (model for model in self.models.loaded if model.name != name)
            return any(model.shares_cores and model.scheduler.num_running for model in others)

        return LoadedEmbedder(name, engine, self.settings, self.meters, self._lock, is_crowded)

    def _watch(self) -> None:
        gauge, counter, models = self.meters.gauge, self.meters.counter, self.models
        gauge("num_requests_preparing", "Requests on their way to the scheduler.",
              lambda: self.intake.num_preparing)  # fmt: skip
        gauge("num_requests_running", "Requests in slots.",
              lambda: sum(model.scheduler.num_running for model in models.loaded))  # fmt: skip
        gauge("num_requests_waiting", "Requests in the queue.",
              lambda: sum(model.scheduler.num_waiting for model in models.loaded))  # fmt: skip
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
    def num_free(self) -> int:
        """Requests that may be with a scheduler or on their way to it, besides those there are.
        Raises ApiError while no model is loaded."""
        self.check_ready()
        threads = [model.scheduler for model in self.models.loaded]
        num_there = sum(thread.num_taken for thread in threads)
        num_slots = self.settings.num_slots * max(1, len(threads))
        return num_slots + self.settings.num_queued - num_there

    @property
    def num_open(self) -> int:
        """Requests that are decoded, or wait for it."""
        threads = [model.scheduler for model in self.models.loaded]
        return sum(thread.num_running + thread.num_waiting for thread in threads)

    def drain(self) -> None:
        """Let completions come to their end, for as long as they are given; then end them."""
        self._is_closing = True
        self.intake.close(unavailable(_SHUTTING_DOWN))
        end_s = time.monotonic() + self.settings.grace_s
        threads = [model.scheduler for model in self.models.loaded]
        if not all(thread.drain(max(0.0, end_s - time.monotonic())) for thread in threads):
            self.end_all()

    def end_all(self) -> None:
        """End what is in work, or waits."""
        for model in self.models.loaded:
            model.scheduler.end_all(unavailable(_SHUTTING_DOWN))

    def close(self, wait_s: float | None = None) -> bool:
        """End the schedulers' threads: whether they have ended by then."""
        self._is_closing = True
        ended = [model.close(wait_s) for model in self.models.loaded]
        return all(ended)

    # --- what it is

    def described(self, name: str) -> dict[str, Any]:
        """A model of the list of models, for OpenAI's clients, vLLM's and Anthropic's."""
        model = self.models.get(name)
        length = model.num_context if model else None
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": self.created,
            "created_at": datetime.fromtimestamp(self.created, timezone.utc).isoformat(),
            "owned_by": "duodec",
            "status": {"value": self.models.state(name)},
            "capabilities": model.capabilities if model else None,
            "max_model_len": length,
            "meta": {"n_ctx": length},
        }

    def props(self, name: str | None) -> dict[str, Any]:
        """Which model is served, and how. Raises ApiError for a model that does not exist."""
        name = self.named(name)
        model = self.models.get(name)
        found = model.props() if model else UNLOADED
        busy = round(self._load.look(), 2)  # of other programs, since somebody last asked
        return {"model": name, "state": self.state, "busy_cores": busy, **found}

    def slots(self, name: str | None, holder: str | None) -> list[dict[str, Any]]:
        """What each slot of a model works at, as far as it is this holder's to know. Raises
        ApiError for a model that does not exist."""
        model = self.models.get(self.named(name))
        return model.slots(holder) if model else []

    # --- requests

    def named(self, name: str | None) -> str:
        """The model of this name; without one, the first. Raises ApiError."""
        if name is None:
            return self.settings.model
        if (found := self.models.find(name)) is None:
            known = ", ".join(f"'{own}'" for own in self.models.names)
            raise ApiError(
                404, f"the model '{name[:200]}' does not exist; this server has {known}",
                param="model", code="model_not_found",
            )  # fmt: skip
        return found

    def serving(self, name: str | None) -> str:
        """The model that serves a request for this one: where a server has one model, clients may
        call it what they like. Raises ApiError."""
        is_any = len(self.models.names) == 1 and not self.settings.strict_model
        return self.settings.model if is_any else self.named(name)

    async def chat(self, body: Mapping[str, Any], holder: str) -> Prepared:
        """A request of ``/v1/chat/completions``. Raises ApiError and what the model refuses."""
        chat = await self._validated(ChatBody, body, "messages")
        async with self._leased(chat.model) as lease:
            scheduled, parts = await self._scheduled_chat(lease.model, chat, chat.shown, holder)
            prompts, piece = _prompts(scheduled), self._piece(lease)
            writer = ChatWriter(chat, lease.model.name, prompts, piece, parts)
            return writer, self._collector(lease, scheduled, chat)

    async def respond(self, body: Mapping[str, Any], holder: str) -> Prepared:
        """A request of ``/v1/responses``, which goes on from its holder's responses only. Raises
        ApiError and what the model refuses."""
        own = await self._validated(ResponsesBody, body, "input")
        earlier = self._earlier(holder, own.previous_response_id)
        begun = await self.intake.run(self._begun, own.shown, earlier)

        def remember(response: dict[str, Any], message: Message) -> None:
            if own.store:
                with suppress(TooMuch):  # nobody could go on from it
                    self.store.add(holder, response, Turn.of([message], begun))

        async with self._leased(own.model) as lease:
            before = await self.intake.run(earlier.read) if earlier else []
            messages = [*own.system, *before, *own.shown]
            scheduled, (parts,) = await self._scheduled_chat(lease.model, own, messages, holder)
            writer = ResponseWriter(
                own, lease.model.name, len(scheduled[0].request.prompt), parts, self._piece(lease),
                lease.model.num_tokens, remember,
            )  # fmt: skip
            return writer, self._collector(lease, scheduled, own)

    async def message(self, body: Mapping[str, Any], holder: str) -> Prepared:
        """A request of ``/v1/messages``. Raises ApiError and what the model refuses."""
        own = await self._validated(MessagesBody, body, "messages")
        async with self._leased(own.model) as lease:
            messages = [*own.preamble, *own.shown]
            scheduled, (parts,) = await self._scheduled_chat(lease.model, own, messages, holder)
            num_prompt_tokens = len(scheduled[0].request.prompt)
            writer = MessageWriter(own, lease.model.name, num_prompt_tokens, parts)
            return writer, self._collector(lease, scheduled, own)

    async def complete(self, body: Mapping[str, Any], holder: str) -> Prepared:
        """A request of ``/v1/completions``. Raises ApiError and what the model refuses."""
        own = await self._validated(CompletionBody, body, "prompt")
        params = await self.intake.run(_params, own)
        async with self._leased(own.model) as lease:
            model, llm = lease.model, lease.model.llm
            for prompt in own.prompt:
                await self._run(model, model.prompt_limits.check_text, prompt)
            scheduled: list[ScheduledRequest] = []
            for prompt in own.prompt:
                tokens = await self._run(model, llm.tokens_of, prompt)
                scheduled += await self._scheduled(model, own, params, tokens, holder)
            parts = [Parts(None, 0) for _ in scheduled]
            prompts, piece = _prompts(scheduled), self._piece(lease)
            writer = TextWriter(own, model.name, prompts, piece, parts)
            if own.echo:
                texts = [await self._run(model, _text, llm, prompt) for prompt in own.prompt]
                writer.begin_with([text for text in texts for _ in range(own.n)])
            return writer, self._collector(lease, scheduled, own)

    # --- Ollama's requests

    async def converse(self, body: Mapping[str, Any], holder: str) -> Prepared | dict[str, Any]:
        """A request of ``/api/chat``. Raises ApiError and what the model refuses."""
        own = await self._validated(OllamaChatBody, body, "messages")
        return await self._for_ollama(own, holder, as_message)

    async def generate(self, body: Mapping[str, Any], holder: str) -> Prepared | dict[str, Any]:
        """A request of ``/api/generate``. Raises ApiError and what the model refuses."""
        own = await self._validated(GenerateBody, body, "prompt")
        return await self._for_ollama(own, holder, as_response)

    async def _for_ollama(
        self, own: OllamaBody, holder: str, said: Said
    ) -> Prepared | dict[str, Any]:
        async with self._leased(own.model) as lease:
            model, llm, name = lease.model, lease.model.llm, tagged(lease.model.name)
            own.check_context(llm.loaded.num_context)
            if own.is_empty:
                lease.release()
                return {**head(name), **said("", "", ()), "done": True, "done_reason": "load"}
            text = own.text(has_template=llm.loaded.tokenizer.chat_template is not None)
            if text is None:
                scheduled, (parts,) = await self._scheduled_chat(model, own, own.shown, holder)
            else:
                await self._run(model, model.prompt_limits.check_text, text)
                tokens = await self._run(model, llm.tokens_of, text)
                params = await self.intake.run(_params, own)
                scheduled = await self._scheduled(model, own, params, tokens, holder)
                parts = Parts(None, 0)
            num_tokens = len(scheduled[0].request.prompt)
            writer = OllamaWriter(own, name, num_tokens, parts, self._piece(lease), said)
            return writer, self._collector(lease, scheduled, own)

    async def tags(self) -> dict[str, Any]:
        """All models, as Ollama lists them."""
        models = self.models
        paths = [models.path(name) for name in models.names]
        return {"models": [
            await self.intake.run(listing.listed, name, path)
            for name, path in zip(models.names, paths, strict=True)
        ]}  # fmt: skip

    async def running(self) -> dict[str, Any]:
        """Those in memory, as Ollama lists them."""
        found = [(one.name, self.models.path(one.name), one) for one in self.models.loaded]
        return {"models": [await self.intake.run(listing.running, *one) for one in found]}

    async def show(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One of them. Raises ApiError for one that does not exist."""
        own = await self.intake.run(validated, ShowBody, body)
        name = self.serving(own.model or own.name)
        return await self.intake.run(
            listing.shown, name, self.models.path(name), self.models.get(name)
        )

    # --- tokens

    async def count_input(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Of a request of ``/v1/responses/input_tokens``. Raises ApiError and what the model
        refuses."""
        own = await self._validated(ResponsesBody, body, "input")
        if own.previous_response_id is not None:
            raise bad_field(
                "previous_response_id", "previous_response_id is not counted; send the whole "
                "conversation as input",
            )  # fmt: skip
        messages = [*own.system, *own.shown]
        async with self._leased(own.model) as lease:
            tokens = await self._prompt(lease.model, messages, own.offered, own.variables)
            lease.release()
            return {"object": "response.input_tokens", "input_tokens": len(tokens)}

    async def count_tokens(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Of a request of ``/v1/messages/count_tokens``. Raises ApiError and what the model
        refuses."""
        own = await self._validated(CountTokensBody, body, "messages")
        async with self._leased(own.model) as lease:
            messages = [*own.preamble, *own.shown]
            tokens = await self._prompt(lease.model, messages, own.offered, own.variables)
            lease.release()
            return {"input_tokens": len(tokens)}

    async def tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The tokens of a text or a chat. Raises ApiError and what the model refuses."""
        own = await self._validated(TokenizeBody, body, "messages")
        async with self._leased(own.model) as lease:
            model, llm = lease.model, lease.model.llm
            text = own.prompt if own.content is None else own.content
            if text is None:
                messages = [message.shown() for message in own.messages]
                tokens = await self._prompt(model, messages, own.tools, own.chat_template_kwargs)
            else:
                await self._run(model, model.prompt_limits.check_text, text)
                tokens = await self._run(model, llm.tokens_of, text)
                if not own.begins and tokens[:1] == [llm.loaded.tokenizer.bos]:
                    tokens = tokens[1:]
            pieces = await self._run(model, _pieces, llm, tokens)
            lease.release()
            pairs = [{"id": t, "piece": p} for t, p in zip(tokens, pieces, strict=True)]
            return {
                "tokens": pairs if own.with_pieces else tokens,
                "count": len(tokens),
                "max_model_len": llm.loaded.num_context,
                "token_strs": pieces if own.return_token_strs else None,
            }

    async def detokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The text of tokens. Raises ApiError."""
        own = await self._validated(DetokenizeBody, body, "tokens")
        async with self._leased(own.model) as lease:
            llm = lease.model.llm
            text = await self._run(lease.model, llm.decode, own.tokens)
            lease.release()
            return {"content": text, "prompt": text}

    # --- parts of requests

    async def _validated(self, kind: type[_B], body: Mapping[str, Any], items: str) -> _B:
        """The body as its API has it. Raises ApiError: what is refused waits for no model."""
        self.check_ready()
        name = body.get("model")
        name = name if isinstance(name, str) else None
        model = self.models.get(await self._found(name, "completion"))
        if model is not None and not isinstance(model, LoadedModel):
            raise other_use(model)
        if model is not None and items in ("messages", "input"):
            model.prompt_limits.check_number(body.get(items))
        chosen = self.settings.defaults.items()
        own = {n: v for n, v in chosen if n in kind.model_fields and body.get(n) is None}
        return await self.intake.run(validated, kind, {**body, **own})

    async def _found(self, name: str | None, use: Use) -> str:
        """The model of a request by its name; without one, the first for this use. Raises
        ApiError."""
        return await self.models.first_for(use) if name is None else self.serving(name)

    def _leased(self, name: str | None) -> AbstractAsyncContextManager[ModelLease[LoadedModel]]:
        """The model of a request for text, loaded."""
        return self._lease_of(LoadedModel, name, "completion")

    @asynccontextmanager
    async def _lease_of(
        self, kind: type[_M], name: str | None, use: Use
    ) -> AsyncIterator[ModelLease[_M]]:
        """The model of a request, loaded; one that names none has the first for this use. A request
        that fails holds it no longer. Raises ApiError for a model of another kind."""
        lease = as_kind(await self.models.lease(await self._found(name, use)), kind)
        try:
            yield lease
        except BaseException:
            lease.release()
            raise

    def _earlier(self, owner: str, name: str | None) -> Turn | None:
        """The conversation that a request goes on from. Raises ApiError."""
        if name is None:
            return None
        found = self.store.get(owner, name, "previous_response_id").conversation
        self.intake.weigh(found.total_bytes)
        return found

    def _begun(self, messages: list[Message], earlier: Turn | None) -> Turn:
        """The conversation with the messages of a request, which together hold no more than a
        body may. Raises ApiError."""
        try:
            begun = Turn.of(messages, earlier)
            begun.check(self.settings.max_body_bytes)
        except TooMuch as error:
            name = "input" if earlier is None else "previous_response_id"
            raise bad_field(
                name, f"the conversation is too much ({error}); send a shorter one"
            ) from error
        return begun

    async def _run(
        self, model: LoadedModel, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """A part of the request in work that uses a model, in a thread."""
        return await self.intake.run(model.guarded(call), *args, **kwargs)

    async def _scheduled_chat(
        self, model: LoadedModel, body: Conversation, messages: list[Message], holder: str
    ) -> tuple[list[ScheduledRequest], list[Parts]]:
        """The requests of a chat, and the parts of the response to each."""
        tools, chat_format = body.offered, model.chat_format
        expected = await self.intake.run(expected_of, body)
        tokens = await self._prompt(model, messages, tools, body.variables)
        if self._prompt_log is not None:
            await self.intake.run(self._prompt_log.write, messages)
        end = chat_format.end_of(tokens)
        grammar = await self._run(model, chat_format.grammar, expected, end)
        params = await self.intake.run(body.sampling, grammar)
        shown = chat_format.shown(tools)
        scheduled = await self._scheduled(model, body, params, tokens, holder, shown)
        is_certain = bool(expected.calls)
        readers = [chat_format.reader(tools, end, is_certain=is_certain) for _ in scheduled]
        return scheduled, [Parts(reader, body.most_calls) for reader in readers]

    async def _prompt(
        self, model: LoadedModel, messages: list[Message], tools: list[Tool],
        variables: Mapping[str, Any],
    ) -> list[int]:  # fmt: skip
        """The tokens of a chat."""
        limits, chat_format = model.prompt_limits, model.chat_format
        limits.check_number(messages)
        if self.settings.fetch_images and has_remote(messages):
            messages = await self.intake.run(_fetched, messages)
        chat_format.check_tools(tools)
        await self._run(model, limits.check_chat, messages, tools)
        return await self._run(
            model, chat_format.prompt, model.llm, messages, tools, variables, limits.check_rendered
        )

    async def _scheduled(
        self,
        model: LoadedModel,
        body: Body,
        params: SamplingParams,
        tokens: list[int],
        holder: str,
        shown: Collection[int] = (),
    ) -> list[ScheduledRequest]:
        """The requests of a prompt, one a choice, the first of which scores the prompt where its
        logprobs are wanted; a new grammar that takes long is compiled where only others of its
        kind wait."""
        grammar, llm = params.grammar, model.llm
        if body.ignores_end:
            bans = dict.fromkeys(llm.end_tokens, -inf)
            params = replace(params, logit_bias={**params.logit_bias, **bans})

        def made() -> list[ScheduledRequest]:
            method = model.method_for(body.speculation)
            owner = owner_of(holder, body.cache_salt)
            each = [params]
            if body.num_choices > 1:
                each += [replace(params, prompt_logprobs=None)] * (body.num_choices - 1)
            return [
                llm.scheduled(
                    tokens,
                    own,
                    method=method,
                    on_output=_unheard,
                    choice=choice,
                    shown=shown,
                    owner=owner,
                )
                for choice, own in enumerate(each)
            ]

        is_quick = (
            grammar is None
            or llm.is_compiled(grammar)
            or await self.intake.run_quick(model.guarded(llm.is_compiled_soon), grammar)
        )
        run = self.intake.run if is_quick else self.intake.compile
        return await run(model.guarded(made))

    def _collector(
        self, lease: ModelLease[LoadedModel], scheduled: Sequence[ScheduledRequest], body: Body
    ) -> OutputCollector:
        """The model is leased until the response has its last output, read or not."""
        interval_s = self.settings.interval_s if body.stream else inf
        return OutputCollector(
            lease.model.scheduler, scheduled, self.settings.timeout_s, interval_s,
            self.intake.begin_s, lease.release,
        )  # fmt: skip

    def _piece(self, lease: ModelLease[LoadedModel]) -> Callable[[int], bytes]:
        """Also called when the model is leased no more, and may be unloaded."""
        return lease.model.guarded(lease.model.llm.loaded.tokenizer.piece)


def _params(body: Body) -> SamplingParams:
    """How the text of a completion is sampled. Raises ApiError and BadOption."""
    return body.sampling(text_grammar(body))


def _prompts(scheduled: Sequence[ScheduledRequest]) -> list[Sequence[int]]:
    """Of each choice."""
    return [one.request.prompt for one in scheduled]


def _fetched(messages: list[Message]) -> list[Message]:
    """With the pictures that they name. Raises ApiError."""
    try:
        return fetched(messages)
    except NoPicture as error:
        raise bad_field("messages", f"a picture of messages {error}") from None


def _unheard(output: Output) -> None:
    """Until a collector listens."""


def _text(llm: LLM, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else llm.decode(prompt)


def _pieces(llm: LLM, tokens: Sequence[int]) -> list[str]:
    return [llm.loaded.tokenizer.piece(token).decode("utf-8", "replace") for token in tokens]


def _never(taken: int) -> NoReturn:
    raise AssertionError("the model was given, and is never loaded again")
