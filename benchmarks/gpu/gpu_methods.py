"""Run methods on a target with random weights that is made to say recorded texts, for `benchmarks
gpu`: forward passes, draws and the draft model's process are real, and so is acceptance."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.gpu.enforced import EnforcedTarget
from benchmarks.gpu.gpu_sections import Note
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.loaded import RunningTarget
from duodec.bench.beds.base import answered, forget, on_cores
from duodec.bench.recording import Turn, record
from duodec.bench.tasks import TASKS, read_prompts
from duodec.core.protocols import Candidates
from duodec.core.round import Stats
from duodec.core.sampling.sampler import SamplingParams
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import open_drafter
from duodec.loading.profile import LEAVES, step_s
from duodec.loading.resolve import resolve_pair
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import available_cores
from duodec.machine.topology import Topology
from duodec.methods.registry import method as method_named
from duodec.planning.costs import Costs

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


def run_methods(
    target: RunningTarget,
    num_context: int,
    turns: Sequence[Turn],
    names: Sequence[str],
    plan: CorePlan,
    note: Note,
) -> None:
    """Methods take turns at each text, which is cold; each learns from text to text."""
    methods = {name: method_named(name) for name in names}
    costs = {name: Costs() for name in names}
    stats: dict[str, list[Stats]] = {name: [] for name in names}
    before = _used_mib()
    with drafting(num_context, plan) as (vocabulary, drafter):
        if before is not None:
            note("GPU memory that the drafter takes, MiB", (_used_mib() or before) - before)
        for number, turn in enumerate(turns):
            enforced = EnforcedTarget(target, turn.tokens, turn.candidates_by_position)
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                engine = LLM(enforced, vocabulary, num_context, drafter, costs=costs[name])
                forget(target, drafter)
                with on_cores(plan.launch_cores):
                    done = answered(engine, SamplingParams(), methods[name], turn, len(turn.answer))
                assert done.tokens == turn.answer, f"{name} did not say the recorded text"
                stats[name].append(done.stats)
            note("methods", {name: _figures(stats[name], stats[names[0]]) for name in names})


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


def draft_steps(turn: Turn, note: Note) -> None:
    """d(k) of the drafter in its process, by threads."""
    num_cores = max(1, len(available_cores()) - 1)
    for num_threads in [n for n in (1, 2, 4, 8, 15) if n <= num_cores]:
        plan = core_plan(num_threads)
        with drafting(2048, plan) as (_, drafter):
            steps = {str(leaves): step_s(drafter, turn.tokens, leaves) for leaves in LEAVES}
        note(f"{num_threads} threads", steps)
