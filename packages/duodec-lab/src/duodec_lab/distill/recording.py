"""Record a target's completions of prompts, with its likeliest tokens at every position.

A shard holds the completions of a few conversations. It is written whole, so a recording that was
interrupted goes on with the first shard that is missing. Hidden states are never recorded.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.core.sampling.logprobs import Logprob
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption, ContextExceeded
from duodec.llm import LLM
from duodec.machine.files import replacing
from duodec.scheduler.completions import Completion
from duodec_lab.distill.files import Folder
from duodec_lab.distill.prompts.collect import Conversation, Prompts
from duodec_lab.distill.settings import NUM_TOPS

_SHARD = 32  # conversations: more than run at once, so that few slots stand idle at its end
NONE = -9999.0  # the logprob where fewer tokens are known

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sample:
    """A prompt's tokens with its completion's, and the target's likeliest tokens where each token
    of the completion was drawn, with their log probabilities."""

    tokens: NDArray[np.int32]  # (length,)
    num_prompt: int
    tops: NDArray[np.int32]  # (length - num_prompt, NUM_TOPS)
    logprobs: NDArray[np.float32]  # the same shape


@dataclass(frozen=True)
class Shard:
    """The samples of some conversations, and the seconds that they took."""

    samples: tuple[Sample, ...]
    seconds: float

    def write(self, folder: Folder, number: int) -> None:
        """Raises OSError if the disk is full."""
        samples = self.samples
        arrays: dict[str, Any] = {
            "lengths": np.array([(s.num_prompt, len(s.tokens)) for s in samples], np.int32),
            "tokens": np.concatenate([s.tokens for s in samples]),
            "tops": np.concatenate([s.tops for s in samples]),
            "logprobs": np.concatenate([s.logprobs for s in samples]).astype(np.float16),
            "seconds": np.array(self.seconds),
        }
        with replacing(folder.shard(number)) as part, part.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def read(cls, folder: Folder, number: int) -> Shard | None:
        """None if it is not there. Raises BadOption if it is damaged."""
        path = folder.shard(number)
        try:
            with np.load(path, allow_pickle=False) as data:
                arrays = {name: data[name] for name in data.files}
            return cls(tuple(_split(arrays)), float(arrays["seconds"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise BadOption(
                f"{path} is damaged ({error}); delete it to have it recorded again"
            ) from error


def _split(arrays: dict[str, NDArray[Any]]) -> Iterator[Sample]:
    at = row = 0
    for num_prompt, length in arrays["lengths"].tolist():
        rows = slice(row, row + length - num_prompt)
        logprobs = arrays["logprobs"][rows].astype(np.float32)
        yield Sample(arrays["tokens"][at : at + length], num_prompt, arrays["tops"][rows], logprobs)
        at, row = at + length, rows.stop


@dataclass(frozen=True)
class Recording:
    """What was recorded: samples that measure, samples that train."""

    held_out: tuple[Sample, ...]
    training: tuple[Sample, ...]
    seconds: float
    num_conversations: int

    @property
    def num_tokens(self) -> int:
        """Of the completions."""
        return sum(len(s.tops) for s in (*self.held_out, *self.training))

    def frequent_tokens(self) -> NDArray[np.int64]:
        """Tokens of the texts that train, the most frequent first; of equals the lowest."""
        counts = np.bincount(np.concatenate([s.tokens for s in self.training]))
        return np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]


def _parts(prompts: Prompts) -> list[tuple[Conversation, ...]]:
    """The conversations of each shard: held-out ones first, the others in shards of their own."""
    every, end = prompts.conversations, prompts.num_held_out
    held_out, training = every[:end], every[end:]
    return [
        part[i : i + _SHARD] for part in (held_out, training) for i in range(0, len(part), _SHARD)
    ]


def read(folder: Folder, prompts: Prompts) -> Recording:
    """All shards up to the first that is missing."""
    found: tuple[list[Sample], list[Sample]] = ([], [])
    seconds, num_conversations = 0.0, 0
    for number, part in enumerate(_parts(prompts)):
        shard = Shard.read(folder, number)
        if shard is None:
            break
        found[num_conversations >= prompts.num_held_out].extend(shard.samples)
        num_conversations += len(part)
        seconds += shard.seconds
    return Recording(tuple(found[0]), tuple(found[1]), seconds, num_conversations)


def record(
    llm: LLM,
    prompts: Prompts,
    params: SamplingParams,
    folder: Folder,
    *,
    most_s: float,
    on_progress: OnProgress,
) -> None:
    """Record every shard that is missing, until they have taken ``most_s`` seconds in all; some
    held-out and some training samples are always recorded. Raises what the target raises, and
    OSError if the disk is full: shards that were written stay."""
    parts = _parts(prompts)
    num_needed = 1 + -(-prompts.num_held_out // _SHARD)
    spent_s = 0.0
    for number, part in enumerate(parts):
        shard = Shard.read(folder, number)
        if shard is None:
            if spent_s >= most_s and number >= num_needed:
                break
            begin_s = perf_counter()
            samples = tuple(_samples(llm, part, params))
            shard = Shard(samples, perf_counter() - begin_s)
            shard.write(folder, number)
        spent_s += shard.seconds
        on_progress(f"recording, {spent_s / 60:.0f} min", number + 1, len(parts))


def _samples(
    llm: LLM, conversations: Sequence[Conversation], params: SamplingParams
) -> Iterator[Sample]:
    """Every completion of these conversations; their n-th turns share forward passes."""
    histories: list[list[dict[str, Any]]] = [[] for _ in conversations]
    rest = [list(conversation.messages) for conversation in conversations]
    while any(rest):
        asked = [i for i, messages in enumerate(rest) if messages]
        for i in asked:
            _read_on(histories[i], rest[i])
        prompts = {i: _fitting(llm, histories[i], params) for i in asked}
        found = [i for i in asked if prompts[i]]
        done = llm.generate([prompts[i] for i in found], with_seeds(params, found), method="ar")
        for i, completion in zip(found, done, strict=True):
            histories[i].append({"role": "assistant", "content": completion.text})
            yield _sample(prompts[i], completion)
        for i in set(asked) - set(found):
            rest[i].clear()  # the context is full


def _read_on(history: list[dict[str, Any]], rest: list[Any]) -> None:
    """Move messages up to the next question that the target is to answer."""
    while rest:
        history.append(dict(rest.pop(0)))
        is_answered = bool(rest) and rest[0]["role"] == "assistant"
        if history[-1]["role"] == "user" and not is_answered:
            return


def _fitting(llm: LLM, messages: list[dict[str, Any]], params: SamplingParams) -> list[int]:
    """The tokens of a prompt; none if there is no space for a completion."""
    tokens = llm.tokens_of(messages)
    return tokens if len(tokens) + (params.max_tokens or 0) <= llm.loaded.num_context else []


def with_seeds(params: SamplingParams, numbers: Sequence[int]) -> list[SamplingParams]:
    """One seed each, so that equal prompts do not share their noise."""
    return [replace(params, seed=((params.seed or 0) + i) % (1 << 64)) for i in numbers]


def _sample(prompt: list[int], completion: Completion) -> Sample:
    tokens = np.array([*prompt, *completion.tokens], dtype=np.int32)
    tops = np.zeros((len(completion.tokens), NUM_TOPS), dtype=np.int32)
    logprobs = np.full(tops.shape, NONE, dtype=np.float32)
    known: list[Logprob] = list(completion.logprobs or ())
    for row, token in enumerate(completion.tokens):
        pairs = known[row].tops if row < len(known) else ((token, 0.0),)  # an end token's
        for column, (top, value) in enumerate(pairs):
            tops[row, column], logprobs[row, column] = top, value
    return Sample(tokens, len(prompt), tops, logprobs)


def check_fits(prompts: Prompts, llm: LLM, params: SamplingParams) -> None:
    """Raises ContextExceeded if no held-out prompt leaves space for a completion."""
    if not any(
        _fitting(llm, [dict(m) for m in c.messages], params)
        for c in prompts.conversations[: prompts.num_held_out]
    ):
        raise ContextExceeded(
            f"the prompts and completions of {params.max_tokens} tokens do not fit in the context "
            f"of {llm.loaded.num_context}; shorten them, or use a lower --max-tokens"
        )
