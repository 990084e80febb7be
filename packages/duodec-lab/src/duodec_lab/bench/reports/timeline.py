"""Put one generation of each method on a common axis of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from duodec_lab.bench.results import Generation, succeeded

_ROUNDS = 12  # of the baseline, or of the slowest method
_SHORTEST = 0.002  # of the axis: the shortest visible span
_ROUNDING_S = 1e-6  # of the times in a file

Span = tuple[float, float]  # seconds since the first token: (start, length)


@dataclass(frozen=True)
class Lane:
    """A method's work after its first token, cut off at the end of the axis."""

    method: str
    forwards: tuple[Span, ...]
    num_tokens: tuple[int, ...]  # that each of these passes added; 0 for one that is cut off
    waits: tuple[Span, ...]  # the target waits for the drafter
    overlaps: tuple[Span, ...]  # the drafter works during a forward pass
    total_tokens: int  # by the axis' end

    @property
    def has_drafter(self) -> bool:
        return bool(self.waits or self.overlaps)


@dataclass(frozen=True)
class Timeline:
    """One prompt; ``length_s`` is the axis."""

    prompt: str
    length_s: float
    lanes: tuple[Lane, ...]


def timeline(
    generations: Sequence[Generation], methods: Sequence[str], baseline: str
) -> Timeline | None:
    """The first prompt that all methods (or the most) completed at length; None if there is
    none."""
    by_prompt: dict[tuple[object, ...], dict[str, Generation]] = {}
    for g in succeeded(generations):
        if g.rate:
            by_prompt.setdefault((*g.prompt_key, g.repeat), {})[g.method] = g
    if not by_prompt:
        return None
    # the first of those with the most methods, and of those long enough to fill the axis
    found = max(by_prompt.values(), key=lambda g: (len(g), _num_rounds(g.get(baseline))))
    shown = [found[method] for method in methods if method in found]
    length_s = _length_s(found.get(baseline), shown)
    lanes = tuple(_lane(g, length_s) for g in shown)
    turn = f", turn {shown[0].turn}" if shown[0].turn > 1 else ""
    return Timeline(f"{shown[0].task}, prompt {shown[0].prompt_id}{turn}", length_s, lanes)


def _num_rounds(plain: Generation | None) -> int:
    return min(_ROUNDS, len(plain.trace)) if plain else 0


def _length_s(plain: Generation | None, shown: Sequence[Generation]) -> float:
    def twelfth_s(g: Generation) -> float:
        return g.trace[min(_ROUNDS, len(g.trace) - 1)].end_s - g.trace[0].end_s

    return twelfth_s(plain) if plain else max(map(twelfth_s, shown))


def _lane(generation: Generation, length_s: float) -> Lane:
    first = generation.trace[0]
    rounds = [
        r
        for r in generation.trace[1:]
        if r.start_s - first.end_s < length_s and r.end_s > max(r.start_s, first.end_s)
    ]

    def cut(start_s: float, end_s: float) -> Span:
        begin_s = max(0.0, start_s - first.end_s)
        return begin_s, min(end_s - first.end_s, length_s) - begin_s

    def seen(spans: Iterable[Span]) -> tuple[Span, ...]:
        return tuple(span for span in spans if span[1] > _SHORTEST * length_s)

    is_done = [r.end_s - first.end_s <= length_s + _ROUNDING_S for r in rounds]
    arrived = [r.num_tokens if done else 0 for r, done in zip(rounds, is_done, strict=True)]
    return Lane(
        method=generation.method,
        forwards=tuple(cut(r.start_s, r.end_s) for r in rounds),
        num_tokens=tuple(arrived),
        waits=seen(cut(r.start_s - r.draft_wait_s, r.start_s) for r in rounds),
        overlaps=seen(cut(r.start_s, r.start_s + r.overlap_s) for r in rounds),
        total_tokens=sum(arrived),
    )
