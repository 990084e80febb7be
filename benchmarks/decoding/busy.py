"""Decode on a CPU whose cores other programs use, without a draft model and with one in turns.

Each engine decodes the same prompts by turns, alone and while other programs never wait. A draft
model that is named is used whatever the load; one that `auto` finds by itself is left out where
cores are busy when it is loaded.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated

import typer
from rich.progress import track

from benchmarks import Figures
from duodec import LLM, SamplingParams
from duodec.methods.method import Method
from duodec.methods.registry import method
from duodec_lab.bench.tasks import TASKS, read_prompts

PLAIN = "plain"
# Nobody's child: the time of children counts as ours, which no thread of ours yields to.
_SPIN = """
import os
if child := os.fork():
    print(child)
    os._exit(0)
os.close(1)
while True: pass
"""


@contextmanager
def busy(num_programs: int) -> Iterator[None]:
    """So many programs that never wait, each on whatever core it gets."""
    command = [sys.executable, "-uc", _SPIN]
    programs = [int(subprocess.check_output(command)) for _ in range(num_programs)]
    try:
        yield
    finally:
        for program in programs:
            os.kill(program, signal.SIGKILL)


def main(
    target: Annotated[str, typer.Option("-m")] = "qwen2.5-coder-1.5b",
    draft: Annotated[str, typer.Option("-md", help="The draft model in turns.")] = (
        "qwen2.5-coder-0.5b"
    ),
    data: Annotated[Path | None, typer.Option(help="A folder of Spec-Bench's questions.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 1,
    max_tokens: Annotated[int, typer.Option()] = 64,
    programs: Annotated[str, typer.Option(help="Numbers of busy programs.")] = "0,1,2",
) -> Figures:
    """Tokens a second of `auto`, over plain decoding of the same prompt at the same load."""
    prompts = read_prompts(data, TASKS, limit)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    rates: dict[str, dict[str, list[float]]] = {}
    tasks: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(LLM.load(target, model, context=4096))
            for name, model in (("without", None), (draft, draft))
        }
        for num in map(int, programs.split(",")):
            # What was learned at another load is not used at this one.
            methods = {name: method("auto") for name in engines}
            found: dict[str, list[float]] = defaultdict(list)
            by_task: dict[str, list[float]] = defaultdict(list)
            with busy(num):
                for prompt in track(prompts, f"{num} busy programs", transient=True):
                    text = prompt.turns[0]
                    plain = _rate(engines["without"], text, params, method("ar"))
                    found[PLAIN].append(plain)
                    for name, engine in engines.items():
                        rate = _rate(engine, text, params, methods[name])
                        found[name].append(rate)
                        by_task[f"{name}, {prompt.task}"].append(rate / plain)
            rates[str(num)], tasks[str(num)] = dict(found), dict(by_task)
            for name in engines:
                ratio = geometric_mean(
                    a / p for a, p in zip(found[name], found[PLAIN], strict=True)
                )
                print(
                    f"{num} busy programs, {name}: {ratio:.2f} times plain decoding, "
                    f"{median(found[name]):.1f} tokens/s for {median(found[PLAIN]):.1f}"
                )
    return {"tokens_per_second": rates, "over_plain_by_task": tasks, "prompts": len(prompts)}


def _rate(llm: LLM, prompt: str, params: SamplingParams, method: Method) -> float:
    """Tokens a second of decoding, without the prefill of the prompt."""
    return llm.chat(prompt, params, method=method).stats.tokens_per_second
