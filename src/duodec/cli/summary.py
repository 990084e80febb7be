"""Sum up a completion: its speed, its drafts, and the reason for its speed, in lines or as JSON.

Pure functions of the statistics; nothing here measures or prints.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from statistics import fmean

from duodec.cli.completion import StreamedCompletion
from duodec.core.events import FinishReason
from duodec.core.round import Round, Stats
from duodec.machine.busy import NOTABLE

_FEWEST = 3  # rounds after the first that a comparison needs
_NOTABLE = 0.05  # in plain passes
_ROUNDING = 0.005  # half of a ratio's last written digit
_CHEAPEST = 0.7  # plain passes: no pass costs less; if one seems to, the timings are wrong


def seconds(value: float) -> str:
    """Format a duration for people."""
    if math.isnan(value):
        return "?"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.{0 if value >= 0.01 else 1}f} ms"


def rate(value: float) -> str:
    """Format tokens per second for people."""
    if math.isnan(value):
        return "? tok/s"
    return f"{value:.{0 if value >= 100 else 1}f} tok/s"


def speed_line(stats: Stats) -> str:
    """Describe the number of tokens, the speed, and the time to the first token."""
    tokens = _count(stats.num_new_tokens, "token")
    speed = "" if math.isnan(stats.tokens_per_second) else f" at {rate(stats.tokens_per_second)}"
    return f"{tokens}{speed}, the first after {seconds(stats.ttft_s)}"


def draft_line(stats: Stats, method: str, draft: str | None) -> str:
    """Describe how much of the completion was drafted."""
    who = f"{method} with {draft}" if draft else method
    words = [f"{who}: {stats.mean_accepted:.2f} tokens a forward pass"]
    if method != "ar":
        share = f" ({_share(stats):.0%})" if stats.num_draft_tokens else ""
        words.append(f"{stats.num_draft_tokens} drafted")
        words.append(f"{stats.num_accepted_tokens} accepted{share}")
    if stats.drafter_restarts:
        words.append(f"drafter restarted {_count(stats.drafter_restarts, 'time')}")
    return ", ".join(words)


def end_line(reason: FinishReason, *, is_interrupted: bool, num_context: int) -> str | None:
    """Return what cut the completion short, and the remedy; None if nothing did."""
    if is_interrupted:
        return "interrupted"
    if reason == "context":
        return (
            f"the context of {num_context} tokens is full: --context enlarges it, as far as the "
            "model was trained for"
        )
    if reason == "length":
        return "ended by --max-tokens"
    return None


def times(ratio: float, num_busy: float) -> str:
    """Format a speed-up for people. It is a range if other programs kept so many cores busy that a
    timing is uncertain by a tenth or more. The chat page formats it in the same way (chat.js)."""
    if num_busy < NOTABLE:
        return f"{ratio:.2f}x"
    low, high = math.floor(ratio * 0.9 * 4) / 4, math.ceil(ratio * 1.1 * 4) / 4
    return f"about {low:g} to {high:g} times"


def busy_words(num_busy: float) -> str:
    """Return what makes a timing uncertain; empty if nothing does."""
    return f"; other programs kept {num_busy:.1f} cores busy" if num_busy >= NOTABLE else ""


def comparison(
    stats: Stats, plain_s: float | None, *, shares_cores: bool = False, num_busy: float = 0.0
) -> str:
    """Return how this completion compares with plain decoding at ``plain_s`` seconds a token, and
    why; ``num_busy`` cores were busy with other programs.

    The reason is a round's largest cost beyond one plain pass: scoring the draft, waiting for it,
    or the time between passes.
    """
    steady = stats.rounds[1:]  # the first one prefills the prompt
    if plain_s is None or len(steady) < _FEWEST or math.isnan(stats.tokens_per_second):
        return "too short to compare with plain decoding"
    ratio = stats.tokens_per_second * plain_s
    head = f"{times(ratio, num_busy)} plain decoding ({rate(1 / plain_s)}{busy_words(num_busy)})"
    # The mean is used: a median of many cheap passes would hide the few that score long drafts.
    cost = fmean(r.end_s - r.start_s for r in steady) / plain_s
    if cost < _CHEAPEST:
        return (
            "not compared with plain decoding: timed after this completion, it was "
            f"{1 / cost:.1f} times as slow a forward pass; the machine's speed changed meanwhile"
        )
    wait = fmean(r.draft_wait_s for r in steady) / plain_s
    gap = _mean_gap_s(stats.rounds) / plain_s
    gained = f"{stats.mean_accepted:.2f} tokens a forward pass"
    scored = _scored_words(steady, stats.overlap if shares_cores else 0.0)
    if ratio > 1 + _ROUNDING and not stats.num_accepted_tokens:  # noise: nothing made it faster
        why = "accepted" if stats.num_draft_tokens else "drafted"
        return f"no faster than plain decoding ({rate(1 / plain_s)}): nothing was {why}"
    if ratio >= 1 + _NOTABLE:
        waited = f", and {wait:.1f} plain passes of waiting for drafts" if wait >= 0.1 else ""
        return f"{head}: {gained} at {cost:.1f} times its cost{waited}"
    if not stats.num_draft_tokens:
        costs = f", and {scored} costs {cost:.1f} plain passes" if cost > 1 + _NOTABLE else ""
        return f"{head}: nothing was drafted{costs}"
    accepted = f"{_share(stats):.0%} of the drafts were accepted"
    excess, why = max(
        (cost - 1, f"{scored} costs {cost:.1f} plain passes"),
        (wait, f"waiting for drafts costs {wait:.1f} plain passes a round"),
        (gap, f"the time between passes costs {gap:.1f} plain passes a round"),
    )
    if excess < _NOTABLE:
        return f"{head}: {accepted}, {gained}"
    return f"{head}: {why}, and {accepted}"


def _scored_words(steady: tuple[Round, ...], shared_overlap: float) -> str:
    num_scored = fmean(r.num_scored for r in steady)
    words = "a forward pass"
    if num_scored >= 1:  # with fewer, most passes score none, so scoring is not the cost
        words = f"scoring {num_scored:.{0 if num_scored >= 10 else 1}f} draft tokens"
    if shared_overlap > 0.25:
        words += " while the drafter works on the same cores"
    return words


def _mean_gap_s(rounds: tuple[Round, ...]) -> float:
    return fmean(max(0.0, b.start_s - a.end_s - b.draft_wait_s) for a, b in pairwise(rounds))


def _share(stats: Stats) -> float:
    return stats.num_accepted_tokens / stats.num_draft_tokens


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# As JSON


def to_json(
    done: StreamedCompletion,
    *,
    target: str,
    draft: str | None,
    seed: int | None,
    pace_s: float = 0.0,
) -> str:
    """Return one line of JSON; what is not a number is null. A target slowed for a demo is
    marked."""
    finished = done.finished
    return json.dumps(
        {
            "text": finished.text,
            "tokens": list(finished.tokens),
            "method": done.method,
            "target": target,
            "draft": draft,
            "seed": seed,
            "finish_reason": "interrupted" if done.is_interrupted else finished.finish_reason,
            "stats": _stats(finished.stats),
            **({"pace_s": pace_s} if pace_s else {}),
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _stats(stats: Stats) -> dict[str, int | float | list[int] | None]:
    return {
        "prompt_tokens": stats.num_prompt_tokens,
        "new_tokens": stats.num_new_tokens,
        "ttft_s": _number(stats.ttft_s),
        "decode_s": _number(stats.decode_s),
        "tokens_per_second": _number(stats.tokens_per_second),
        "rounds": len(stats.rounds),
        "mean_accepted": _number(stats.mean_accepted),
        "acceptance_histogram": stats.acceptance_histogram,
        "draft_tokens": stats.num_draft_tokens,
        "accepted_tokens": stats.num_accepted_tokens,
        "overlap": _number(stats.overlap),
        "near_ties": stats.num_near_ties,
        "drafter_restarts": stats.drafter_restarts,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
