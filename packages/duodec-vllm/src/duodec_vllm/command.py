"""Run `duodec vllm`: vLLM's server with our drafter."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from duodec.cli.options import option
from duodec.cli.output import say
from duodec.errors import BackendUnavailable
from duodec.machine.install import install_command

_DRAFTER = "Drafter"
PROPOSER = "duodec_vllm.DuoProposer"
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # with it, vLLM's server shows its workers' metrics

EPILOG = """
Examples:
duodec vllm Qwen/Qwen2.5-7B-Instruct --draft hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_0
duodec vllm ~/models/big --draft ~/models/small.gguf --cores 8-15 -- --tensor-parallel-size 4

Arguments after `--` go to `vllm serve`. See docs/vllm.md.
"""


def vllm(
    target: Annotated[str, typer.Argument(help="The model that vLLM serves.", metavar="TARGET")],
    arguments: Annotated[list[str] | None, typer.Argument(
        help="More arguments of `vllm serve`.", metavar="[-- ARGUMENTS]"
    )] = None,
    draft: Annotated[str, option(
        "--draft -md MODEL",
        "The model that drafts for it: a GGUF file, hf:owner/repo[:quant], or an alias; none: "
        "drafts from earlier text only.", _DRAFTER
    )] = "none",
    cores: Annotated[str, typer.Option(
        help="The drafter's cores, such as 4-7,12; by default those that vLLM leaves.",
        metavar="LIST", show_default=False, rich_help_panel=_DRAFTER
    )] = "",
    threads: Annotated[int, typer.Option(
        help="Threads of the drafter; 0: one for each core, 8 at most.", rich_help_panel=_DRAFTER
    )] = 0,
    memory: Annotated[
        int, typer.Option(help="MiB of the drafter's cache.", rich_help_panel=_DRAFTER)
    ] = 1024,
    texts: Annotated[
        int, typer.Option(help="Requests to draft for at once.", rich_help_panel=_DRAFTER)
    ] = 32,
    num_speculative_tokens: Annotated[int, option(
        "--num-speculative-tokens -k", "Most draft tokens of a request.", _DRAFTER, min=1
    )] = 3,
    on_fault: Annotated[
        str, option("--on-fault", "If the drafter fails: continue, or refuse to start.", _DRAFTER)
    ] = "continue",
    dry_run: Annotated[bool, option("--dry-run", "Print the command and run nothing.")] = False,
) -> None:  # fmt: skip
    """Serve a model with vLLM while this machine's CPUs draft for it."""
    from duodec_vllm.opening import check_version
    from duodec_vllm.settings import Settings, parse_cores

    settings = Settings(draft, parse_cores(cores), threads, memory, texts, on_fault)
    words = command(target, num_speculative_tokens, arguments or [])
    variables = settings.environment()
    said = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    say(" ".join([*said, shlex.join(words)]), is_copied=True)
    if dry_run:
        return
    check_version()
    program = _program(words[0])
    if METRICS not in os.environ:
        variables[METRICS] = tempfile.mkdtemp(prefix="duodec-vllm-metrics-")
    sys.stdout.flush()
    os.execve(program, words, {**os.environ, **variables})  # noqa: S606  signals are vLLM's


def command(target: str, num_tokens: int, arguments: list[str]) -> list[str]:
    """vLLM's command line with our proposer."""
    speculation = {
        "method": "custom_class", "model": PROPOSER, "num_speculative_tokens": num_tokens,
    }  # fmt: skip
    return ["vllm", "serve", target, "--speculative-config", json.dumps(speculation), *arguments]


def _program(name: str) -> str:
    """The program in this environment, or else on the user's path."""
    neighbour = Path(sys.executable).parent / name
    found = str(neighbour) if neighbour.exists() else shutil.which(name)
    if found is None:
        raise BackendUnavailable(
            f"no program {name} next to {sys.executable}; run: {install_command('vllm')}"
        )
    return found
