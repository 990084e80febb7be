"""What the parts of the default method bring: `auto` as it is, and without one of them.

Replayed with real clocks: draft steps with flash attention, and a draft model that reads all of a
prompt before it drafts. On the simulated bed, where rows off the text exist: rows that teach only
on the accepted path, and none that teach.

    python -m benchmarks.decoding.ablation --data FOLDER --limit 1
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast
from unittest.mock import patch

import typer

from benchmarks import RESULTS
from benchmarks.decoding.eager import Eager
from benchmarks.decoding.windows import documents, prompts
from duodec.backends.curves import CostCurve
from duodec.backends.llamacpp.recipe import LlamaRecipe
from duodec.backends.testbeds import LatencyCurve
from duodec.bench.beds import Stage, replay_stage
from duodec.bench.card import environment
from duodec.bench.plan import BenchPlan
from duodec.bench.recording import Turn, record
from duodec.bench.simulation import SimulatedBed, simulated_stage
from duodec.bench.tasks import TASKS, read_prompts
from duodec.core.events import Finished
from duodec.core.protocols import Tokenizer
from duodec.core.sampling import SamplingParams
from duodec.loading import drafter
from duodec.loading.config import EngineConfig
from duodec.methods.registry import method as method_named
from duodec.planning.costs import Costs
from duodec.planning.sources import Lesson, TextSources

AS_IT_IS = "as it is"
RECIPES: dict[str, Callable[[LlamaRecipe], Any]] = {
    AS_IT_IS: lambda recipe: recipe,
    "flash attention in the draft": lambda recipe: replace(recipe, uses_flash_attention=True),
    "the draft reads everything first": Eager,
}
_lessons = TextSources.lessons
LESSONS: dict[str, Callable[..., Iterator[Lesson]]] = {
    AS_IT_IS: _lessons,
    "only the accepted path teaches": lambda *given, **more: _lessons(
        *given, **{**more, "budget_s": -1.0}
    ),
    "no row teaches": lambda *given, **more: iter(()),
}
SHORT = "short"


def main(
    data: Annotated[Path, typer.Option(help="A folder in Spec-Bench's format.")],
    limit: Annotated[int, typer.Option(help="Prompts a task, and of each size.")] = 1,
    sizes: Annotated[str, typer.Option(help="Tokens of long prompts, by commas.")] = "1500,4000",
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    latencies: Annotated[str, typer.Option(help="Milliseconds, by commas.")] = "25,50",
    draft_ms: Annotated[str, typer.Option(help="Simulated costs.")] = "1:2.2,4:4,8:7,16:9.8",
) -> None:
    """Print speeds over plain decoding, and write them down."""
    milliseconds = [float(latency) for latency in latencies.split(",")]
    found: dict[str, Any] = {"replayed": {}, "simulated": {}}
    with ExitStack() as stack:
        stages = {
            name: stack.enter_context(_replay(recipe, milliseconds[0] / 1e3))
            for name, recipe in RECIPES.items()
        }
        recorder = stages[AS_IT_IS].recorder
        params = SamplingParams(max_tokens=max_tokens)
        conversations = record(recorder, read_prompts(data, TASKS, limit), params, max_tokens)
        turns = {SHORT: [turn for talk in conversations for turn in talk.turns]}
        for size in filter(None, sizes.split(",")):
            turns[size] = [
                _answered(recorder, tokens, params)
                for tokens in prompts(recorder, documents(data), int(size), limit)
            ]
        for latency in milliseconds:
            found["replayed"][latency] = _replayed(stages, turns, latency / 1e3)
            print(latency, "ms, replayed", found["replayed"][latency], flush=True)
    for latency in milliseconds:
        plan = BenchPlan(
            methods=("auto",),
            targets=("smollm2",),
            data=data,
            max_tokens=max_tokens,
            simulate_ms=latency,
            draft_ms=draft_ms,
            config=EngineConfig(threads=1),
        )
        found["simulated"][latency] = _simulated(plan, turns[SHORT])
        print(latency, "ms, simulated", found["simulated"][latency], flush=True)
    settings = {"limit": limit, "max_tokens": max_tokens, "draft_ms": draft_ms}
    result = {"environment": environment(), "settings": settings, **found}
    (RESULTS / "ablation.json").write_text(json.dumps(result, indent=1))


@contextmanager
def _replay(recipe: Callable[[LlamaRecipe], Any], forward_s: float) -> Iterator[Stage]:
    def changed(target: Tokenizer, given: LlamaRecipe) -> Any:
        return recipe(given)

    config = EngineConfig(draft="smollm2-draft")
    curve = LatencyCurve(CostCurve.flat(forward_s), prefill_s=1e-4)
    with (
        patch.object(drafter, "recipe_for", changed),
        replay_stage(
            config, SamplingParams(), curve, [method_named("auto")], is_enforced=False
        ) as stage,
    ):
        yield stage


def _answered(recorder: Any, tokens: Sequence[int], params: SamplingParams) -> Turn:
    *_, last = recorder.stream(tokens, params, method="ar")
    assert isinstance(last, Finished)
    return Turn(1, tuple(tokens), last.tokens, last.text, params.max_tokens or 0)


def _replayed(
    stages: dict[str, Stage], turns: dict[str, list[Turn]], forward_s: float
) -> dict[str, dict[str, float]]:
    """By kind of prompt and variant, interleaved: tokens a second over those of `ar`."""
    found: dict[str, dict[str, float]] = {}
    for kind, several in turns.items():
        seconds: dict[str, float] = defaultdict(float)
        costs: dict[str, Costs] = defaultdict(Costs)
        for turn in several:
            for name, stage in (("ar", stages[AS_IT_IS]), *stages.items()):
                method = method_named("ar" if name == "ar" else "auto")
                bed = stage.bed_for(method)
                bed.curve = replace(bed.curve, forward_s=forward_s)  # type: ignore[attr-defined]
                bed.forget()
                seconds[name] += bed.answer(method, turn, costs[name]).stats.decode_s
        found[kind] = {name: seconds["ar"] / s for name, s in seconds.items() if name != "ar"}
    return found


def _simulated(plan: BenchPlan, turns: list[Turn]) -> dict[str, float]:
    """By variant: tokens a second over those of plain decoding."""
    found = {}
    with simulated_stage(plan.pairs()[0], plan, needs_model=True) as stage:
        plain_s = sum(len(turn.answer) - 1 for turn in turns) * cast(float, plan.simulate_ms) / 1e3
        for name, lessons in LESSONS.items():
            method = method_named("auto")
            bed = cast(SimulatedBed, stage.bed_for(method))
            costs = Costs()
            with patch.object(TextSources, "lessons", lessons):
                seconds = 0.0
                for turn in turns:
                    bed.forget()
                    seconds += bed.answer(method, turn, costs).stats.decode_s
            found[name] = plain_s / seconds
    return found


if __name__ == "__main__":
    typer.run(main)
