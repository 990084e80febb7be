"""Scores that outlive their forward: what a method will read is read off before the next one.

A target's scores hold until its next forward, and with many clients that is another's. Reading
costs nothing more than it would later: rows are drawn along the walk of the verification, unless
the method reads others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import Candidates, Query, Scores
from duodec.core.sampling import Draw, Law
from duodec.server.logprobs import Mark, mark

Keep = Callable[[Query, Scores], Scores]
"""Reads what will be needed of a forward's scores."""


@dataclass(frozen=True)
class Kept:
    """The rows that were read, by number."""

    num_rows: int
    draws: Mapping[int, Draw]
    tops: Mapping[int, Candidates]
    laws: Mapping[int, Law] = field(default_factory=dict)

    def draw(self, row: int) -> Draw:
        return self.draws[row]

    def candidates(self, row: int) -> Candidates:
        return self.tops.get(row, Candidates())

    def law(self, row: int) -> Law:
        return self.laws[row]


def keep_path(query: Query, scores: Scores) -> Kept:
    """The rows that `verify` walks along."""
    return _kept(query, scores, walk(query.draft, scores))


def keep_rows(query: Query, scores: Scores) -> Kept:
    """All rows, for methods that read beside the path."""
    return _kept(query, scores, {row: scores.draw(row) for row in range(scores.num_rows)})


def keep_laws(query: Query, scores: Scores) -> Kept:
    """All rows and their laws, for the published rejection rule."""
    kept = keep_rows(query, scores)
    return replace(kept, laws={row: scores.law(row) for row in kept.draws})


def marking(keep: Keep, marks: list[Mark], num_tops: int) -> Keep:
    """``keep``, and the marks of the tokens that the walk brings are added to ``marks``."""

    def keep_and_mark(query: Query, scores: Scores) -> Scores:
        kept = keep(query, scores)
        path = walk(query.draft, kept)
        marks.extend(mark(scores, row, drawn.token, num_tops) for row, drawn in path.items())
        return kept

    return keep_and_mark


def walk(draft: Draft, scores: Scores) -> dict[int, Draw]:
    """The rows on the path of the target's own draws, from the root as far as was scored."""
    path: dict[int, Draw] = {}
    node: int | None = ROOT
    while node is not None and node + 1 < scores.num_rows:
        path[node + 1] = drawn = scores.draw(node + 1)
        node = draft.child(node, drawn.token)
    return path


def _kept(query: Query, scores: Scores, draws: dict[int, Draw]) -> Kept:
    if not query.num_candidates:
        return Kept(scores.num_rows, draws, {})
    is_free = getattr(scores, "candidates_are_ready", False)  # or else each costs a pass over a row
    tops = {row: scores.candidates(row) for row in (range(scores.num_rows) if is_free else draws)}
    return Kept(scores.num_rows, draws, tops)
