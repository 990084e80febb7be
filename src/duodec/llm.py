"""Generate text: a target, its tokenizer and a drafter under one scheduler.

`LLM.load` puts the models together; `LLM.generate`, `LLM.stream` and `LLM.chat` run requests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from os import PathLike
from typing import Any, overload

from duodec.backends.grammar.trial import GrammarCompiler
from duodec.chat.template import Message
from duodec.core.drafters import Datastore, Drafter
from duodec.core.events import Event, FinishReason, Started
from duodec.core.prompts.pictures import shown_in, sight_of
from duodec.core.sampling.grammar import Grammar, Mask, NoEndBefore
from duodec.core.sampling.parameters import made, shown, whole
from duodec.core.sampling.sampler import Sampler, SamplingParams, seeded
from duodec.core.targets import Target
from duodec.core.text import TextStream
from duodec.core.tokenizers import Tokenizer
from duodec.errors import BadOption, warn
from duodec.inputs import (
    EngineOptions,
    Params,
    Prompt,
    SamplingOptions,
    check_bias,
    check_length,
    check_tools,
    is_tokens,
    params_of,
    params_of_each,
    prompt_tokens,
    prompts_of,
)
from duodec.loading.config import DEFAULT_TARGET, EngineConfig
from duodec.loading.load import Loaded
from duodec.loading.load import load as load_pair
from duodec.loading.resolve import ResolvedPair, resolve_pair
from duodec.methods.method import Method
from duodec.methods.registry import DEFAULT_METHOD, check_method, check_usable
from duodec.methods.registry import method as method_named
from duodec.methods.request import NoDatastore, NoDrafter, Request
from duodec.scheduler.completions import CollectedOutput, Completion, PromptBatch
from duodec.scheduler.engine_lock import EngineLock
from duodec.scheduler.outputs import Failed, Output, Piece
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec.scheduler.warm_up import WarmUp

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack


class LLM:
    """Generate with a language model, with or without a draft model.

    ``LLM("smollm2")`` is `load`: use it as a context manager. Repeated calls reuse what the target
    and the drafter have computed for a text. Several threads may use it: they take turns, a forward
    pass each, and share forward passes if it has slots. `duodec serve` is for many clients.
    ``llm.loaded`` has the target, its tokenizer and the drafter; ``LLM(loaded)`` generates with
    such a pair, which ends with it.
    """

    loaded: Loaded

    @overload
    def __init__(
        self, target: str | PathLike[str] = ..., draft: str | PathLike[str] | None = ...,
        **options: Unpack[EngineOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(self, target: Loaded) -> None: ...
    @overload
    def __init__(
        self, target: Target, tokenizer: Tokenizer, num_context: int,
        drafter: Drafter | None = ..., datastore: Datastore | None = ..., **parts: Any,
    ) -> None: ...  # fmt: skip
    def __init__(self, target: Any = DEFAULT_TARGET, *parts: Any, **options: Any) -> None:
        if isinstance(target, str | PathLike):
            loaded = self.load(target, *parts, **options).loaded
        elif isinstance(target, Loaded):
            loaded = target
        elif parts or options:
            loaded = Loaded(target, *parts, **options)
        else:
            raise BadOption(f"target is {shown(target)}; give a name or a path, as a text")
        self.loaded = loaded
        self.grammars = loaded.grammars or GrammarCompiler(loaded.tokenizer)
        self._methods: dict[str, Method] = {}  # methods keep what they learned
        self._engine_lock = EngineLock(loaded.resources)
        self._scheduler: Scheduler | None = None

    def __repr__(self) -> str:
        target, drafter = self.loaded.target, self.loaded.drafter
        named = type(drafter).__name__ if drafter else None
        slots = self.loaded.num_slots
        return f"<LLM target={type(target).__name__} drafter={named} slots={slots}>"

    @classmethod
    def load(
        cls,
        target: str | PathLike[str] = DEFAULT_TARGET,
        draft: str | PathLike[str] | None = "auto",
        **options: Unpack[EngineOptions],
    ) -> LLM:
        """Load a target and its draft model on this machine.

        Args:
            target: A GGUF file, a folder of safetensors, ``hf:owner/repo``, or an alias: a text,
                or a path such as a `pathlib.Path`.
            draft: A smaller model, named likewise; ``auto`` takes the one that is known to suit
                the target, or the smallest of its vocabulary on this machine, None drafts from
                earlier text only.
            options: Fields of `EngineConfig`, below.

        Raises:
            ModelNotFound: A name leads to no model; the message says what was looked for.
            ModelUnreadable: A file is not a usable model.
            PairMismatch: Draft and target do not fit.
            BadOption: An option has a value that cannot be served.

        Example:
            >>> with LLM.load("smollm2", num_slots=4) as llm:
            ...     llm.generate(["One", "Two"], SamplingParams(max_tokens=8))
        """
        return load(made(EngineConfig, {"target": target, "draft": draft, **options}))

    @contextmanager
    def checked_by(self, check: Callable[[], None]) -> Iterator[None]:
        """While entered, call ``check`` during the prefill of a long prompt; it may raise, which
        ends the request."""
        target = self.loaded.target
        if not target.traits.reads_in_chunks:
            yield
            return
        before, target.on_chunk = target.on_chunk, check
        try:
            yield
        finally:
            target.on_chunk = before

    def close(self) -> None:
        """End the drafter and free the models, after a forward pass of another thread. It can be
        called twice. Any use after it raises BadOption."""
        self._engine_lock.close(self._scheduler)

    # One thread at a time computes; what another one launched is finished first.

    def _launch(self) -> bool:
        with self._engine_lock.lock:
            self._engine_lock.check_open()
            return self.scheduler.launch()

    def _finish_forward(self) -> None:
        with self._engine_lock.lock:
            self._engine_lock.check_open()
            self.scheduler.finish_forward()

    def _step(self) -> bool:
        with self._engine_lock.lock:
            self._engine_lock.check_open()
            return self.scheduler.step()

    def _abort(self, entries: Sequence[ScheduledRequest]) -> None:
        """Remove these requests from the scheduler, whatever ended them."""
        for entry in entries:
            entry.abort()
        with self._engine_lock.lock:
            if self._scheduler is not None:
                self._scheduler.drop_aborted()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tokens_of(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = {},
        check: Callable[[str], object] = lambda text: None,
    ) -> list[int]:
        """Return the tokens of a prompt. Messages go through the model's chat template, which
        receives the ``tools`` that the model may call, and ``variables`` of its own, such as
        ``enable_thinking``. ``check`` may reject the text of the template by raising, before it is
        tokenised."""
        self._engine_lock.check_open()
        return prompt_tokens(
            self.loaded.tokenizer, prompt, tools=tools, variables=variables,
            parse_special=self.loaded.parse_special, check=check,
        )  # fmt: skip

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a text or of chat messages, as `generate` reads them."""
        return self.tokens_of(prompt)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; control tokens have none. Raises BadOption for tokens that the
        model does not have."""
        if not is_tokens(tokens):
            raise BadOption(f"tokens is {shown(tokens)}; give a list of tokens")
        pieces = map(self.loaded.tokenizer.piece, self.tokens_of(tokens))
        return b"".join(pieces).decode("utf-8", "replace")

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params | Sequence[Params] | None = None,
        *,
        method: str | Method | None = None,
        n: int = 1,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Completion]:
        """Complete one prompt or many, and return their completions in order.

        Several prompts share forward passes, as many at once as the target has slots
        (``num_slots`` of `load`); the others wait in a queue.

        Args:
            prompts: A text, a list of chat messages or of tokens; or a list of such prompts.
            params: Sampling parameters, or a dictionary of them, for all prompts or one for each.
                Greedy by default.
            method: A decoding method by name, such as ``lookup``; `auto` by default.
            n: Completions of each prompt, of one seed: ``outputs`` of its `Completion`.
            sampling: Fields of `SamplingParams`, in place of those of ``params``.

        Raises:
            BadOption: A parameter or a prompt cannot be used; says which and what to do.
            ContextExceeded: A prompt does not fit in the context.
            ComputeFailed: The target's device failed.

        Example:
            >>> llm.generate("The capital of France is", max_tokens=8)[0].text
        """
        batch = self._batch(prompts, params, method, n, sampling)
        try:
            self.scheduler.submit(batch.entries)
            while not batch.is_over and self._step():
                pass
        finally:
            self._abort(batch.entries)
        return batch.completions()

    async def agenerate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params | Sequence[Params] | None = None,
        *,
        method: str | Method | None = None,
        n: int = 1,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Completion]:
        """`generate` for asyncio: the model computes in a thread of its own.

        Several may run at once; they share forward passes as prompts of `generate` do.

        Example:
            >>> (await llm.agenerate("The capital of France is", max_tokens=8))[0].text
        """
        run = partial(asyncio.get_running_loop().run_in_executor, self._engine_lock.worker)
        batch: PromptBatch = await run(self._batch, prompts, params, method, n, sampling)
        try:
            self.scheduler.submit(batch.entries)
            while not batch.is_over and await run(self._step):
                pass
        finally:
            await run(self._abort, batch.entries)
        return batch.completions()

    def _batch(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params | Sequence[Params] | None,
        method: str | Method | None,
        n: int,
        sampling: Mapping[str, Any],
    ) -> PromptBatch:
        """Return the requests of `generate`. Raises what it raises."""
        several, num_choices = prompts_of(prompts), whole("n", n)
        each = params_of_each(params, len(several), num_choices, sampling)
        if num_choices > 1:  # choices share the pictures of their prompt
            several = [self.tokens_of(prompt) for prompt in several]
        outputs = [CollectedOutput(own) for own in each for _ in range(num_choices)]
        entries = [
            self.scheduled(several[i // num_choices], output.params, method=method,
                           on_output=output, choice=i % num_choices)
            for i, output in enumerate(outputs)
        ]  # fmt: skip
        return PromptBatch(entries, outputs, num_choices)

    def chat(
        self,
        messages: str | Message | Sequence[Message],
        params: Params | None = None,
        *,
        method: str | Method | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        **sampling: Unpack[SamplingOptions],
    ) -> Completion:
        """Answer a conversation, through the model's chat template.

        Args:
            messages: ``{"role": "user", "content": "..."}`` and so on, oldest first; a text is
                one message of the user. A content may be a list of parts: ``{"type": "text",
                "text": ...}`` and, where the model sees pictures, ``{"type": "image", "image":
                ...}`` with the path of a file or its bytes.
            params: Sampling parameters. Greedy by default.
            method: A decoding method by name; `auto` by default.
            tools: Functions that the model may call: ``{"type": "function", "function": {"name":
                ..., "parameters": ...}}``, whose parameters are a JSON schema.
            sampling: Fields of `SamplingParams`, in place of those of ``params``.

        Raises:
            BadOption: The model has no chat template, or refuses these messages.
            ContextExceeded: The conversation does not fit in the context.

        Example:
            >>> llm.chat([{"role": "user", "content": "Why is the sky blue?"}]).text
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        elif isinstance(messages, Mapping):
            messages = [messages]
        check_tools(tools)
        tokens = self.tokens_of(messages, tools=tools)
        return self.generate([tokens], params, method=method, **sampling)[0]

    def stream(
        self,
        prompt: Prompt,
        params: Params | None = None,
        *,
        method: str | Method | None = None,
        choice: int = 0,
        should_stop: Callable[[], bool] | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[Event]:
        """Complete a prompt piece by piece: one `Started`, `Delta`s, one `Finished`, whose text is
        the whole.

        Where the target computes elsewhere, a piece is handed out while the next forward pass
        runs. Closing the iterator aborts the request.

        Args:
            prompt: A text, chat messages or tokens.
            params: Sampling parameters. Greedy by default.
            method: A decoding method by name; `auto` by default. An object keeps what it learns.
            choice: Which of several completions of one seed, which the params then name: each
                number, 0 or more, gives a different text.
            should_stop: Called after each forward pass; true ends the completion early, with the
                ``finish_reason`` of its limit: ``length``, or ``context`` where that is the context
                and not ``max_tokens``.
            sampling: Fields of `SamplingParams`, in place of those of ``params``.

        Raises:
            BadOption, ContextExceeded: Before anything is computed.

        Example:
            >>> for event in llm.stream("Once upon a time", max_tokens=64):
            ...     if isinstance(event, Delta):
            ...         print(event.text, end="")
        """
        outputs: list[Output] = []
        own = params_of(params, sampling)
        entry = self.scheduled(
            prompt,
            own,
            method=method,
            on_output=outputs.append,
            choice=choice,
            should_stop=should_stop,
        )
        return self._events(entry, outputs)

    async def astream(
        self,
        prompt: Prompt,
        params: Params | None = None,
        *,
        method: str | Method | None = None,
        choice: int = 0,
        **sampling: Unpack[SamplingOptions],
    ) -> AsyncIterator[Event]:
        """`stream` for asyncio: the model computes in a thread of its own.

        Several may run at once; they share forward passes as prompts of `generate` do.

        Example:
            >>> async for event in llm.astream("Once upon a time"):
            ...     print(event)
        """
        run = partial(asyncio.get_running_loop().run_in_executor, self._engine_lock.worker)
        outputs: list[Output] = []
        own = params_of(params, sampling)
        make = partial(
            self.scheduled, prompt, own, method=method, on_output=outputs.append, choice=choice
        )
        entry: ScheduledRequest = await run(make)
        yield Started(entry.method.name, entry.request.sampler.seed, len(entry.request.prompt))
        try:
            self.scheduler.submit([entry])
            while not entry.is_over:
                # One forward pass runs at a time: other requests take turns in the same thread.
                for step in (self._launch, self._finish_forward):
                    await run(step)
                    for event in self._take(outputs, entry.request):
                        yield event
        finally:
            await run(self._abort, [entry])

    def _events(self, entry: ScheduledRequest, outputs: list[Output]) -> Iterator[Event]:
        request = entry.request
        seed = request.sampler.seed
        yield Started(entry.method.name, seed, len(request.prompt))
        try:
            self.scheduler.submit([entry])
            while not entry.is_over and self._launch():
                yield from self._take(outputs, request)
                self._finish_forward()
                yield from self._take(outputs, request)
            yield from self._take(outputs, request)
        finally:
            self._abort([entry])

    def _take(self, outputs: list[Output], request: Request) -> Iterator[Event]:
        """Yield the events of these outputs, and remove them. The caller has the cores meanwhile,
        and its time does not count as the request's, unless the target computes in parallel."""
        if not outputs:
            return
        begin_s = self.loaded.clock()
        if self._engine_lock.lock.acquire(blocking=False):  # otherwise a thread computes on them
            try:
                self.scheduler.release_cores()
            finally:
                self._engine_lock.lock.release()
        while outputs:
            output = outputs.pop(0)
            if isinstance(output, Failed):
                raise output.error
            yield output.delta if isinstance(output, Piece) else output.finished
        if not self.scheduler.is_computing_elsewhere:
            request.outside_s += self.loaded.clock() - begin_s

    def scheduled(
        self,
        prompt: Prompt,
        params: Params | None = None,
        *,
        method: str | Method | None = None,
        on_output: Callable[[Output], None],
        choice: int = 0,
        should_stop: Callable[[], bool] | None = None,
        shown: Collection[int] = (),
        owner: str = "",
    ) -> ScheduledRequest:
        """Make a request for the scheduler. Raises BadOption and ContextExceeded.

        ``shown`` lists control tokens that are part of the text, because the caller parses them.
        ``owner`` is the owner of the text. What is cached and learned for another owner is not
        used.
        """
        loaded = self.loaded
        chosen, choice = self.method(method), whole("choice", choice)
        if choice < 0:
            raise BadOption(f"choice is {choice}; use 0 or more")
        params = seeded(params_of(params))
        check_bias(params, loaded.tokenizer.num_vocab)
        tokens = self.tokens_of(prompt)
        check_length(tokens, loaded.num_context)
        sight = sight_of(loaded.tokenizer)
        if params.prompt_logprobs is not None and shown_in(tokens):
            raise BadOption("prompt_logprobs of a prompt with pictures are not told; leave it out")
        max_tokens = loaded.num_context if params.max_tokens is None else params.max_tokens
        wanted = len(tokens) + max_tokens
        request = Request(
            prompt=tokens,
            capacity=min(loaded.num_context, wanted),
            drafter=self._drafter_for(chosen),
            sampler=Sampler(params, choice, len(tokens), self._mask(params)),
            datastore=loaded.datastore or NoDatastore(),
            costs=loaded.costs,
            shares_cores=loaded.cores.is_shared,
            takes_turns=loaded.cores.takes_turns(),
            max_width=min(Request.max_width, loaded.target.traits.max_draft),
            clock=loaded.clock,
            is_end=self._is_end(params.stop_token_ids),
            stream=TextStream(self._piece(shown), tuple(params.stop)),
            num_logprobs=params.logprobs,
            num_prompt_logprobs=params.prompt_logprobs,
            owner=owner,
            blank=sight.blank if sight else 0,
        )
        full: FinishReason = "length" if wanted <= loaded.num_context else "context"
        return ScheduledRequest(request, chosen, on_output, full=full, should_stop=should_stop)

    def _is_end(self, tokens: Sequence[int]) -> Callable[[int], bool]:
        is_end = self.loaded.tokenizer.is_end
        return (lambda token: token in tokens or is_end(token)) if tokens else is_end

    def _piece(self, shown: Collection[int]) -> Callable[[int], bytes]:
        """Return a function that gives the bytes of a token, in a text that includes these control
        tokens."""
        tokenizer = self.loaded.tokenizer
        piece, text = tokenizer.piece, tokenizer.token_text
        return (lambda token: text(token) if token in shown else piece(token)) if shown else piece

    @property
    def scheduler(self) -> Scheduler:
        """Return the scheduler of this object's requests, which runs in the caller's thread."""
        if self._scheduler is not None:
            return self._scheduler
        with self._engine_lock.lock:
            if self._scheduler is None:
                loaded, cores = self.loaded, self.loaded.cores
                self._scheduler = Scheduler(
                    loaded.target,
                    loaded.costs,
                    num_slots=loaded.num_slots,
                    cores_for_target=cores.num_for_target if cores.is_shared else None,
                    prepare=cores.prepare,
                    warm_up=WarmUp(Scheduler),
                    clock=loaded.clock,
                )
        return self._scheduler

    def check(
        self, tokens: list[int], sampling: SamplingParams, method: str | Method | None = None
    ) -> None:
        """Raise what `generate` would raise for these; nothing is computed."""
        self.method(method)
        check_length(tokens, self.loaded.num_context)
        check_bias(sampling, self.loaded.tokenizer.num_vocab)
        self._mask(sampling)

    def method(self, method: str | Method | None) -> Method:
        """Return the method to use. Raises BadOption if something that it needs is missing."""
        chosen = DEFAULT_METHOD if method is None else method
        check_method(chosen)
        if isinstance(chosen, str):
            if chosen not in self._methods:
                self._methods[chosen] = method_named(chosen)
            chosen = self._methods[chosen]
        loaded = self.loaded
        check_usable(
            chosen, loaded.target.traits,
            has_drafter=loaded.drafter is not None, has_datastore=loaded.datastore is not None,
        )  # fmt: skip
        return chosen

    def _drafter_for(self, method: Method) -> Drafter:
        """Return the drafter, for methods that need one or use one where that can pay."""
        is_used = method.needs_draft_model or method.uses_draft_model
        is_wanted = is_used and self.loaded.target.traits.max_draft > 0
        return (self.loaded.drafter if is_wanted else None) or NoDrafter()

    def is_compiled(self, grammar: Grammar | None) -> bool:
        """Return whether a request with this grammar waits for nothing to be compiled."""
        return grammar is None or self.grammars.knows(grammar)

    def is_compiled_soon(self, grammar: Grammar) -> bool:
        """Return whether a new grammar takes a tenth of a second at most. Raises BadOption for an
        invalid grammar."""
        return self.grammars.is_quick(grammar)

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """Return the model's own tokens that end a completion."""
        tokenizer = self.loaded.tokenizer
        return tuple(filter(tokenizer.is_end, range(tokenizer.num_vocab)))

    def _mask(self, sampling: SamplingParams) -> Mask | None:
        if sampling.min_tokens:
            ends = {*self.end_tokens, *sampling.stop_token_ids}
            num_vocab = self.loaded.tokenizer.num_vocab
            known = [token for token in ends if token < num_vocab]
            return NoEndBefore(sampling.min_tokens, known, num_vocab)
        return None if sampling.grammar is None else self.grammars.mask(sampling.grammar)


def load(
    pair: EngineConfig | ResolvedPair,
    *,
    on_warning: Callable[[str], None] = warn,
    taken_bytes: int = 0,
) -> LLM:
    """Load a pair. ``taken_bytes`` of the memory that looks free are other models' weights, mapped
    from files. Raises an error if something is wrong with the models or the pair."""
    resolved = resolve_pair(pair) if isinstance(pair, EngineConfig) else pair
    return LLM(load_pair(resolved, on_warning=on_warning, taken_bytes=taken_bytes))
