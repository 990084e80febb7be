"""Processes of ours: the terminal's keys do not reach them, and they make way for what is waited
for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep

import psutil
import pytest
from fakes.decoding import Letters
from fakes.schemas import explosive
from fakes.server import until

from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.grammar.llguidance import Masks
from duodec.backends.grammar.trial import GrammarTrial
from duodec.core.drafters import DraftModel
from duodec.core.sampling.grammar import Grammar
from duodec.errors import BadOption
from duodec.machine.helper import Helper
from duodec.machine.processes import activity
from duodec.testing import TableDraftModel, TableModel

LONG_S = 20.0  # far above what anything takes here
ECHO = """\
import sys
from duodec.machine.helper import RESPONSE
out = sys.stdout.buffer
out.write(RESPONSE.pack(0, 0)); out.flush()
for line in sys.stdin.buffer:
    out.write(RESPONSE.pack(1, len(line)) + line); out.flush()
"""


class Table:
    def load(self) -> DraftModel:
        return TableDraftModel(TableModel())


def helper_pid(folder: Path) -> Iterator[int]:
    program = folder / "echo.py"
    program.write_text(ECHO)
    helper = Helper(program)
    assert helper.ask(b"hello\n", LONG_S) == (1, "hello\n")
    (child,) = (p for p in psutil.Process().children() if str(program) in p.cmdline())
    yield child.pid
    helper.close()


def drafter_pid(folder: Path) -> Iterator[int]:
    drafter = ProcessDrafter(Table(), on_warning=pytest.fail)
    assert drafter.pid is not None
    until(lambda: os.getpgid(drafter.pid or 0) == drafter.pid)  # it does so itself
    yield drafter.pid
    drafter.close()


@pytest.mark.parametrize("started", [helper_pid, drafter_pid])
def test_the_terminals_keys_do_not_reach_them_and_priorities_count(
    started: Callable[[Path], Iterator[int]], tmp_path: Path
) -> None:
    """Ctrl-C goes to a process group; priorities are compared within a session."""
    for pid in started(tmp_path):
        assert os.getpgid(pid) == pid
        assert os.getsid(pid) == os.getsid(0)


BUSY = ECHO.replace(
    "    out.write",
    """\
    __import__("os").fork()
    while True:
        sys.argv.sort()
    out.write""",
)
PARENT = """
import sys, threading
from pathlib import Path
from duodec.machine.helper import Helper
helper = Helper(Path(sys.argv[1]))
threading.Thread(target=lambda: helper.ask(b"x\\n", 60), daemon=True).start()
sys.stdin.read()
"""


def test_a_helper_and_what_it_forked_end_with_their_parent_whatever_they_compute(
    tmp_path: Path,
) -> None:
    program = tmp_path / "busy.py"
    program.write_text(BUSY)
    argv = [sys.executable, "-c", PARENT, str(program)]
    children: list[psutil.Process] = []
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as parent:
        process = psutil.Process(parent.pid)
        try:
            until(lambda: len(process.children(recursive=True)) == 2)
            children = process.children(recursive=True)
            parent.kill()
            parent.wait()
            until(lambda: not any(child.is_running() for child in children), 5)
        finally:
            parent.kill()
            for child in children:
                with suppress(psutil.Error):
                    child.kill()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle priority")
def test_a_grammar_that_takes_long_leaves_the_processor_to_others_step_by_step() -> None:
    """At first it shares it: where a target computes on all cores, nothing would be left to it. On
    a loaded machine it takes long until it has computed for a second."""
    schema = Grammar("json_schema", json.dumps(explosive()))
    here, end_s = psutil.Process(), perf_counter() + 2 * LONG_S
    seen: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(GrammarTrial(6.0), schema, Masks(Letters(ends=True)).words)
        while "last" not in seen and not trial.done() and perf_counter() < end_s:
            sleep(0.02)
            for process in here.children(recursive=True):
                seen += [turn for turn in [turn_of(process.pid)] if turn and turn not in seen]
        with pytest.raises(BadOption, match="to compile"):
            trial.result()
    assert seen == ["later", "last"]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def turn_of(pid: int) -> str | None:
    """When a process gets the processor, if not like all others."""
    try:
        if sys.platform == "linux" and os.sched_getscheduler(pid) == os.SCHED_IDLE:
            return "last"
        own, its = (os.getpriority(os.PRIO_PROCESS, one) for one in (0, pid))
        return "later" if its > own else None
    except ProcessLookupError:
        return None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell")
def test_what_a_process_does_is_seen() -> None:
    loop = "import threading\nthreading.Thread(target=lambda: sum(iter(int, 1))).start()"
    with subprocess.Popen([sys.executable, "-c", loop]) as busy:
        try:
            until(lambda: (seen := activity(busy.pid)) is not None and seen.cpu_s > 0.3)
            assert activity(busy.pid).is_busy, "a thread that is not the first one counts"
            os.kill(busy.pid, signal.SIGSTOP)
            until(lambda: not activity(busy.pid).is_busy)
            before = activity(busy.pid)
            sleep(0.1)
            assert activity(busy.pid) == before
        finally:
            busy.kill()
    assert activity(busy.pid) is None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waiting:
        try:
            until(lambda: not activity(waiting.pid).is_busy)
        finally:
            waiting.kill()
