"""Record rounds (one forward pass of the target and its verdict), and count over many."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

NEAR_TIE = 1e-3  # nats: a draw won by less may differ under other kernels


@dataclass(frozen=True)
class Round:
    """Record what one forward pass of the target brought, and when. Times are seconds of one
    clock."""

    tokens: tuple[int, ...]  # tokens that join the text
    num_accepted: int  # how many of them (the first ones) were drafted
    num_drafted: int  # draft tokens that were judged or dropped in it, each counted once
    num_scored: int  # draft tokens that the forward pass scored: some targets score chains only
    margin: float  # nats, the narrowest win among its draws
    start_s: float  # begin of the forward pass
    end_s: float
    draft_wait_s: float = 0.0  # wait for the drafter before the forward pass
    overlap_s: float = 0.0  # part of the forward pass during which the drafter worked
    num_from_model: int = 0  # accepted tokens, the first ones, that the draft model proposed
    num_sequences: int = 0  # sequences drafted in parallel with it, by methods that draft sequences


@dataclass(frozen=True)
class Stats:
    """Hold the statistics of one completion, from the prompt to the last token."""

    num_prompt_tokens: int
    rounds: tuple[Round, ...] = field(repr=False)
    begin_s: float  # request
    first_s: float  # first token
    finish_s: float  # last token
    drafter_restarts: int = 0

    @property
    def num_new_tokens(self) -> int:
        return sum(len(r.tokens) for r in self.rounds)

    @property
    def num_draft_tokens(self) -> int:
        return sum(r.num_drafted for r in self.rounds)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(r.num_accepted for r in self.rounds)

    @property
    def num_from_model(self) -> int:
        """Return how many accepted tokens the draft model proposed; the others came from earlier
        text."""
        return sum(r.num_from_model for r in self.rounds)

    @property
    def mean_accepted(self) -> float:
        """Return the tokens per forward pass, the target's own included: 1 for plain decoding
        (Spec-Bench's "mean accepted tokens", vLLM's ``mean_acceptance_length``)."""
        return self.num_new_tokens / len(self.rounds) if self.rounds else math.nan

    @property
    def acceptance_histogram(self) -> list[int]:
        """Return the number of rounds that accepted 0, 1, 2, ... draft tokens."""
        counts = Counter(r.num_accepted for r in self.rounds)
        return [counts[n] for n in range(max(counts, default=-1) + 1)]

    @property
    def sequence_histogram(self) -> list[int]:
        """Return the number of rounds in parallel with which 1, 2, ... sequences were drafted; []
        for other methods."""
        counts = Counter(r.num_sequences for r in self.rounds)
        return [counts[n] for n in range(1, max(counts, default=0) + 1)]

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.begin_s

    @property
    def decode_s(self) -> float:
        """Return the seconds from the first token to the last."""
        return self.finish_s - self.first_s

    @property
    def tokens_per_second(self) -> float:
        """Return the decoding speed: tokens after those of the first round, over `decode_s`."""
        if len(self.rounds) < 2 or self.decode_s <= 0:
            return math.nan
        return (self.num_new_tokens - len(self.rounds[0].tokens)) / self.decode_s

    @property
    def overlap(self) -> float:
        """Return the share of the target's time during which the drafter also worked."""
        busy = sum(r.end_s - r.start_s for r in self.rounds)
        return sum(r.overlap_s for r in self.rounds) / busy if busy > 0 else 0.0

    @property
    def num_near_ties(self) -> int:
        return sum(r.margin < NEAR_TIE for r in self.rounds)

    @property
    def median_gap_s(self) -> float:
        """Return the seconds between the end of a forward pass and the start of the next one,
        without waits for drafts."""
        return median(
            b.start_s - a.end_s - b.draft_wait_s
            for a, b in zip(self.rounds, self.rounds[1:], strict=False)
        )

    @property
    def median_forward_s(self) -> float:
        """Return the seconds of one forward pass of the target, prefill left out."""
        return median(r.end_s - r.start_s for r in self.rounds[1:])


TICK_S = 1e-9  # least duration of anything, so that no divisor is 0


def median(values: Iterable[float]) -> float:
    """Return the median; NaN if there are no values."""
    values = list(values)
    return statistics.median(values) if values else math.nan
