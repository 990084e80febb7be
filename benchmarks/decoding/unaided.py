"""Compare methods on a machine without a GPU, and with llama.cpp's own server, on real clocks.

Chat completions of the same file over HTTP, one at a time; all settings take turns at each prompt.
The first request of a prompt at each server prefills it and gives the time to the first token; the
others find it cached and give tokens a second. A run has one temperature: `auto` would know another
one's responses to the same prompts. llama.cpp's server is that of the package xllamacpp, from
another environment:

    python -m benchmarks unaided --python OTHER/bin/python --data FOLDER --limit 5

Ctrl-C ends it after the prompts that are done.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import typer
from rich.progress import track

from benchmarks import Figures
from benchmarks.serving.servers import llama_cpp, ours
from benchmarks.serving.serving import Answer, Setting, ask
from duodec.machine.cores import available_cores
from duodec.models import resolve
from duodec_lab.bench.tasks import TASKS, Prompt, read_prompts

PLAIN = "ar"
LLAMA = "llama.cpp"
_SPECULATION = "params.speculative.types = [xllamacpp.common_speculative_type.{}]\n"
_NGRAM = _SPECULATION.format("COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE")
_DRAFT = (
    _SPECULATION.format("COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE")
    + "params.speculative.draft.mparams.path = {!r}\n"
    + "params.speculative.draft.n_max = {}\n"
)
_HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}


def completion(setting: Setting, prompt: Prompt, max_tokens: int, temperature: float) -> Answer:
    """The first turn of a conversation."""
    body = {
        "messages": [{"role": "user", "content": prompt.turns[0]}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": 1,
        **setting.body,
    }
    return asyncio.run(ask(setting.server, body, "chat/completions"))


def _settings(stack: ExitStack, python: Path, target: Path, drafts: dict[str, Path], context: int,
              methods: list[str], lengths: list[int]) -> list[Setting]:  # fmt: skip
    threads = len(available_cores())
    common = ("-m", str(target), "-c", str(context), "--parallel", "1")

    def theirs(name: str, lines: str = "") -> Setting:
        server = llama_cpp(
            python, target, num_context=context, num_slots=1, num_threads=threads, lines=lines
        )  # fmt: skip
        return Setting(name, stack.enter_context(server), {})

    plain = stack.enter_context(ours(*common, "-md", "none"))
    settings = [Setting(name, plain, {"speculation": {"method": name}}) for name in methods]
    for draft, path in drafts.items() or [("its own draft", Path("auto"))]:
        drafted = stack.enter_context(ours(*common, "-md", str(path)))
        # plain decoding there, too: each process has its luck with memory
        settings += [
            Setting(f"{PLAIN}, {draft}", drafted, {"speculation": {"method": PLAIN}}),
            Setting(f"auto, {draft}", drafted, {}),
        ]
    settings += [theirs(LLAMA), theirs(f"{LLAMA}, n-grams", _NGRAM)]
    for draft, path in drafts.items():
        for n_max in lengths:
            lines = _DRAFT.format(str(path), n_max)
            settings.append(theirs(f"{LLAMA}, {n_max} of {draft}", lines))
    return settings


def main(
    python: Annotated[Path, typer.Option(help="Of an environment with xllamacpp.")],
    target: Annotated[str, typer.Option("-m")] = "smollm2",
    drafts: Annotated[str, typer.Option(
        "-md", help="Comma-separated; none: ours alone, as the target's default.")] = "none",
    data: Annotated[Path | None, typer.Option(help="A folder of Spec-Bench's questions.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 5,
    max_tokens: Annotated[int, typer.Option()] = 64,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    context: Annotated[int, typer.Option()] = 4096,
    methods: Annotated[str, typer.Option(help="Of ours without a draft model, beside ar.")]
    = "lookup,recycling,auto",
    draft_lengths: Annotated[str, typer.Option(help="Of llama.cpp's drafts.")] = "3",
) -> Figures:  # fmt: skip
    """Tokens a second and times to the first token over plain decoding, by task and over all."""
    path = resolve(target).path
    paths = [] if drafts == "none" else [resolve(draft).path for draft in drafts.split(",")]
    named = {path.stem: path for path in paths}
    if len(named) < len(paths):
        raise typer.BadParameter(f"two drafts have one file name: {drafts}", param_hint="-md")
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        settings = _settings(
            stack, python, path, named, context, list(dict.fromkeys((PLAIN, *methods.split(",")))),
            [int(length) for length in draft_lengths.split(",")],
        )  # fmt: skip
        prompts = read_prompts(data, TASKS, limit)
        for setting in settings:  # what a process does once
            asyncio.run(ask(setting.server, {**_HELLO, **setting.body}, "chat/completions"))
        try:
            for number, prompt in enumerate(track(prompts, description="prompts")):
                rows += _turns(settings, number, prompt, max_tokens, temperature)
        except KeyboardInterrupt:
            if not rows:
                raise
            print(f"interrupted after {number} of {len(prompts)} prompts")
    return {"table": _table(rows), "rows": rows}


def _turns(
    settings: list[Setting], number: int, prompt: Prompt, max_tokens: int, temperature: float
) -> list[dict[str, Any]]:
    """One prompt by all settings, which another one begins each time."""
    first_s: dict[str, float] = {}
    shift = number % len(settings)
    by_turns = (*settings[shift:], *settings[:shift])
    for setting in by_turns:  # their first request here: nothing of the prompt is cached
        if setting.server.url not in first_s:
            first_s[setting.server.url] = completion(setting, prompt, 1, 0).ttft_s
    rows = []
    for setting in by_turns:
        run = completion(setting, prompt, max_tokens, temperature)
        rows.append(
            {
                "task": prompt.task,
                "prompt": prompt.prompt_id,
                "setting": setting.name,
                "cold_first_s": first_s[setting.server.url],
                "num_tokens": run.num_tokens,
                "rate": run.rate,
                "text": run.text,
            }
        )
    return rows


def _table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By setting; rates over plain decoding's are medians over prompts, of tasks' medians the
    geometric mean, times to the first token over plain decoding's the geometric mean over prompts.
    Prints it."""
    plain = {(row["task"], row["prompt"]): row for row in rows if row["setting"] == PLAIN}
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    firsts: dict[str, list[float]] = defaultdict(list)
    differing: dict[str, int] = defaultdict(int)
    for row in rows:
        name, expected = row["setting"], plain[row["task"], row["prompt"]]
        ratios[name][row["task"]].append(row["rate"] / expected["rate"])
        firsts[name].append(row["cold_first_s"] / expected["cold_first_s"])
        differing[name] += row["text"] != expected["text"]
    table = []
    for name, by_task in ratios.items():
        medians = {task: median(found) for task, found in by_task.items()}
        found = {
            "setting": name,
            "over_plain": geometric_mean(medians.values()),
            "by_task": medians,
            "first_over_plain": geometric_mean(firsts[name]),
            "num_other_texts": differing[name],
        }
        table.append(found)
        print(
            f"{name:<24} {found['over_plain']:5.2f}  first token after "
            f"{found['first_over_plain']:4.2f} of it, {found['num_other_texts']} other texts; "
            + ", ".join(f"{task} {ratio:.2f}" for task, ratio in medians.items())
        )
    return table
