"""Measure methods in turn, with cold prompts, and keep every record at once.

For each conversation every method runs once, in an order that rotates. A method has its own stores
and costs in each repeat; it learns from earlier conversations, never from another method or from
the same prompt. (The drafter's process measures its own steps' costs for all of them.)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from duodec.core.events import Finished
from duodec.core.round import Stats
from duodec.errors import DuodecError
from duodec.loading.config import EngineConfig
from duodec.machine.busy import OtherPrograms
from duodec.methods.method import Method
from duodec.planning.costs import Costs
from duodec_lab.bench.beds import Bed, Stage, real_stage, replay_stage
from duodec_lab.bench.beds.simulated import simulated_stage
from duodec_lab.bench.meters import EnergyMeter, resident_bytes
from duodec_lab.bench.paper import paper_named
from duodec_lab.bench.plan import SHUFFLED, BenchPlan, Entrant
from duodec_lab.bench.recording import Conversation, Turn, record, shuffled
from duodec_lab.bench.results import Generation, Results, RoundTrace
from duodec_lab.bench.scoring import Scorer, score_text
from duodec_lab.bench.tasks import Prompt


class _MethodFailed(Exception):
    """A method that is not ours raised something; the others go on."""


_WARM_UP = Prompt(
    task="warm-up",
    prompt_id="warm-up",
    turns=("Name three uses of a paper clip, and say why each of them works.",),
    reference=None,
    code=None,
)
WARM_UP_TOKENS = 48

OnProgress = Callable[[str, int, int], None]
"""What is being done, the amount done, and the total."""


class Keeper(Protocol):
    """Where records go: a `Journal`, or memory."""

    generations: list[Generation]

    def keep(self, generation: Generation) -> None: ...
    def check_room(self) -> None: ...


@dataclass
class Runner:
    """Measures a pair with all methods of a plan."""

    plan: BenchPlan
    config: EngineConfig
    journal: Keeper
    score: Scorer
    on_progress: OnProgress
    energy: EnergyMeter = field(default_factory=EnergyMeter)
    num_other_cores: float = 0.0  # kept busy by other programs, in the busiest repeat
    facts: dict[str, str] = field(default_factory=dict)  # measured at the start: cost tables
    on_interrupt: Callable[[], object] = lambda: None  # told before anything is closed

    def run(self, prompts: Sequence[Prompt]) -> None:
        """Measure what the journal lacks. Raises DuodecError if the pair cannot be loaded."""
        entrants = [e for e in self.plan.entrants if not self._is_done_with_another_draft(e)]
        if not entrants:
            return
        self.on_progress(f"loading {self.config.target}", 0, len(prompts))
        with self._stage(entrants) as stage:
            self.facts.update(stage.facts)
            try:
                warm_ups, measured = self._record(stage, prompts)
                gc.freeze()  # as in a server: what is loaded is not walked over at each completion
                for repeat in range(self.plan.repeats):
                    self._repeat(stage, entrants, warm_ups, measured, repeat)
            except KeyboardInterrupt:
                self.on_interrupt()
                raise
            finally:
                gc.unfreeze()

    def _is_done_with_another_draft(self, entrant: Entrant) -> bool:
        """A method without a draft model is measured once a target."""
        if entrant.new().takes_draft_model:
            return False
        first = next(c for c in self.plan.pairs() if c.target == self.config.target)
        return first != self.config

    def _stage(self, entrants: Sequence[Entrant]) -> AbstractContextManager[Stage]:
        sampling = self.plan.sampling
        if self.plan.simulate_ms is not None:
            needs_model = any(entrant.new().takes_draft_model for entrant in entrants)
            return simulated_stage(self.config, self.plan, needs_model=needs_model)
        if self.plan.replay_ms is None:
            return real_stage(self.config, sampling)
        return replay_stage(
            self.config, sampling, self.plan.latency(), [entrant.new() for entrant in entrants]
        )

    def _record(
        self, stage: Stage, prompts: Sequence[Prompt]
    ) -> tuple[list[Conversation], list[Conversation]]:
        """Conversations to warm up with, and one a prompt."""
        engine, plan = stage.recorder, self.plan
        self.on_progress("recording plain text", 0, len(prompts))
        render = paper_named(plan.paper).render if plan.paper else None
        warm_ups: list[Conversation] = []
        if not plan.warm_ups:
            warm_ups += record(engine, [_WARM_UP], plan.sampling, WARM_UP_TOKENS, render)
        measured: list[Conversation] = []
        for conversation in record(
            engine, prompts, plan.sampling, plan.max_tokens, render, plan.short_tasks
        ):
            if plan.control == SHUFFLED:
                conversation = shuffled(conversation, engine.loaded.tokenizer.is_end)
            measured.append(conversation)
            self.on_progress("recording plain text", len(measured), len(prompts))
        for task, number in plan.warm_ups.items():
            warm_ups += [c for c in measured if c.prompt.task == task][:number]
        return warm_ups, measured

    def _repeat(
        self,
        stage: Stage,
        entrants: Sequence[Entrant],
        warm_ups: Sequence[Conversation],
        measured: Sequence[Conversation],
        repeat: int,
    ) -> None:
        costs = {entrant.label: Costs() for entrant in entrants}
        for entrant in entrants:  # only what is learned of costs is kept
            method = entrant.new()
            for number, warm_up in enumerate(warm_ups):
                self.on_progress(f"warm-up, {entrant.label}", number, len(warm_ups))
                answers = self._answers(
                    stage.bed_for(method), method, costs[entrant.label], warm_up
                )
                with suppress(DuodecError, _MethodFailed):  # what is measured fails likewise
                    for _ in answers:
                        pass
        methods = {entrant.label: entrant.new() for entrant in entrants}
        others = OtherPrograms()
        done = {generation.key for generation in self.journal.generations}
        for number, conversation in enumerate(measured):
            first = (number + repeat) % len(entrants)
            for entrant in (*entrants[first:], *entrants[:first]):
                method = methods[entrant.label]
                self.on_progress(
                    f"{conversation.prompt.task}, {entrant.label}",
                    repeat * len(measured) + number,
                    self.plan.repeats * len(measured),
                )
                blank = self._blanks(stage, entrant, method, conversation, repeat)
                is_known = all(generation.key in done for generation in blank)
                if is_known and not method.learns:
                    continue
                bed = stage.bed_for(method)
                self.journal.check_room()
                for generation in self._conversation(
                    bed, method, costs[entrant.label], conversation, blank
                ):
                    if generation.key not in done:
                        self.journal.keep(generation)
            self.num_other_cores = max(self.num_other_cores, others.num_cores)

    def _blanks(
        self,
        stage: Stage,
        entrant: Entrant,
        method: Method,
        conversation: Conversation,
        repeat: int,
    ) -> list[Generation]:
        """The records of a conversation, without measures."""
        prompt = conversation.prompt
        return [
            Generation(
                task=prompt.task,
                prompt_id=prompt.prompt_id,
                turn=number,
                method=entrant.label,
                target=self.config.target,
                draft=self.config.draft if method.takes_draft_model else None,
                repeat=repeat,
                test_bed=stage.bed_for(method).name,
                error=conversation.error,
            )
            for number in range(1, len(prompt.turns) + 1)
        ]

    def _conversation(
        self,
        bed: Bed,
        method: Method,
        costs: Costs,
        conversation: Conversation,
        blanks: Sequence[Generation],
    ) -> Iterator[Generation]:
        """The records of a conversation; those that fail say why."""
        if conversation.error:
            yield from blanks
            return
        answers = self._answers(bed, method, costs, conversation)
        for blank, turn in zip(blanks, conversation.turns, strict=True):
            try:
                answer, joules = next(answers)
            except (DuodecError, _MethodFailed) as error:
                yield replace(blank, error=str(error))
                answers = iter(())  # later turns would follow another text
                continue
            except StopIteration:
                yield replace(blank, error="an earlier turn failed")
                continue
            yield self._record_of(blank, bed, method, conversation.prompt, turn, answer, joules)

    def _answers(
        self, bed: Bed, method: Method, costs: Costs, conversation: Conversation
    ) -> Iterator[tuple[Finished, float | None]]:
        """Each turn's completion and the energy it took; only the first turn is cold."""
        bed.forget()
        for turn in conversation.turns:
            gc.collect()
            before = self.energy.read()
            try:
                answer = bed.answer(method, turn, costs)
            except Exception as error:
                if isinstance(error, DuodecError) or type(method).__module__.startswith("duodec."):
                    raise
                raise _MethodFailed(f"{method.name}: {type(error).__name__}: {error}") from error
            yield answer, self.energy.joules_since(before)

    def _record_of(
        self,
        blank: Generation,
        bed: Bed,
        method: Method,
        prompt: Prompt,
        turn: Turn,
        answer: Finished,
        joules: float | None,
    ) -> Generation:
        """A record with its measures."""
        stats = answer.stats
        is_sampled = self.plan.sampling.temperature > 0
        proves_text = bed.name == "real"  # others enforce the recorded text
        is_exempt = method.name == "sps-rejection" and is_sampled  # exact in distribution only
        is_identical = answer.tokens == turn.answer if proves_text and not is_exempt else None
        ceiling = stats.mean_accepted / bed.forward_s if bed.forward_s else None
        is_last = turn.number == len(prompt.turns)
        return replace(
            _measured(blank, stats),
            identical=is_identical,
            ceiling_tokens_per_second=ceiling,
            memory_bytes=resident_bytes(),
            energy_j=joules,
            score=self.score(prompt, answer.text) if is_last else None,
        )


def _measured(blank: Generation, stats: Stats) -> Generation:
    """A record with the measures of a completion's rounds and times."""
    begin_s = stats.begin_s
    return replace(
        blank,
        prompt_tokens=stats.num_prompt_tokens,
        new_tokens=stats.num_new_tokens,
        ttft_s=stats.ttft_s,
        decode_s=stats.decode_s,
        rounds=len(stats.rounds),
        mean_accepted=stats.mean_accepted,
        acceptance_histogram=stats.acceptance_histogram,
        sequence_histogram=stats.sequence_histogram,
        draft_tokens=stats.num_draft_tokens,
        accepted_tokens=stats.num_accepted_tokens,
        target_busy_s=sum(r.end_s - r.start_s for r in stats.rounds),
        draft_busy_s=sum(r.overlap_s + r.draft_wait_s for r in stats.rounds),
        overlap=stats.overlap,
        near_ties=stats.num_near_ties,
        drafter_restarts=stats.drafter_restarts,
        trace=[
            RoundTrace(
                start_s=r.start_s - begin_s,
                end_s=r.end_s - begin_s,
                num_tokens=len(r.tokens),
                num_accepted=r.num_accepted,
                num_scored=r.num_scored,
                draft_wait_s=r.draft_wait_s,
                overlap_s=r.overlap_s,
            )
            for r in stats.rounds
        ],
    )


@dataclass
class Memory:
    """A journal that is kept in memory only."""

    generations: list[Generation] = field(default_factory=list)

    def keep(self, generation: Generation) -> None:
        self.generations.append(generation)

    def check_room(self) -> None: ...


def simulate(plan: BenchPlan, prompts: Sequence[Prompt], on_progress: OnProgress) -> Results:
    """The simulated figures of a plan's methods. Raises DuodecError."""
    memory = Memory()
    facts: dict[str, str] = {}
    for config in plan.pairs():
        runner = Runner(plan, config, memory, score_text, on_progress)
        runner.run(prompts)
        facts.update(runner.facts)
    settings = plan.settings("duodec plan", "", [f"{p.task}/{p.prompt_id}" for p in prompts])
    return Results(memory.generations, {}, {**settings, **facts, "is_complete": True})
