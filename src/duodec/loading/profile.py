"""Measure what forward passes and draft steps cost on this machine, in a minute, and keep it.

A profile belongs to a processor, its cores and a pair of model files. `load` starts the planner
with it; without a profile the planner learns the same while it decodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Protocol

import numpy as np

from duodec.backends.step_time import StepTime
from duodec.core.draft import Draft
from duodec.core.drafters import Drafter, DraftRequest, Plan
from duodec.core.round import median
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.targets import Query, Target
from duodec.core.tokenizers import Vocabulary
from duodec.drafting.growth import Tree
from duodec.drafting.plans import Chain, Comb
from duodec.machine.busy import NOTABLE, OtherPrograms
from duodec.machine.cores import CoreSharing
from duodec.machine.files import profile_place, replacing
from duodec.planning.costs import Costs

VERSION = 5
WIDTHS = (0, 1, 3, 7, 15, 31, 63)
LEAVES = (1, 2, 4, 8)
CONTEXTS = (64, 512)  # tokens in the context
_SLOT = 0
RUNS, _BUDGET_S = 7, 2.0  # runs and seconds for one figure, at most
_FREQUENT = 8  # first part of a vocabulary: a draft step takes longer after rare tokens
_STEPS, _STEPS_WAIT_S = 8, 20.0
_SWEPT_LEAVES = 4
_ENOUGH = 1.05  # relative to the fastest step: more threads are not worth their cores
ATTENTION_TEXTS, ATTENTION_LEAVES = (64, 1024), (1, 4, 8)
_TRIES = 2  # attempts for a context
PLAUSIBLE, _PLAUSIBLE_S = 1.5, 1e-3  # less work may seem to take this much longer because of noise


class Pair(Protocol):
    """Define what is measured: a loaded pair."""

    @property
    def target(self) -> Target: ...
    @property
    def tokenizer(self) -> Vocabulary: ...
    @property
    def num_context(self) -> int: ...
    @property
    def drafter(self) -> Drafter | None: ...
    @property
    def cores(self) -> CoreSharing: ...


@dataclass(frozen=True)
class Forward:
    """Record a target's forward pass over a number of draft tokens."""

    context: int
    width: int
    seconds: float
    beside_s: float | None  # time while the drafter works; None without one


@dataclass(frozen=True)
class Step:
    """Record a draft step that expands a number of leaves, with the process's overhead."""

    context: int
    leaves: int
    seconds: float


@dataclass(frozen=True)
class Threads:
    """Record a draft step with a number of threads."""

    num_threads: int
    seconds: float


@dataclass(frozen=True)
class Profile:
    """Hold the curves T(n, context) and d(k, context), and how much each side slows the other."""

    key: str
    target: str
    draft: str | None
    forwards: tuple[Forward, ...]
    steps: tuple[Step, ...]
    threads: tuple[Threads, ...] = ()  # empty where target and drafter share the cores
    attention: tuple[StepTime, ...] = ()

    @property
    def draft_threads(self) -> int | None:
        """Return the fewest threads that are about as fast as any; None if they were not
        measured."""
        fastest_s = min((t.seconds for t in self.threads), default=0.0)
        enough = [t.num_threads for t in self.threads if t.seconds <= _ENOUGH * fastest_s]
        return min(enough, default=None)

    @property
    def draft_uses_flash_attention(self) -> bool:
        """Return whether draft steps are faster with flash attention, over all measurements; False
        if there are none, as on every CPU so far."""
        both = [
            [a.seconds for a in self.attention if a.uses_flash_attention is flag]
            for flag in (True, False)
        ]
        ratios = [with_ / without for with_, without in zip(*both, strict=True)]
        return bool(ratios) and fmean(ratios) < 1.0

    @property
    def contention(self) -> float | None:
        """Return how much longer a forward pass takes while the drafter works, as a ratio."""
        ratios = [f.beside_s / f.seconds for f in self.forwards if f.beside_s]
        return median(ratios) if ratios else None

    @property
    def flaw(self) -> str | None:
        """Return what is implausible: less work that takes much longer, as on a machine that was
        busy for a while. None if nothing is wrong."""
        curves = [
            (f"a forward pass of {{}} draft tokens after {context}", points)
            for context in sorted({f.context for f in self.forwards})
            for points in (
                [(f.width, f.seconds) for f in self.forwards if f.context == context],
                [(f.width, f.beside_s) for f in self.forwards
                 if f.context == context and f.beside_s is not None],
            )
        ]  # fmt: skip
        curves += [
            (f"a draft step of {{}} leaves after {context}",
             [(s.leaves, s.seconds) for s in self.steps if s.context == context])
            for context in sorted({s.context for s in self.steps})
        ]  # fmt: skip
        for words, points in curves:
            points = sorted(points)
            for i, (few, seconds) in enumerate(points):
                for many, more_s in points[i + 1 :]:
                    if seconds > PLAUSIBLE * more_s + _PLAUSIBLE_S:
                        return (
                            f"{words.format(few)} took {seconds * 1e3:.0f} ms, one of {many} "
                            f"{more_s * 1e3:.0f} ms"
                        )
        return None

    def with_curves(self, other: Profile) -> Profile:
        """Return this profile with the curves of another one of the same pair added."""
        return replace(
            self, forwards=self.forwards + other.forwards, steps=self.steps + other.steps
        )

    def costs(self, *, is_drafting: bool) -> Costs:
        """Return the planner's initial costs; ``is_drafting``: the drafter will work in
        parallel."""
        costs = Costs()
        costs.teach(
            (forward.width, (forward.beside_s if is_drafting else None) or forward.seconds)
            for forward in self.forwards
        )
        for step in self.steps:
            if step.leaves == 1:  # other steps cost less per leaf
                costs.observe_step(step.seconds)
        return costs

    def write(self) -> Path:
        """Write the profile, in place of an older one. Raises OSError."""
        path = profile_place(self.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1))
        return path

    @classmethod
    def read(cls, key: str) -> Profile | None:
        """Return the profile kept for this machine and pair. None means that there is no usable
        one, and it will be measured again."""
        try:
            record = json.loads(profile_place(key).read_text())
            if record.pop("version") != VERSION or record["key"] != key:
                return None
            forwards = tuple(Forward(**f) for f in record.pop("forwards"))
            steps = tuple(Step(**s) for s in record.pop("steps"))
            threads = tuple(Threads(**t) for t in record.pop("threads"))
            attention = tuple(StepTime(**a) for a in record.pop("attention"))
            found = cls(
                **record, forwards=forwards, steps=steps, threads=threads, attention=attention
            )
            return found if found.flaw is None else None  # an older version kept it
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def measure(
    pair: Pair,
    key: str,
    names: tuple[str, str | None],
    on_progress: Callable[[str, int, int], None] = lambda words, done, total: None,
    contexts: Sequence[int] = CONTEXTS,
) -> Profile:
    """Measure a pair. It takes at most a minute for models that suit the machine."""
    rng = np.random.default_rng(0)
    num_frequent = max(1, pair.tokenizer.num_vocab // _FREQUENT)
    tokens = rng.integers(0, num_frequent, max(CONTEXTS) + 1).astype(np.int32)
    contexts = [context for context in contexts if context + max(WIDTHS) < pair.num_context]
    drafter = pair.drafter
    total = len(contexts) * (len(WIDTHS) + (len(LEAVES) if drafter else 0))
    forwards: list[Forward] = []
    steps: list[Step] = []
    for context in contexts:
        text = tokens[:context]
        if drafter:
            for leaves in LEAVES:
                if (seconds := step_s(drafter, text, leaves)) is not None:
                    steps.append(Step(context, leaves, seconds))
                on_progress(f"measuring, {context} tokens", len(forwards) + len(steps), total)
        for forward in _forwards(pair, text):
            forwards.append(forward)
            on_progress(f"measuring, {context} tokens", len(forwards) + len(steps), total)
    return Profile(key, *names, tuple(forwards), tuple(steps))


def measure_soundly(
    pair: Pair,
    key: str,
    names: tuple[str, str | None],
    on_progress: Callable[[str, int, int], None] = lambda words, done, total: None,
) -> tuple[Profile, Profile, str | None]:
    """`measure` context by context, and measure each again if it is implausible or other programs
    used the cores. Return all that was measured, what of it held, and the first flaw of the rest,
    if any."""
    found, held = Profile(key, *names, (), ()), Profile(key, *names, (), ())
    flaw: str | None = None
    for context in CONTEXTS:
        for _ in range(_TRIES):
            others = OtherPrograms()
            part = measure(pair, key, names, on_progress, (context,))
            why = part.flaw
            is_measured = bool(part.forwards)  # it was not too long
            if why is None and is_measured and (num_cores := others.num_cores) >= NOTABLE:
                why = f"other programs kept {num_cores:.1f} of these cores busy"
            if why is None:
                held = held.with_curves(part)
                break
        else:
            flaw = flaw or why
        found = found.with_curves(part)
    return found, held, flaw


def _forwards(pair: Pair, text: Tokens) -> Iterator[Forward]:
    pair.target.score([Query(_SLOT, text)])
    for width in WIDTHS:
        draft = Draft.chain([int(token) for token in text[:width]])
        pair.cores.prepare(False)
        alone_s = median(_timed(pair.target, text, draft, None))
        beside_s = None
        if pair.drafter:
            pair.cores.prepare(True)  # busy threads never outnumber the cores
            beside_s = median(_timed(pair.target, text, draft, pair.drafter))
            pair.drafter.cancel(_SLOT)
        yield Forward(len(text), width, alone_s, beside_s)


def _timed(target: Target, text: Tokens, draft: Draft, drafter: Drafter | None) -> list[float]:
    """Return the seconds of some forward passes over the same draft; the drafter grows a new tree
    during each."""
    seconds: list[float] = []
    begin_s = perf_counter()
    while len(seconds) < RUNS and (not seconds or perf_counter() - begin_s < _BUDGET_S):
        if drafter:
            other = np.append(text[:-1], np.int32(len(seconds))).astype(np.int32)
            drafter.submit(DraftRequest(_SLOT, other, Tree(), Sampler()))
        start_s = perf_counter()
        target.score([Query(_SLOT, text, draft)])
        seconds.append(perf_counter() - start_s)
    return seconds


def step_s(drafter: Drafter, text: Tokens, leaves: int) -> float | None:
    """Return the seconds of a draft step at so many leaves; None if the drafter is too slow to
    measure."""
    _drafted_s(drafter, text, Chain(1))  # reads the text
    first_s = _drafted_s(drafter, text, Chain(1))
    all_s = _drafted_s(drafter, text, Comb(leaves, 1 + _STEPS))
    if first_s is None or all_s is None:
        return None
    return max(0.0, all_s - first_s) / _STEPS


def _drafted_s(drafter: Drafter, text: Tokens, plan: Plan) -> float | None:
    """Return the seconds of work on one whole draft."""
    drafter.submit(DraftRequest(_SLOT, text, plan, Sampler()))
    end_s = perf_counter() + _STEPS_WAIT_S
    drafted = drafter.poll(_SLOT)
    while not drafted.is_complete and perf_counter() < end_s:
        drafted = drafter.poll(_SLOT, 1.0)
    drafter.cancel(_SLOT)
    return drafted.draft_s if drafted.is_complete and len(drafted.draft) else None


def thread_counts(most: int) -> list[int]:
    """Return 1, 2, 4, 8 and so on, and ``most``."""
    counts = [1]
    while 2 * counts[-1] <= most:
        counts.append(2 * counts[-1])
    return counts if most <= counts[-1] else [*counts, most]


def sweep_threads(
    start: Callable[[int], AbstractContextManager[Drafter]], counts: Sequence[int], num_vocab: int
) -> tuple[Threads, ...]:
    """Measure a draft step with each number of threads; ``start`` starts a drafter with that
    many."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, num_vocab, min(CONTEXTS)).astype(np.int32)
    found = []
    for count in counts:
        with start(count) as drafter:
            seconds = step_s(drafter, text, _SWEPT_LEAVES)
        if seconds is not None:
            found.append(Threads(count, seconds))
    return tuple(found)
