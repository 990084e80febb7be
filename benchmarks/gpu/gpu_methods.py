"""Run methods on a target with random weights that is made to say recorded texts, for `benchmarks
gpu`: forward passes, draws and the draft model's process are real, and so is acceptance."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.gpu.enforced import EnforcedTarget
from benchmarks.gpu.gpu_sections import Note
from duodec.backends.drafter.in_turns import DrafterInTurns
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.llamacpp import devices, library
from duodec.backends.llamacpp.model import LlamaModel
from duodec.core.drafters import Drafter
from duodec.core.round import Stats
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.targets import Candidates, Target
from duodec.core.tokenizers import Tokenizer
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import on_device, open_drafter
from duodec.loading.placing import Steps
from duodec.loading.profile import LEAVES, step_s
from duodec.loading.resolve import resolve_pair
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import available_cores
from duodec.machine.topology import Topology
from duodec.methods.registry import method as method_named
from duodec.planning.costs import Costs
from duodec_lab.bench.beds.base import answered, forget, on_cores
from duodec_lab.bench.recording import Turn, record
from duodec_lab.bench.tasks import TASKS, read_prompts

DRAFT = "smollm2-draft"  # ships with the package
TARGET = "smollm2"  # whose texts are recorded
_MAX_TOKENS = 96


def record_texts(path: Path, num_tasks: int = len(TASKS)) -> None:
    """The plain texts of our own prompts, one a task, with what was likely at each token."""
    with load(EngineConfig(target=TARGET, draft=None)) as llm:
        prompts = read_prompts(None, TASKS[:num_tasks], 1)
        recorded = record(llm, prompts, SamplingParams(), _MAX_TOKENS)
        turns = [turn for conversation in recorded for turn in conversation.turns[:1]]
    path.write_text(json.dumps([asdict(turn) for turn in turns]))


def read_texts(path: Path) -> list[Turn]:
    """Raises OSError."""
    turns = []
    for record_ in json.loads(path.read_text()):
        likely = tuple(Candidates(tuple(t), tuple(c)) for t, c in record_.pop("candidates"))
        prompt, answer = tuple(record_.pop("prompt_tokens")), tuple(record_.pop("answer"))
        turns.append(Turn(**record_, prompt_tokens=prompt, answer=answer, candidates=likely))
    return turns


@contextmanager
def drafting(num_context: int, plan: CorePlan) -> Iterator[tuple[LlamaModel, ProcessDrafter]]:
    """The draft model's vocabulary, which is that of the texts, and its process."""
    pair = resolve_pair(EngineConfig(target=DRAFT, draft=DRAFT, offline=True))
    with ExitStack() as stack:
        assert pair.draft is not None
        vocabulary = LlamaModel(pair.draft.path, vocabulary_only=True, num_gpu_layers=0)
        stack.callback(vocabulary.close)
        drafter = stack.enter_context(open_drafter(pair, vocabulary, num_context, plan))
        drafter.wait_ready()
        yield vocabulary, drafter


def core_plan(num_draft_threads: int | None = None) -> CorePlan:
    """Cores as a GPU leaves them; without one, what stands for it takes one core, too."""
    return CorePlan.make(
        Topology.read(), target_is_on_cpu=False, num_draft_threads=num_draft_threads
    )


@dataclass(frozen=True)
class Entrant:
    """A method on a target, with what drafts for it."""

    label: str
    method: str
    target: Target
    drafter: Drafter | None


def run_entrants(
    entrants: Sequence[Entrant],
    vocabulary: Tokenizer,
    num_context: int,
    turns: Sequence[Turn],
    note: Note,
) -> None:
    """Entrants take turns at each text, which is cold; each learns from text to text. The first one
    is plain decoding, which the others are compared with."""
    plan = core_plan()
    costs = {one.label: Costs() for one in entrants}
    stats: dict[str, list[Stats]] = {one.label: [] for one in entrants}
    plain = stats[entrants[0].label]
    for number, turn in enumerate(turns):
        first = number % len(entrants)
        for one in (*entrants[first:], *entrants[:first]):
            enforced = EnforcedTarget(one.target, turn.tokens, turn.candidates_by_position)
            engine = LLM(enforced, vocabulary, num_context, one.drafter, costs=costs[one.label])
            forget(one.target, one.drafter)
            method = method_named(one.method)
            with on_cores(plan.launch_cores):
                done = answered(engine, SamplingParams(), method, turn, len(turn.answer))
            assert done.tokens == turn.answer, f"{one.label} did not say the recorded text"
            stats[one.label].append(done.stats)
        note("methods", {label: _figures(own, plain) for label, own in stats.items()})


def same_texts(
    target: Target,
    vocabulary: Tokenizer,
    drafter: Drafter | None,
    num_context: int,
    turn: Turn,
    names: Sequence[str],
    temperature: float,
) -> dict[str, Any]:
    """Whether methods that decode freely have plain decoding's text, and how much was drafted."""
    params = SamplingParams(temperature=temperature, seed=1)
    found: dict[str, Any] = {}
    plain: tuple[int, ...] = ()
    for name in ("ar", *names):
        forget(target, drafter)
        engine = LLM(target, vocabulary, num_context, drafter, costs=Costs())
        done = answered(engine, params, method_named(name), turn, len(turn.answer))
        plain = plain or done.tokens
        found[name] = {
            "equal": done.tokens == plain,
            "tokens": len(done.tokens),
            "drafted": sum(each.num_scored for each in done.stats.rounds),
            "accepted": sum(each.num_accepted for each in done.stats.rounds),
        }
    return found


def _used_mib() -> int | None:
    """Of the first GPU's memory; None without one."""
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    command = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    lines = done.stdout.split()
    return int(lines[0]) if done.returncode == 0 and lines and lines[0].isdigit() else None


def _figures(stats: Sequence[Stats], plain: Sequence[Stats]) -> dict[str, Any]:
    gaps = [
        later.start_s - earlier.end_s - later.draft_wait_s
        for s in stats
        for earlier, later in zip(s.rounds, s.rounds[1:], strict=False)
    ]
    decode_s, plain_s = (sum(s.decode_s for s in many) for many in (stats, plain))
    num_tokens = sum(s.num_new_tokens - len(s.rounds[0].tokens) for s in stats)
    return {
        "texts": len(stats),
        "tokens_per_second": num_tokens / decode_s,
        "times_plain": plain_s / decode_s,  # the texts are the same
        "times_plain_of_each": [p.decode_s / s.decode_s for p, s in zip(plain, stats, strict=True)],
        "tokens_a_pass": num_tokens / sum(len(s.rounds) - 1 for s in stats),
        "forward_s": median(s.median_forward_s for s in stats),
        "gap_s": median(gaps),
        "gap_p90_s": quantiles(gaps, n=10)[-1],
        "ttft_s": median(s.ttft_s for s in stats),
        "overlap": median(s.overlap for s in stats),
    }


def draft_steps(turn: Turn, note: Note, *, is_on_card: bool) -> None:
    """d(k) of the drafter in its process, by threads; and of the draft model on the card."""
    num_cores = max(1, len(available_cores()) - 1)
    for num_threads in [n for n in (1, 2, 4, 8) if n <= num_cores]:
        plan = core_plan(num_threads)
        before = _used_mib()
        with drafting(2048, plan) as (_, drafter):
            steps = {str(leaves): step_s(drafter, turn.tokens, leaves) for leaves in LEAVES}
            if before is not None:
                steps["MiB of the card that its process takes"] = (_used_mib() or before) - before
        note(f"{num_threads} threads", steps)
    with drafting_on_card(2048, is_on_card=is_on_card) as (_, on_card):
        steps_there = Steps.of(on_card)
    where = "on the card" if is_on_card else "in turns on the CPU: no GPU is seen"
    note(where, asdict(steps_there) if steps_there else {"error": "it did not draft"})


@contextmanager
def drafting_on_card(
    num_context: int, *, is_on_card: bool
) -> Iterator[tuple[LlamaModel, DrafterInTurns]]:
    """The same with the draft model in this process, on the card if there is one."""
    pair = resolve_pair(EngineConfig(target=DRAFT, draft=DRAFT, offline=True))
    with ExitStack() as stack:
        assert pair.draft is not None
        vocabulary = LlamaModel(pair.draft.path, vocabulary_only=True, num_gpu_layers=0)
        stack.callback(vocabulary.close)
        on = devices.every(library.load()) if is_on_card else ()
        drafter = on_device(pair, vocabulary, num_context, core_plan(), tuple(on[:1]))
        yield vocabulary, stack.enter_context(drafter)
