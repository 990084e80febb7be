"""Press Ctrl-C at moments of every kind: does each command end within a second, with one line?

    python -m stress.interrupts --data FOLDER

Seconds after the start are those of a quiet machine with two cores; a command that had ended by
then is named, and no failure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Annotated

import typer
from benchmarks import RESULTS
from tests.models.weights import weights

from duodec.machine.signals import INTERRUPTED
from stress.attackers import explosive

_MOST_S = 1.0
_LARGE = weights("qwen2.5-coder-1.5b")
_MOMENTS = (  # what it is doing, the seconds after its start, the command
    ("importing", 0.1, "models"),
    ("importing", 0.3, "generate hi"),
    ("loading", 1.0, f"generate -m {_LARGE} hi"),
    ("loading", 1.5, f"generate -m {_LARGE} hi"),
    ("reading a prompt", 6.0, f"generate -m {_LARGE} --raw --draft none @long.txt"),
    ("compiling a grammar", 1.2, "generate --json-schema schema.json hi"),
    ("compiling a grammar", 1.8, "generate --json-schema schema.json hi"),
    ("decoding", 3.0, "generate --draft smollm2-draft --temperature 1.3 -n 4000 hi"),
    ("diagnosing", 1.5, "doctor"),
    ("measuring", 3.0, "profile"),
    ("showing", 3.0, "demo"),
    ("benchmarking", 3.0, "bench --limit 2 --output a @data"),
    ("benchmarking", 12.0, "bench --limit 2 --output b @data"),
    ("replaying", 8.0, "bench --limit 2 --replay-ms 25 --output c @data"),
    ("simulating", 8.0, "bench --limit 2 --simulate-ms 25 --output d @data"),
    ("reporting", 0.7, "report @results"),
    ("reporting", 1.5, "report @results --output r.html"),
    ("showing", 9.0, "demo -n 400"),
    ("loading to serve", 1.5, f"serve --port 0 -m {_LARGE}"),
    ("serving", 5.0, "serve --port 0"),
)


def main(
    data: Annotated[Path, typer.Option(help="Prompts, in Spec-Bench's format.")],
    only: Annotated[str, typer.Option(help="Moments whose names hold this.")] = "",
) -> None:
    """Print a line a moment; status 1 if one took longer, or showed a traceback."""
    failures = 0
    with TemporaryDirectory() as folder:
        schema = explosive(0)
        schema["allOf"] = schema["allOf"][:16]  # a second's work
        (Path(folder) / "schema.json").write_text(json.dumps(schema))
        words = {
            "@long.txt": ["The quick brown fox jumps. " * 1500],
            "@data": ["--data", str(data.absolute())],
            "@results": [str(RESULTS.absolute() / "evaluation-25ms.json")],
        }
        for name, at_s, line in _MOMENTS:
            if only in name:
                command = [w for word in line.split() for w in words.get(word, [word])]
                failures += _press(name, at_s, command, folder)
    raise SystemExit(min(failures, 1))


def _press(name: str, at_s: float, command: list[str], folder: str) -> bool:
    """Whether it did not end as it should."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even as a job in the background
    process = subprocess.Popen(
        [sys.executable, "-m", "duodec", *command], cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    sleep(at_s)
    has_ended = process.poll() is not None
    begin_s = perf_counter()
    if not has_ended:
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    seconds = perf_counter() - begin_s
    status = 0 if command[0] == "serve" else INTERRUPTED
    is_right = process.returncode == status and seconds <= _MOST_S and b"Traceback" not in err
    told = "ended before" if has_ended else "pass" if is_right else "FAIL"
    last = err.decode().strip().rpartition("\n")[2][-80:]
    print(f"{told:5} {name:20} {seconds:5.2f} s, status {process.returncode}: {last}", flush=True)
    return not (has_ended or is_right)


if __name__ == "__main__":
    typer.run(main)
