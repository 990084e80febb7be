"""Run one experiment: python -m benchmarks NAME [OPTIONS] [--result FILE]

Without a name it lists them. What one finds is written to benchmarks/results/NAME.json, or to
FILE.json there: the question, the command, the machine, the settings, and the figures.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from benchmarks import RESULTS, Figures, Refuted
from benchmarks.table import EXPERIMENTS, Experiment
from duodec_lab.bench.card import environment

_RESULT = "--result"


def listed() -> str:
    """The experiments, one a line."""
    width = max(map(len, EXPERIMENTS))
    return "\n".join(
        f"{one.name:<{width}}  {one.question} (docs/{one.page})" for one in EXPERIMENTS.values()
    )


def recorded(
    experiment: Experiment, function: Callable[..., Figures | None], command: str, result: str
) -> Callable[..., None]:
    """The function, whose figures are written down. It takes the same options."""

    @wraps(function)
    def run(**settings: Any) -> None:
        fault: Refuted | None = None
        try:
            figures = function(**settings)
        except Refuted as error:
            figures, fault = error.figures, error
        if figures is not None:
            record = {
                "experiment": experiment.name,
                "question": experiment.question,
                "command": command,
                "commit": commit(),
                "environment": environment(),
                "settings": {name: _named(value) for name, value in settings.items()},
                "figures": figures,
            }
            path = RESULTS / f"{result}.json"
            text = json.dumps(record, indent=1, ensure_ascii=False, default=str)
            path.write_text(text + "\n", "utf-8")
            print(f"written to {path}")
        if fault is not None:
            sys.exit(f"{experiment.name}: {fault}")

    return run


def commit() -> str | None:
    """Of the tree that is measured, with a plus where files of it have changed since."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=RESULTS, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _named(value: Any) -> Any:
    """A path, or several by commas, without the folders of this machine."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, str) and value.startswith("/"):
        return ",".join(Path(one).name for one in value.split(","))
    return value


def main(arguments: Sequence[str]) -> None:
    """Run an experiment, or list them."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{(__doc__ or '').strip()}\n\n{listed()}")
        return
    name, *options = arguments
    if name not in EXPERIMENTS:
        near = get_close_matches(name, EXPERIMENTS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose from: {', '.join(EXPERIMENTS)}"
        sys.exit(f"there is no experiment {name}; {hint}")
    command = shlex.join(["python", "-m", "benchmarks", *map(_named, arguments)])
    result = name
    if _RESULT in options:
        place = options.index(_RESULT)
        result = "".join(options[place + 1 : place + 2])
        if not result or result.startswith("-"):
            sys.exit(f"{_RESULT} needs a name; write, say, {_RESULT} {name}-2")
        del options[place : place + 2]
    experiment = EXPERIMENTS[name]
    module = import_module(f"benchmarks.{experiment.module}")
    function = vars(module)[experiment.function]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with it
    app = typer.Typer(add_completion=False)
    app.command()(recorded(experiment, function, command, result))
    app(options, prog_name=f"python -m benchmarks {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
