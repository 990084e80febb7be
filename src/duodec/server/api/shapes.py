"""Write completions in the JSON of OpenAI, with the fields that vLLM and llama.cpp add to it."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from duodec.core.round import Stats
from duodec.core.sampling.logprobs import Logprob
from duodec.scheduler.outputs import Counts, Done
from duodec.server.api.tools.call import Call

_REASONS = {"stop": "stop", "length": "length", "context": "length"}


def finish_reason(done: Done, calls: Sequence[Call] = ()) -> str:
    """As OpenAI's: calls, unless the last one's arguments were cut off."""
    reason = _REASONS[done.finished.finish_reason]
    is_cut = reason == "length" and bool(calls) and not calls[-1].is_complete
    return "tool_calls" if calls and not is_cut else reason


def usage(
    num_prompt_tokens: int, completions: Sequence[Done], num_choices: int = 1
) -> dict[str, Any]:
    """Tokens of all completions of a request, ``num_choices`` of each prompt. A prompt counts once,
    and what one of its completions had to compute was not cached."""
    num_new = sum(done.finished.stats.num_new_tokens for done in completions)
    each = [done.num_cached for done in completions]
    cached = sum(min(each[i : i + num_choices]) for i in range(0, len(each), num_choices))
    known = {"prompt_tokens_details": {"cached_tokens": cached}}
    return {**usage_so_far(num_prompt_tokens, num_new), **known}


def usage_so_far(num_prompt_tokens: int, num_new_tokens: int) -> dict[str, Any]:
    """Tokens of a request whose completions go on."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_new_tokens,
        "total_tokens": num_prompt_tokens + num_new_tokens,
    }


def reasoning(text: str) -> dict[str, str]:
    """Reasoning by both names that clients read: DeepSeek's and llama.cpp's, and vLLM's."""
    return {"reasoning_content": text, "reasoning": text}


def extras(completions: Sequence[Done], max_draft: int | None) -> dict[str, Any]:
    """What a completion cost: vLLM's ``metrics``, llama.cpp's ``timings`` and our own; null for
    several completions, which have no common clock."""
    if len(completions) != 1:
        return {"metrics": None, "timings": None}
    (done,) = completions
    stats = done.finished.stats
    return {
        "metrics": metrics(done, max_draft),
        "timings": timings(done),
        "duodec": {
            "method": done.method,
            "seed": done.seed,
            "near_ties": stats.num_near_ties,
            "drafter_restarts": stats.drafter_restarts,
        },
    }


def metrics(done: Done, max_draft: int | None) -> dict[str, Any]:
    stats = done.finished.stats
    num_later = stats.num_new_tokens - 1
    return {
        "time_to_first_token_ms": _ms(stats.first_s - done.arrive_s),
        "generation_time_ms": _ms(stats.decode_s),
        "queue_time_ms": _ms(done.start_s - done.arrive_s),
        "mean_itl_ms": _ms(stats.decode_s / num_later) if num_later > 0 else None,
        "tokens_per_second": number(stats.tokens_per_second),
        "speculative_decoding": None if done.method == "ar" else speculative(stats, max_draft),
    }


def speculative(stats: Stats, max_draft: int | None) -> dict[str, Any] | None:
    """vLLM's names. A step is a round that had a draft; None if no round had one. Readers (AIPerf)
    check that the histogram adds up, and has a place for each number up to ``num_spec_tokens``."""
    steps = [done for done in stats.rounds if done.num_drafted or done.num_accepted]
    if not steps:
        return None
    num_drafted = sum(done.num_drafted for done in steps)
    num_accepted = sum(done.num_accepted for done in steps)
    by_length: dict[str, list[int]] = {}
    for length in sorted({done.num_drafted for done in steps}):
        counts = [done.num_accepted for done in steps if done.num_drafted == length]
        by_length[str(length)] = _histogram(counts)
    return {
        "mean_acceptance_length": 1 + num_accepted / len(steps),
        "draft_acceptance_rate": num_accepted / num_drafted if num_drafted else None,
        "acceptance_histogram": _histogram([done.num_accepted for done in steps], max_draft),
        "acceptance_histogram_by_draft_length": by_length,
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_tokens": max_draft,
    }


def _histogram(values: Sequence[int], most: int | None = None) -> list[int]:
    """How often each number is among the values, from 0 to the largest, or to ``most``."""
    return [values.count(n) for n in range(max(*values, -1 if most is None else most) + 1)]


def timings(done: Done) -> dict[str, Any]:
    """llama.cpp's names; ``prompt_n`` leaves out what was known."""
    stats = done.finished.stats
    num_read = stats.num_prompt_tokens - done.num_cached
    prompt_s = stats.first_s - done.start_s
    num_new = stats.num_new_tokens
    return {
        "cache_n": done.num_cached,
        "prompt_n": num_read,
        "prompt_ms": _ms(prompt_s),
        "prompt_per_token_ms": _ms(prompt_s / num_read) if num_read else None,
        "prompt_per_second": number(num_read / prompt_s) if prompt_s > 0 else None,
        "predicted_ms": _ms(stats.decode_s),
        "predicted_per_token_ms": _ms(stats.decode_s / num_new) if num_new else None,
        "predicted_per_second": number(stats.tokens_per_second),
        **progress(reduce(Counts.plus, stats.rounds, Counts())),
    }


def progress(counts: Counts) -> dict[str, Any]:
    """How far a completion is: llama.cpp's names, and ours. ``plain_ms`` is what a forward pass
    without a draft takes, as measured in this completion; null where that is not known."""
    plain_s = counts.plain_s
    return {
        "predicted_n": counts.num_tokens,
        "draft_n": counts.num_drafted,
        "draft_n_accepted": counts.num_accepted,
        "draft_n_accepted_from_model": counts.num_from_model,
        "rounds": counts.num_rounds,
        "plain_ms": None if plain_s is None else _ms(plain_s),
    }


def facts(num_prompt_tokens: int, completions: Sequence[Done]) -> dict[str, Any]:
    """For the log: how many tokens, how fast."""
    stats = [done.finished.stats for done in completions]
    found: dict[str, Any] = {
        "prompt_tokens": num_prompt_tokens,
        "tokens": sum(s.num_new_tokens for s in stats),
        "drafted": sum(s.num_draft_tokens for s in stats),
        "accepted": sum(s.num_accepted_tokens for s in stats),
        "finish": ",".join(done.finished.finish_reason for done in completions) or "none",
    }
    if len(completions) == 1:
        (done,) = completions
        found["ttft_s"] = round(stats[0].first_s - done.arrive_s, 4)
        found["tokens_per_second"] = number(round(stats[0].tokens_per_second, 1))
    return found


def number(value: float) -> float | None:
    """What is no number is null in JSON."""
    return value if math.isfinite(value) else None


def _ms(seconds: float) -> float | None:
    return number(1e3 * seconds)


def tool_call(call: Call, index: int | None = None) -> dict[str, Any]:
    """A call; in a stream with its ``index``."""
    place: Mapping[str, int] = {} if index is None else {"index": index}
    function = {"name": call.name, "arguments": call.arguments}
    return {**place, "id": call.id, "type": "function", "function": function}


# --- logprobs

Piece = Callable[[int], bytes]
"""The bytes that a token adds to the text."""


def chat_logprobs(logprobs: Sequence[Logprob], piece: Piece) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = piece(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = [
        {**entry(m.token, m.logprob), "top_logprobs": [entry(t, value) for t, value in m.tops]}
        for m in logprobs
    ]
    return {"content": content, "refusal": None}


def response_logprobs(logprobs: Sequence[Logprob], piece: Piece) -> list[dict[str, Any]]:
    """``logprobs`` of a text of ``/v1/responses``."""
    found: list[dict[str, Any]] = chat_logprobs(logprobs, piece)["content"]
    return found


class TextOffsets:
    """Where each token begins in a text, in characters; bytes of one character may be several
    tokens'."""

    def __init__(self, begin: int = 0) -> None:
        """``begin``: below 0 where the first tokens add blanks that the text lacks."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_characters = begin

    def next(self, data: bytes) -> int:
        """Of a token that adds these bytes."""
        unfinished, _ = self._decoder.getstate()
        is_cut = bool(unfinished and data) and not _goes_on(unfinished, data)
        # bytes that are no character become one, before this token
        begin = max(0, self._num_characters + is_cut)
        self._num_characters += len(self._decoder.decode(data))
        return begin


def _goes_on(unfinished: bytes, data: bytes) -> bool:
    """Whether the first bytes of a character have its next one in ``data``."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(unfinished + data[:1])
    except UnicodeDecodeError:
        return False
    return True


def completion_logprobs(
    logprobs: Sequence[Logprob | None], tokens: Sequence[int], piece: Piece, offsets: TextOffsets
) -> dict[str, Any]:
    """``choices[].logprobs`` of a text completion. None: a first token, which follows nothing."""

    def text_of(token: int) -> str:
        return piece(token).decode("utf-8", "replace")

    return {
        "tokens": [text_of(token) for token in tokens],
        "token_logprobs": [one.logprob if one else None for one in logprobs],
        "top_logprobs": [
            # with the token itself, as OpenAI does it; the likeliest of those with the same text
            {text_of(t): value for t, value in ((one.token, one.logprob), *reversed(one.tops))}
            if one
            else None
            for one in logprobs
        ],
        "text_offset": [offsets.next(piece(token)) for token in tokens],
    }


def prompt_logprobs(
    logprobs: Sequence[Logprob | None], piece: Piece, num_tops: int
) -> list[dict[str, Any] | None]:
    """vLLM's, of a prompt: by token, the prompt's own and the likeliest."""

    def entry(token: int, logprob: float, rank: int | None) -> dict[str, Any]:
        text = piece(token).decode("utf-8", "replace")
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    def entries(one: Logprob) -> dict[str, Any]:
        tops = {str(t): entry(t, value, i + 1) for i, (t, value) in enumerate(one.tops[:num_tops])}
        return {**tops, str(one.token): entry(one.token, one.logprob, one.rank)}

    return [entries(one) if one else None for one in logprobs]
