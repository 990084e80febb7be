"""Give damaged model files to `doctor` and `generate`: each ends with one line, and in time.

    python -m benchmarks.fuzz_gguf --count 2000 --jobs 2 --output DIR

The programs run in forks of this process, which has imported them once.

Each file is the shipped draft with a few changes that follow from its number alone: values and
types in the header, lengths of arrays and texts, records of tensors, their bytes, a cut end. What
counts as a failure: a signal, a traceback, a status that is not ours, more than ten seconds of
processor time, a minute by the clock. `results.jsonl` has a line a run, so it goes on where it
ended; a failure's file is made again with `--only NUMBER --keep`.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duodec.cli.doctor
import duodec.loading  # noqa: F401
from benchmarks import RESULTS
from duodec.__main__ import main as _program
from duodec.bench.card import environment
from duodec.models import resolve

_HUNG = -1000
_LIMIT_S = 60.0  # after which a program is called hung
_SLOW_S = 10.0
_STATUSES = {"doctor": (0, 2, 3), "generate": (0, 1, 2)}
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_VALUES = (0, 1, 2, 3, 7, 127, 128, 255, 256, 4095, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
           1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-38, 1e38, 2.0)


@dataclass(frozen=True)
class Field:
    """A place in the file that holds a number of so many bytes."""

    name: str
    at: int
    size: int
    is_float: bool = False


@dataclass(frozen=True)
class Map:
    """Where the draft's file has what."""

    values: list[Field]  # of the header's entries
    types: list[Field]
    lengths: list[Field]  # of arrays and texts
    records: list[Field]  # of tensors: dimensions, types, offsets
    header_end: int


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


def map_of(data: bytes) -> Map:
    """Read the file once; it is sound."""
    found = Map([], [], [], [], 0)
    num_tensors, num_entries = struct.unpack_from("<QQ", data, 8)
    found.lengths.extend([Field("tensors", 8, 8), Field("entries", 16, 8)])
    at = 24

    def text(name: str) -> str:
        nonlocal at
        (size,) = struct.unpack_from("<Q", data, at)
        found.lengths.append(Field(name, at, 8))
        at += 8 + size
        return data[at - size : at].decode("utf-8", "replace")

    for _ in range(num_entries):
        key = text("a key's length")
        kind = struct.unpack_from("<I", data, at)[0]
        found.types.append(Field(f"{key} type", at, 4))
        at += 4
        if kind == _STRING:
            text(f"{key} length")
        elif kind == _ARRAY:
            inner, size = struct.unpack_from("<IQ", data, at)
            found.types.append(Field(f"{key} element type", at, 4))
            found.lengths.append(Field(f"{key} size", at + 4, 8))
            at += 12
            if inner == _STRING:
                for i in range(size):
                    if i < 20:
                        text(f"{key}[{i}] length")
                    else:
                        at += 8 + struct.unpack_from("<Q", data, at)[0]
            else:
                width = _SIZES[inner]
                for i in range(min(size, 3)):
                    found.values.append(Field(f"{key}[{i}]", at + i * width, width))
                at += size * width
        else:
            found.values.append(Field(key, at, _SIZES[kind], kind in (6, 12)))
            at += _SIZES[kind]
    for _ in range(num_tensors):
        name = text("a tensor's name")
        (num_dimensions,) = struct.unpack_from("<I", data, at)
        found.records.append(Field(f"{name} dimensions", at, 4))
        at += 4
        for i in range(num_dimensions):
            found.records.append(Field(f"{name} dimension {i}", at + 8 * i, 8))
        at += 8 * num_dimensions
        found.records.append(Field(f"{name} type", at, 4))
        found.records.append(Field(f"{name} offset", at + 4, 8))
        at += 12
    return Map(found.values, found.types, found.lengths, found.records, at)


def mutated(data: bytes, places: Map, number: int) -> tuple[bytes, list[str]]:
    """The file of this number, and what was changed."""
    dice = random.Random(number)
    changed, said = bytearray(data), []

    def put(field: Field) -> None:
        if field.is_float and dice.random() < 0.7:
            value = dice.choice(_FLOATS)
            struct.pack_into("<f" if field.size == 4 else "<d", changed, field.at, value)
            said.append(f"{field.name} = {value}")
            return
        old = int.from_bytes(data[field.at : field.at + field.size], "little")
        near = dice.choice((old - 1, old + 1, 2 * old, old // 2, old ^ (1 << dice.randrange(32))))
        new = (near if dice.random() < 0.5 else dice.choice(_VALUES)) % (1 << (8 * field.size))
        changed[field.at : field.at + field.size] = new.to_bytes(field.size, "little")
        said.append(f"{field.name} = {new}")

    def bytes_in(begin: int, end: int) -> None:
        size = min(dice.choice((1, 2, 8, 64, 4096, 1 << 20)), end - begin)
        at = dice.randrange(begin, end - size + 1)
        fill = dice.choice((b"\x00" * size, b"\xff" * size, dice.randbytes(size)))
        changed[at : at + size] = fill
        said.append(f"{size} bytes at {at}")

    def cut() -> None:
        size = dice.choice((dice.randrange(places.header_end), dice.randrange(len(data))))
        del changed[size:]
        said.append(f"cut at {size}")

    kinds: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: put(dice.choice(places.values))),
        (2, lambda: put(dice.choice(places.types))),
        (4, lambda: put(dice.choice(places.lengths))),
        (4, lambda: put(dice.choice(places.records))),
        (2, lambda: bytes_in(0, places.header_end)),
        (4, lambda: bytes_in(places.header_end, len(data))),
        (1, cut),
    ]
    weights = [weight for weight, _ in kinds]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if len(changed) == len(data):  # nothing lies beyond a cut
            dice.choices(kinds, weights)[0][1]()
    return bytes(changed), said


def attempts(number: int, data: bytes, said: list[str], folder: Path) -> Iterator[Result]:
    """Both programs on this file."""
    path = folder / f"{number}.gguf"
    path.write_bytes(data)
    for command, more in (
        ("doctor", ["--draft", "none"]),
        ("generate", ["--max-tokens", "4", "--context", "256", "hello"]),
    ):
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
    if child:
        end_s = time.perf_counter() + _LIMIT_S
        while not (ended := os.wait4(child, os.WNOHANG))[0]:
            if time.perf_counter() > end_s:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return _HUNG, 0.0
            time.sleep(0.005)
        _, status, used = ended
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for own, given in ((0, nothing), (1, nothing), (2, errors)):
            os.dup2(given, own)
        os.environ.update(DUODEC_CACHE=str(cache), GGML_NO_BACKTRACE="1")
        sys.argv = ["duodec", *arguments]
        _program()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else error.code is not None
    except BaseException:  # noqa: BLE001  as the interpreter would
        traceback.print_exc()
        code = 1
    else:
        code = 0
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after")
    parser.add_argument("--output", type=Path, required=True, help="of the journal")
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", action="store_true", help="write the file of --only, and end")
    options = parser.parse_args()
    data = resolve("smollm2-draft").path.read_bytes()
    places = map_of(data)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.only is not None and options.keep:
        changed, said = mutated(data, places, options.only)
        (options.output / f"{options.only}.gguf").write_bytes(changed)
        print("; ".join(said))
        return
    journal = options.output / "results.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    known = {json.loads(line)["number"] for line in lines}
    numbers = [options.only] if options.only is not None else [
        n for n in range(options.first, options.first + options.count) if n not in known
    ]  # fmt: skip
    end_s = time.perf_counter() + options.seconds

    def work(numbers: list[int]) -> None:
        folder = Path(tempfile.mkdtemp())  # no object whose end a fork would tidy up after
        with journal.open("a") as file:
            for number in numbers:
                if time.perf_counter() > end_s:
                    break
                changed, said = mutated(data, places, number)
                for result in attempts(number, changed, said, folder):
                    file.write(json.dumps(asdict(result)) + "\n")
                    if result.is_failure:
                        print("FAILED", result, flush=True)
                file.flush()
        shutil.rmtree(folder)

    jobs = []
    for i in range(options.jobs):
        if not (job := os.fork()):
            work(numbers[i :: options.jobs])
            os._exit(0)
        jobs.append(job)
    for job in jobs:
        os.waitpid(job, 0)
    found = summary(journal)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "fuzz_gguf.json").write_text(json.dumps(found, indent=1))
    print(json.dumps({k: v for k, v in found.items() if k != "environment"}, indent=1))
    if found["failures"]:
        raise SystemExit(1)


def summary(journal: Path) -> dict[str, Any]:
    """What a journal says, in few numbers."""
    results = [json.loads(line) for line in journal.read_text().splitlines()]
    numbers = sorted({result["number"] for result in results})
    counts = Counter(f"{result['command']} {result['status']}" for result in results)
    return {
        "environment": environment(),
        "seeds": [numbers[0], numbers[-1]],
        "num_files": len(numbers),
        "statuses": dict(sorted(counts.items())),
        "slowest_s": max(result["seconds"] for result in results),
        "slowest_cpu_s": max(result["cpu_s"] for result in results),
        "failures": [result for result in results if result["is_failure"]],
    }


if __name__ == "__main__":
    main()
