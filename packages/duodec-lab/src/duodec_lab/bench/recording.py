"""Record the target's plain text: the expected text of every method, and the text of replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from duodec.core.events import Finished
from duodec.core.sampling.sampler import SamplingParams, Tokens
from duodec.core.targets import Candidates, Query, Scores, Target
from duodec.drafting.recycling import NUM_CANDIDATES
from duodec.errors import DuodecError
from duodec.llm import LLM
from duodec_lab.bench.tasks import SHORT_TASKS, SHORT_TOKENS, Prompt

Turns = Sequence[tuple[str, str]]
"""Earlier questions of a conversation with their completions."""
Render = Callable[[Prompt, Turns, str], str]
"""Writes the text of a prompt's next question, after earlier turns."""


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation: the prompt's tokens and the target's plain completion."""

    number: int  # 1, 2, ...
    prompt_tokens: tuple[int, ...]
    answer: tuple[int, ...]
    text: str
    max_tokens: int
    candidates: tuple[Candidates, ...] = ()  # of the row that each token was drawn from

    @property
    def candidates_by_position(self) -> dict[int, Candidates]:
        return dict(enumerate(self.candidates, len(self.prompt_tokens)))

    @property
    def tokens(self) -> Tokens:
        return np.array(self.prompt_tokens + self.answer, dtype=np.int32)


@dataclass(frozen=True)
class Conversation:
    """A prompt with its turns. If one could not be completed, ``error`` says why, and the turns
    before it are left out too."""

    prompt: Prompt
    turns: tuple[Turn, ...] = ()
    error: str | None = None


class _Noting(Target):
    """A target that records its candidates after each text that it scores."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.candidates: list[Candidates] = []

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        found = self._target.score([replace(q, num_candidates=NUM_CANDIDATES) for q in queries])
        self.candidates += [scores.candidates(0) for scores in found]
        return found


def tokens_for(task: str, max_tokens: int, short_tasks: Sequence[str] = SHORT_TASKS) -> int:
    """The most tokens of a task's completions: fewer where the paper allows fewer."""
    return min(max_tokens, SHORT_TOKENS) if task in short_tasks else max_tokens


def record(
    engine: LLM,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    max_tokens: int,
    render: Render | None = None,
    short_tasks: Sequence[str] = SHORT_TASKS,
) -> Iterator[Conversation]:
    """The plain completions, one conversation after another; each turn sees the earlier ones. The
    model's chat template writes the prompts, unless ``render`` does."""
    for prompt in prompts:
        limit = tokens_for(prompt.task, max_tokens, short_tasks)
        messages: list[dict[str, str]] = []
        earlier: list[tuple[str, str]] = []
        turns: list[Turn] = []
        try:
            for number, question in enumerate(prompt.turns, 1):
                messages.append({"role": "user", "content": question})
                if render is None:
                    tokens = engine.tokens_of(messages)
                else:
                    text = render(prompt, earlier, question)
                    tokens = engine.loaded.tokenizer.tokenize(text, is_templated=True)
                noting = _Noting(engine.loaded.target)
                plain = LLM(replace(engine.loaded, target=noting))
                params = replace(sampling, max_tokens=limit)
                *_, last = plain.stream(tokens, params, method="ar")
                assert isinstance(last, Finished)
                seen = tuple(noting.candidates)
                turns.append(Turn(number, tuple(tokens), last.tokens, last.text, limit, seen))
                messages.append({"role": "assistant", "content": last.text})
                earlier.append((question, last.text))
            yield Conversation(prompt, tuple(turns))
        except DuodecError as error:
            yield Conversation(prompt, error=str(error))


def shuffled(conversation: Conversation, is_end: Callable[[int], bool]) -> Conversation:
    """The completions' tokens in a meaningless order; end tokens stay last. A drafter that does
    well on such a text knows what it cannot know."""
    turns = []
    for turn in conversation.turns:
        body = [token for token in turn.answer if not is_end(token)]
        dice = np.random.default_rng([turn.number, *conversation.prompt.prompt_id.encode()])
        mixed = dice.permutation(np.array(body, dtype=np.int64)).tolist()
        answer = (*mixed, *turn.answer[len(body) :])
        turns.append(replace(turn, answer=answer, candidates=()))
    return replace(conversation, turns=tuple(turns))
