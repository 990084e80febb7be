"""Give damaged model files to `doctor` and `generate`: each ends with one line, and in time.

    python -m stress.fuzz_gguf --count 2000 --journal FILE

The programs run in forks of this process, which has imported them once, and so does the trial of an
unknown file, within its own limits. Each file is damaged by its number alone (`damaged_gguf`): one
in fifty is the shipped draft, the others tiny models of four kinds. What counts as a failure: a
signal, a traceback, a status that is not ours, more than ten seconds of processor time, a minute by
the clock in which it was not stopped. The journal has a line a run, so it goes on where it ended. A
failure is kept in `found` and run again with `--again`; `--only NUMBER --keep FILE` makes its file.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn
from unittest.mock import ANY

from duodec.__main__ import main as _program
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.checks import load_probe
from duodec.loading import vetting
from duodec.models import resolve
from stress.damaged_gguf import Map, map_of, mutated
from stress.fuzzing import ended, keep, kept, publish

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes.tiny_models import (  # type: ignore[import-not-found]
    write_dense,
    write_hybrid,
    write_mixture,
)

_HUNG = -1000
_LIMIT_S = 60.0  # after which a program is called hung
_SLOW_S = 10.0
_STATUSES = {"doctor": (0, 2, 3), "generate": (0, 1, 2)}
_COMMANDS = (
    ("doctor", ["--draft", "none"]),
    ("generate", ["--max-tokens", "4", "--context", "256", "hello"]),
)
_NUM_VOCAB = 1024
_TINY: dict[str, Callable[[Path], Path]] = {
    "dense Q4_0": lambda path: write_dense(path, kind="Q4_0"),
    "dense Q8_0": lambda path: write_dense(path, kind="Q8_0"),
    "hybrid": lambda path: write_hybrid(path, num_vocab=_NUM_VOCAB),
    "mixture": lambda path: write_mixture(path, num_vocab=_NUM_VOCAB),
}
_EVERY = 50  # the shipped draft is one file in so many


@cache
def base(number: int) -> tuple[str, bytes, Map]:
    """The sound file that is damaged for this number modulo `_EVERY`."""
    if number == 0:
        name, data = "smollm2-draft", resolve("smollm2-draft").path.read_bytes()
    else:
        name = list(_TINY)[number % len(_TINY)]
        with tempfile.TemporaryDirectory() as folder:
            data = _TINY[name](Path(folder) / "model.gguf").read_bytes()
    return name, data, map_of(data)


def damaged(number: int) -> tuple[bytes, list[str]]:
    """The file of this number, and what was changed in which."""
    name, data, places = base(number % _EVERY and number % len(_TINY) + len(_TINY))
    changed, said = mutated(data, places, number)
    return changed, [name, *said]


@dataclass(frozen=True)
class Result:
    """How a program ended on a file."""

    number: int
    changes: list[str]
    command: str
    status: int
    seconds: float
    cpu_s: float  # its processor time: what a busy machine does not stretch
    words: str
    is_failure: bool


def attempts(number: int, folder: Path) -> Iterator[Result]:
    """Both programs on this file."""
    data, said = damaged(number)
    path = folder / f"{number}.gguf"
    path.write_bytes(data)
    for command, more in _COMMANDS:
        begin_s = time.perf_counter()
        with tempfile.TemporaryFile() as errors:
            status, cpu_s = _forked(
                [command, "-m", str(path), *more], errors.fileno(), folder / "cache"
            )
            errors.seek(0)
            words = errors.read().decode("utf-8", "replace").strip()
        seconds = time.perf_counter() - begin_s
        is_wrong = status not in _STATUSES[command] or "Traceback" in words
        yield Result(
            number, said, command, status, round(seconds, 2), round(cpu_s, 2), words[-400:],
            is_wrong or cpu_s > _SLOW_S,
        )  # fmt: skip
    path.unlink()


def _forked(arguments: list[str], errors: int, cache: Path) -> tuple[int, float]:
    """The exit status of the program, in a fork of this process, which has imported it, and its
    processor time; the status of a signal is negative."""
    child = os.fork()
    if not child:
        _program_in_fork(arguments, errors, cache)
    return ended(child, _LIMIT_S) or (_HUNG, 0.0)


def _program_in_fork(arguments: list[str], errors: int, cache: Path) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDWR)
    for own, given in ((0, nothing), (1, nothing), (2, errors)):
        os.dup2(given, own)
    os.environ.update(DUODEC_CACHE=str(cache), GGML_NO_BACKTRACE="1")
    sys.argv = ["duodec", *arguments]
    _leave(_program)


def warm() -> None:
    """Import what the programs import on a sound file; nothing is computed in this process."""
    folder = Path(tempfile.mkdtemp())  # no object whose end a fork would tidy up after
    (folder / "sound.gguf").write_bytes(base(len(_TINY))[1])
    for command, more in _COMMANDS:
        child = os.fork()
        if not child:
            atexit.register(lambda: (folder / "modules").write_text("\n".join(sys.modules)))
            _program_in_fork([command, "-m", str(folder / "sound.gguf"), *more], 2, folder)
        assert ended(child, _LIMIT_S) == (0, ANY), f"{command} fails on a sound file"
        for module in (folder / "modules").read_text().split():
            with suppress(ImportError, ValueError):  # made by others as they were imported
                importlib.import_module(module)
    shutil.rmtree(folder)


def tried(arguments: Sequence[str], log: IO[bytes], most_s: float) -> tuple[int, bytes]:
    """The trial of a file as `duodec.loading.vetting` has it, in a fork in place of a new process:
    the same program with the same limits, in a session of its own."""
    with tempfile.TemporaryFile() as out:
        child = os.fork()
        if not child:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for own, given in ((0, nothing), (1, out.fileno()), (2, log.fileno())):
                os.dup2(given, own)
            os.environ["DUODEC_LLAMA_LOG"] = "1"
            library._silence(library.load())  # which it is not any more
            _leave(lambda: load_probe.main(*arguments))
        found = ended(child, most_s)
        if found is None:
            raise subprocess.TimeoutExpired(list(arguments), most_s)
        out.seek(0)
        return found[0], out.read()


def _leave(program: Callable[[], object]) -> NoReturn:
    """Run a program in this fork and end it as the interpreter would."""
    try:
        program()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else error.code is not None
    except BaseException:  # noqa: BLE001  as the interpreter would
        traceback.print_exc()
        code = 1
    else:
        code = 0
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after")
    parser.add_argument("--journal", type=Path, default=Path("fuzz_gguf.jsonl"))
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", type=Path, help="write the file of --only there, and end")
    parser.add_argument("--again", action="store_true", help="what found something once")
    options = parser.parse_args()
    if options.keep:
        data, said = damaged(options.only)
        options.keep.write_bytes(data)
        print("; ".join(said))
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vetting._tried = tried
    library.load()
    warm()
    journal: Path = options.journal
    lines = journal.read_text().splitlines() if journal.exists() else []
    known = {json.loads(line)["number"] for line in lines}
    if options.again:
        numbers = [record["number"] for record in kept("gguf")]
    elif options.only is not None:
        numbers = [options.only]
    else:
        every = range(options.first, options.first + options.count)
        numbers = [number for number in every if number not in known]
    end_s = time.monotonic() + options.seconds
    folder = Path(tempfile.mkdtemp())  # no object whose end a fork would tidy up after
    with journal.open("a") as file:
        for number in numbers:
            if time.monotonic() > end_s:
                break
            results = list(attempts(number, folder))
            file.writelines(json.dumps(asdict(result)) + "\n" for result in results)
            file.flush()
            for result in results:
                if result.is_failure:
                    print("FAILED", result, flush=True)
                    words = f"{result.command} {result.status}: {result.words}"
                    keep("gguf", number, words, result.changes)
    shutil.rmtree(folder)
    found = summary(journal)
    publish("gguf", found)
    print(json.dumps(found, indent=1))
    if found["failures"]:
        raise SystemExit(1)


def summary(journal: Path) -> dict[str, Any]:
    """What a journal says, in few numbers; of a file that was run again, the last time."""
    every = [json.loads(line) for line in journal.read_text().splitlines()]
    results = list({(r["number"], r["command"]): r for r in every}.values())
    numbers = sorted({result["number"] for result in results})
    counts = Counter(f"{result['command']} {result['status']}" for result in results)
    bases = Counter(result["changes"][0] for result in results if result["command"] == "doctor")
    return {
        "seeds": [numbers[0], numbers[-1]],
        "num_files": len(numbers),
        "of": dict(sorted(bases.items())),
        "statuses": dict(sorted(counts.items())),
        "slowest_s": max(result["seconds"] for result in results),
        "slowest_cpu_s": max(result["cpu_s"] for result in results),
        "failures": [result for result in results if result["is_failure"]],
    }


if __name__ == "__main__":
    main()
