"""Collect the completions of prompts from the outputs of their requests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from duodec.core.events import FinishReason
from duodec.core.round import Stats
from duodec.core.sampling.logprobs import Logprob
from duodec.core.sampling.sampler import SamplingParams
from duodec.scheduler.outputs import Done, Failed, Output, Piece
from duodec.scheduler.scheduled_request import ScheduledRequest


@dataclass(frozen=True)
class Completion:
    """Hold the result of a prompt; ``outputs`` are all of its completions, this one first.

    ``text`` ends before a stop string or end token, ``tokens`` hold the end token if one was drawn.
    ``finish_reason`` is ``stop`` (end token or stop string), ``length`` (``max_tokens``) or
    ``context`` (the context was full). ``logprobs`` and ``prompt_logprobs`` are None unless
    requested; the prompt's first token, which follows nothing, has none.
    """

    text: str
    tokens: tuple[int, ...] = field(repr=False)
    finish_reason: FinishReason
    stats: Stats
    method: str
    seed: int
    logprobs: tuple[Logprob, ...] | None = field(default=None, repr=False)
    prompt_logprobs: tuple[Logprob | None, ...] | None = field(default=None, repr=False)
    # The prompt's other completions, if n > 1.
    others: tuple[Completion, ...] = field(default=(), repr=False)

    @property
    def outputs(self) -> tuple[Completion, ...]:
        return (self, *self.others)


@dataclass
class CollectedOutput:
    """Collect the output of a request."""

    params: SamplingParams
    last: Done | Failed | None = None
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: tuple[Logprob | None, ...] = ()

    def __call__(self, output: Output) -> None:
        if not isinstance(output, Failed):
            self.logprobs += output.logprobs
            self.prompt_logprobs = self.prompt_logprobs or output.prompt_logprobs
        if not isinstance(output, Piece):
            self.last = output

    def completion(self) -> Completion:
        """Return the finished completion. Raises the error that ended the request."""
        if isinstance(self.last, Failed):
            raise self.last.error
        assert self.last is not None, "every request comes to an end"
        end = self.last.finished
        return Completion(
            end.text, end.tokens, end.finish_reason, end.stats, self.last.method, self.last.seed,
            None if self.params.logprobs is None else tuple(self.logprobs),
            None if self.params.prompt_logprobs is None else self.prompt_logprobs,
        )  # fmt: skip


@dataclass(frozen=True)
class PromptBatch:
    """Hold the requests of several prompts, ``num_choices`` for each."""

    entries: list[ScheduledRequest]
    outputs: list[CollectedOutput]
    num_choices: int

    @property
    def is_over(self) -> bool:
        return all(entry.is_over for entry in self.entries)

    def completions(self) -> list[Completion]:
        """Return the first completion of each prompt, with its others. Raises the error that ended
        one."""
        done = [output.completion() for output in self.outputs]
        begins = range(0, len(done), self.num_choices)
        return [replace(done[i], others=tuple(done[i + 1 : i + self.num_choices])) for i in begins]
