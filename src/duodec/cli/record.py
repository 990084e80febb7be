"""Write the JSON object that ends `generate --json`: its fields are a contract."""

from __future__ import annotations

import json
import math

from duodec.cli.answering import Answer
from duodec.core.round import Stats


def to_json(
    done: Answer, *, target: str, draft: str | None, seed: int | None, pace_s: float = 0.0
) -> str:
    """One line; what is not a number is null. A target slowed for a demo is marked as such."""
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
