"""Score completions: equal texts have equal scores.

A mathematical answer is compared with the reference number, and a function is run against its
tests (HumanEval's pass@1). Only `score_text_and_code` runs code that a model wrote.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

from duodec.errors import BackendUnavailable
from duodec_lab.bench.tasks import CodeTask, Prompt, final_number

Scorer = Callable[[Prompt, str], bool | None]
"""Whether an answer is right; None if the prompt has no reference answer."""

_BLOCK = re.compile(r"^[ \t]*(```|~~~)[^\n`]*\n(.*?)(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)

# The process that runs an answer: its limits are set before it reads the answer, and it writes the
# token only if all of it ran to the end.
_RUNNER = """
import json, os, sys, types

program = json.load(open("program.json", encoding="utf-8"))
verdict = open("verdict", "wb", buffering=0)
os.chdir("empty")

try:
    import resource
except ImportError:
    resource = None
for name, value in program["limits"].items():
    kind = getattr(resource, name, None)
    if kind is not None:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):
            pass  # named by this platform, but not set

refused = ("os.chmod", "os.chown", "os.exec", "os.fork", "os.kill", "os.posix_spawn",
           "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.system", "os.truncate",
           "shutil.", "socket.", "subprocess.")

def refuse(event, arguments):
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event.startswith(refused):
        raise PermissionError(event + " is refused to an answer")

verdict.write(b"started ")
sys.addaudithook(refuse)
answer = sys.modules["answer"] = types.ModuleType("answer")
for part in program["parts"]:
    exec(compile(part, "answer", "exec"), answer.__dict__)
answer.check(getattr(answer, program["entry_point"]))
verdict.write(program["token"].encode())
"""


def score_text(prompt: Prompt, answer: str) -> bool | None:
    """Score without running code: only math_reasoning has scores."""
    if prompt.task != "math_reasoning" or prompt.reference is None:
        return None
    return score_math(answer, prompt.reference)


def score_text_and_code(prompt: Prompt, answer: str) -> bool | None:
    """Score, and also run the code written for humaneval; see `score_code`."""
    return score_text(prompt, answer) if prompt.code is None else score_code(answer, prompt.code)


def score_math(answer: str, reference: str) -> bool:
    """GSM8K's exact match: the final number of the answer equals the reference's. An answer without
    a number, such as a truncated one, is wrong."""
    given, right = final_number(answer), final_number(reference)
    return given is not None and right is not None and Decimal(given) == Decimal(right)


def score_code(
    answer: str, task: CodeTask, *, limit_s: float = 10.0, limit_bytes: int = 1 << 30
) -> bool:
    """HumanEval's pass@1: the function in the answer passes the task's tests within the limits.

    It runs in a separate process, in an empty folder, with the standard library only, no input and
    no environment; it may write no file, open no connection and start no process, and its process
    group is killed at the end. This guards against accidents. It is not a sandbox: malicious code
    can evade it, so do not run answers of models that you would not trust with your machine. Raises
    BackendUnavailable if no answer can be run.
    """
    token = secrets.token_hex()
    program = {
        "parts": [*_parts(answer, task), task.test],
        "entry_point": task.entry_point,
        "token": token,
        "limits": {
            "RLIMIT_CPU": int(limit_s) + 1,  # seconds; works even if we are killed first
            "RLIMIT_AS": limit_bytes,
            "RLIMIT_FSIZE": 1 << 20,
            "RLIMIT_NPROC": 0,  # further processes; the superuser has no such limit
            "RLIMIT_CORE": 0,
        },
    }
    try:
        verdict = _run(program, limit_s)
    except OSError as error:
        raise BackendUnavailable(f"no answer can be run here ({error}); score text only") from error
    if not verdict:
        raise BackendUnavailable(
            f"{sys.executable} did not start to run an answer within {limit_s:g} s; "
            "repair this Python, or score text only"
        )
    return verdict == f"started {token}"


def _parts(answer: str, task: CodeTask) -> list[str]:
    """The answer as a program: the first block with the function, else the first block, else all of
    it; code without the function's first line is its body."""
    definition = re.compile(rf"^def {re.escape(task.entry_point)}\b", re.MULTILINE)
    blocks = [textwrap.dedent(block) for _, block in _BLOCK.findall(answer)] or [answer]
    code = next(filter(definition.search, blocks), blocks[0])
    if definition.search(code):  # the imports and helpers of the prompt may be missing in it
        return [task.prompt.rpartition(f"def {task.entry_point}(")[0], code]
    return [f"{task.prompt.rstrip()}\n{textwrap.indent(textwrap.dedent(code), ' ' * 4)}"]


def _run(program: dict[str, Any], limit_s: float) -> str:
    """The runner's output until its end or the limit; empty if it did not start."""
    with tempfile.TemporaryDirectory(prefix="duodec-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "empty").mkdir()
        (folder / "program.json").write_text(json.dumps(program), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _RUNNER],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        finally:
            with suppress(ProcessLookupError, PermissionError):  # all of its group have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        verdict = folder / "verdict"
        return verdict.read_text("utf-8") if verdict.exists() else ""
