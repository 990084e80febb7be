"""Check that `auto` is never slower than plain decoding where drafting cannot pay.

Each adversary is replayed, `ar` and `auto` in turn on cold prompts, as in `duodec bench`:

    python -m benchmarks adversaries --data FOLDER --limit 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from benchmarks import Figures
from duodec.backends.curves import CostCurve
from duodec.backends.drafter.process import ProcessDrafter, Recipe
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.backends.llamacpp.model import LlamaModel
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import warn
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.machine.core_plan import CorePlan
from duodec.machine.topology import Topology
from duodec.methods.registry import method as method_named
from duodec.models import resolve
from duodec.planning.costs import Costs
from duodec.testing import TableModel
from duodec_lab.bench.beds import Parts, ReplayBed
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.recording import Conversation, record, shuffled
from duodec_lab.bench.reports.statistics import ratio_of_rates
from duodec_lab.bench.tasks import TASKS, read_prompts

GREEDY = SamplingParams(seed=1)
CREATIVE = SamplingParams(temperature=1.2, seed=1)


@dataclass(frozen=True)
class Throttled:
    """A draft model whose forward passes take ten times as long. The drafter's process imports it
    from here."""

    recipe: LlamaRecipe
    pause_s: float = 0.0117  # nine times the shipped draft's time for one leaf

    def load(self) -> DraftModel:
        return _Slow(self.recipe.load(), self.pause_s)


@dataclass(eq=False)
class _Slow(DraftModel):
    model: DraftModel
    pause_s: float

    def rows(self, query: RowQuery) -> list[Row]:
        rows = self.model.rows(query)
        sleep(self.pause_s)
        return rows


@dataclass(frozen=True)
class Adversary:
    """The differences from the usual test bed."""

    name: str
    forward_ms: float = 25.0
    sampling: SamplingParams = GREEDY
    recipe: Callable[[LlamaRecipe, int], Recipe] = lambda recipe, num_vocab: recipe
    tasks: Sequence[str] = TASKS
    max_tokens: int = 96
    is_on_one_core: bool = False
    is_shuffled: bool = False  # the completions' tokens in a meaningless order


ADVERSARIES = (
    Adversary("none: the usual pair"),
    Adversary("a draft of random weights", recipe=lambda _, n: TableModel(num_vocab=n, seed=7)),
    Adversary(
        "shuffled text, a draft of random weights",
        recipe=lambda _, n: TableModel(num_vocab=n, seed=7),
        is_shuffled=True,
    ),
    Adversary("creative text, temperature 1.2", sampling=CREATIVE),
    Adversary("the drafter ten times slower", recipe=lambda recipe, _: Throttled(recipe)),
    Adversary("both sides on one core", is_on_one_core=True),
    Adversary("a target of 2 ms", forward_ms=2.0),
    Adversary("a target of 0.5 ms", forward_ms=0.5),
    Adversary("long prompts, 8 tokens", tasks=("summarization", "rag"), max_tokens=8),
)


def recordings(
    adversary: Adversary, engine: LLM, data: Path | None, limit: int
) -> list[Conversation]:
    prompts = read_prompts(data, adversary.tasks, limit)
    found = record(engine, prompts, adversary.sampling, adversary.max_tokens)
    kept = [c for c in found if c.turns and all(len(t.answer) > 2 for t in c.turns)]
    if adversary.is_shuffled:
        return [shuffled(conversation, engine.loaded.tokenizer.is_end) for conversation in kept]
    return kept


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 1,
    only: Annotated[str, typer.Option(help="Adversaries whose names contain this.")] = "",
) -> Figures:
    """The ratio of `auto` to `ar` for each adversary."""
    console = Console(stderr=True)
    topology = Topology.read()
    cores = topology.cores
    found: dict[str, dict[str, float]] = {}
    chosen = [a for a in ADVERSARIES if only in a.name]
    with load(EngineConfig(draft=None)) as engine:
        conversations = {a.name: recordings(a, engine, data, limit) for a in chosen}
        vocabulary, num_context = engine.loaded.tokenizer, engine.loaded.num_context
        assert isinstance(vocabulary, LlamaModel)
        plan = CorePlan.make(topology, target_is_on_cpu=False)
        real = LlamaRecipe(resolve("smollm2-draft").path, num_context, len(plan.draft_cores))
        for adversary in chosen:
            drafter_cores = cores[:1] if adversary.is_on_one_core else plan.draft_cores
            rest = tuple(c for c in cores if c not in plan.draft_cores) or cores
            with ProcessDrafter(
                adversary.recipe(real, vocabulary.num_vocab),
                cores=drafter_cores,
                num_threads=len(drafter_cores),
                on_warning=warn,
            ) as drafter:
                drafter.wait_ready()
                parts = Parts(vocabulary, num_context, drafter, None, adversary.sampling, rest)
                bed = ReplayBed(
                    parts, LatencyCurve(CostCurve.flat(adversary.forward_ms / 1e3), prefill_s=1e-4)
                )
                found[adversary.name] = _compare(bed, conversations[adversary.name], console)
            ratio = found[adversary.name]
            print(
                f"{adversary.name:<34} {ratio['ratio']:.3f} "
                f"({ratio['low']:.3f} to {ratio['high']:.3f}), TTFT {ratio['ttft_ratio']:.3f}",
                flush=True,
            )
    return {"auto_to_ar": found}


def _compare(
    bed: ReplayBed, conversations: list[Conversation], console: Console
) -> dict[str, float]:
    """Tokens a second of `auto` over `ar`'s, in turn on each prompt."""
    methods = {name: method_named(name) for name in ("ar", "auto")}
    costs = {name: Costs() for name in methods}
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    ttft: dict[str, list[float]] = {name: [] for name in methods}
    prompts = []
    for number, conversation in enumerate(track(conversations, console=console)):
        names = list(methods)[:: 1 if number % 2 else -1]
        for name in names:
            bed.forget()
            for turn in conversation.turns:
                stats = bed.answer(methods[name], turn, costs[name]).stats
                new = stats.num_new_tokens - len(stats.rounds[0].tokens)
                rates[name].append((float(new), stats.decode_s))
                ttft[name].append(stats.ttft_s)
        prompts += [conversation.prompt.prompt_id] * len(conversation.turns)
    ratio = ratio_of_rates(rates["auto"], rates["ar"], prompts)
    return {
        "ratio": ratio.value,
        "low": ratio.value if ratio.low is None else ratio.low,
        "high": ratio.value if ratio.high is None else ratio.high,
        "ttft_ratio": sum(ttft["auto"]) / sum(ttft["ar"]),
    }
