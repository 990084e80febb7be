"""Hold a conversation: its messages, its settings, and the next response."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duodec.cli.completion import StreamedCompletion, stream_completion
from duodec.cli.interrupts import Interruption, Stopped
from duodec.cli.output import CompletionWriter, is_terminal, say, say_dim, unechoed_keys, warn
from duodec.cli.summary import draft_line, rate
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption, ContextExceeded
from duodec.methods.registry import method as method_named

if TYPE_CHECKING:
    from duodec.cli.chat.models import ChatModels
    from duodec.inputs import Prompt
    from duodec.llm import LLM

_HARD_PATIENCE = 2  # presses of Ctrl-C after the first that still end the response cleanly


def as_messages(messages: list[dict[str, Any]]) -> Prompt:
    """Prepare messages for the model's chat template."""
    return messages


def as_text(messages: list[dict[str, Any]]) -> Prompt:
    """Join messages into one text, for a model without turns."""
    return "\n".join(message["content"] for message in messages)


@dataclass
class Conversation:
    """Hold a conversation. Every response sees all earlier messages; the engine's cache makes that
    cheap."""

    models: ChatModels
    writer: CompletionWriter
    sampling: SamplingParams
    method: str | None = None
    max_tokens: int | None = None
    system: str | None = None
    is_quiet: bool = False
    prompt_of: Callable[[list[dict[str, Any]]], Prompt] = as_messages
    messages: list[dict[str, Any]] = field(default_factory=list)
    attachment: str = ""  # text that goes before the next message
    last: StreamedCompletion | None = None
    _num_regenerated: int = 0

    @property
    def engine(self) -> LLM:
        return self.models.llm

    def all_messages(self) -> list[dict[str, Any]]:
        """Return the system message and everything since."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, *self.messages]

    def take_over(self, messages: list[dict[str, Any]]) -> None:
        """Continue with these messages."""
        said = [dict(message) for message in messages]
        if said and said[0]["role"] == "system":
            self.system = said.pop(0)["content"]
        self.messages = said

    def num_tokens(self) -> int:
        """Return how many tokens the conversation has so far."""
        prompt = self.prompt_of(self.all_messages())
        return len(self.engine.tokens_of(prompt)) if self.messages else 0

    def draft_of(self, done: StreamedCompletion) -> str | None:
        """Return the draft model used for a response."""
        method = method_named(done.method)
        takes_one = method.needs_draft_model or method.uses_draft_model
        return self.models.draft if takes_one else None

    def send(self, text: str) -> None:
        """Send a message and stream the response. Raises BadOption and ContextExceeded; then the
        message is not kept."""
        self.messages.append({"role": "user", "content": self.attachment + text})
        self._num_regenerated = 0
        try:
            self._reply()
        except (BadOption, ContextExceeded):
            self.messages.pop()
            raise
        self.attachment = ""

    def regenerate(self) -> None:
        """Stream another response to the last message: the next choice of the same seed."""
        before = list(self.messages)
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            raise BadOption("there is no response to regenerate; send a message first")
        if self.sampling.temperature == 0:
            say("  temperature is 0: the response will be the same; try /set temperature 0.8")
        self._num_regenerated += 1
        self._reply()
        if len(self.messages) < len(before):  # no new response: keep the old one
            self.messages = before

    def undo(self) -> str:
        """Remove the last message and its response; return the message. Raises BadOption."""
        roles = [message["role"] for message in self.messages]
        if "user" not in roles:
            raise BadOption("there is no message to take back")
        at = len(roles) - 1 - roles[::-1].index("user")
        text = str(self.messages[at]["content"])
        del self.messages[at:]
        return text

    def _reply(self) -> None:
        done = None
        interruption = Interruption(_HARD_PATIENCE)
        with suppress(Stopped), unechoed_keys():
            done = stream_completion(
                self.engine,
                self.engine.tokens_of(self.prompt_of(self.all_messages())),
                self.sampling,
                method=self.method,
                max_tokens=self.max_tokens,
                writer=self.writer,
                interruption=interruption,
                choice=self._num_regenerated,
                is_quiet=self.is_quiet,
            )
        text = self.writer.text
        self.writer.end()
        if text:
            self.messages.append({"role": "assistant", "content": text})
        else:  # templates alternate roles: a message without a response is not kept
            self.messages.pop()
        if done is None or done.is_interrupted:
            say_dim("interrupted")
        if done is not None:
            self.last = done
            self._close(done)

    def _close(self, done: StreamedCompletion) -> None:
        if done.finished.finish_reason == "context" and not done.is_interrupted:
            num_context = self.engine.loaded.num_context
            warn(
                f"the context of {num_context} tokens is full; /clear forgets the "
                "conversation, and --context starts a chat with a larger one"
            )
        if done.finished.finish_reason == "length" and not done.is_interrupted:
            say_dim(
                f"cut off at max_tokens {self.max_tokens}; /set max_tokens none lifts the limit"
            )
        if not self.is_quiet and is_terminal(sys.stderr):
            stats = done.finished.stats
            line = draft_line(stats, done.method, self.draft_of(done))
            say_dim(f"{rate(stats.tokens_per_second)}; {line}")
