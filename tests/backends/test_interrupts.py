"""Ctrl-C ends the program at once: while it imports, loads, or computes a long forward pass."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from duodec.backends import interrupts
from duodec.backends.interrupts import FLAG, interruptible, listen, stoppable
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.models import resolve

# a library that never comes back, and does not know of signals
BLOCKED = """
import ctypes, os, sys
from duodec.backends.llamacpp import library
lib, libc = library.load(), ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(256)
def blocked(*_):
    os.write(1, b"blocked")
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
lib.{function} = blocked
from duodec.machine import busy
busy.wait_until_idle = lambda patience_s: None  # or `doctor` may measure nothing
from duodec.__main__ import main
sys.argv[0] = "duodec"
main()
"""


def interrupted(*command: str, path: str = "") -> tuple[int, str]:
    """The status and stderr of a program that gets Ctrl-C once it says "blocked"."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = b""
        while not said.endswith(b"blocked") and (more := process.stdout.read(1)):
            said += more
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail("Ctrl-C was not heard")
    return process.returncode, err.decode()


@pytest.mark.parametrize("function", ["llama_model_load_from_file", "llama_init_from_model"])
@pytest.mark.parametrize("command", ["generate hi --draft none", "doctor --draft none"])
def test_while_a_library_loads(function: str, command: str) -> None:
    program = BLOCKED.format(function=function)
    status, err = interrupted(sys.executable, "-c", program, *command.split())
    assert (status, err) == (130, "interrupted\n")


def test_while_a_grammar_is_compiled() -> None:
    program = """
import ctypes, os, sys
from duodec.backends.grammar.llguidance import Masks
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
def blocked(*_):
    os.write(1, b"blocked")
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
Masks.compile = blocked
from duodec.__main__ import main
sys.argv[0] = "duodec"
main()
"""
    command = ["generate", "hi", "--draft", "none", "--regex", "a+"]
    status, err = interrupted(sys.executable, "-c", program, *command)
    assert (status, err) == (130, "interrupted\n")


def test_while_importing(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        "import os, time\nos.write(1, b'blocked')\nwhile True: time.sleep(1)\n"
    )
    status, err = interrupted(sys.executable, "-m", "duodec", "list", path=str(tmp_path))
    assert (status, err) == (130, "interrupted\n")


def test_the_package_is_imported_when_it_is_used() -> None:
    program = (
        "import duodec.__main__, sys; "
        "assert not {'numpy', 'importlib.metadata'} & set(sys.modules); duodec.LLM"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_python_hears_the_librarys_log() -> None:
    lib = library.load()
    found, data = lib.llama_log_callback(), lib.ctypes.c_void_p()
    lib.llama_log_get(lib.ctypes.byref(found), lib.ctypes.byref(data))
    address = lib.ctypes.cast(found, lib.ctypes.c_void_p).value
    assert address == lib.ctypes.cast(lib._lib.llama_max_devices, lib.ctypes.c_void_p).value


# Calls in a thread


def test_a_call_returns_and_raises_as_ever() -> None:
    assert interruptible(lambda: 3, lambda _: None) == 3
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, lambda _: None)


def test_what_nobody_waits_for_is_freed() -> None:
    go, freed = Event(), Event()

    def call() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        go.wait(30)
        return 7

    with pytest.raises(KeyboardInterrupt):
        interruptible(call, lambda result: freed.set() if result == 7 else None)
    assert not freed.is_set()
    go.set()
    assert freed.wait(30)


def test_other_threads_call_by_themselves() -> None:
    names: list[str] = []

    def call() -> None:
        import threading

        names.append(threading.current_thread().name)

    thread = Thread(target=lambda: interruptible(call, lambda _: None), name="mine")
    thread.start()
    thread.join()
    assert names == ["mine"]


# Forward passes


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing else handles Ctrl-C."""
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.01)
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def wait_for(text: bytes) -> bool:
    end_s = time.monotonic() + 10
    while FLAG._text.value != text and time.monotonic() < end_s:
        time.sleep(0.01)
    return FLAG._text.value == text


def test_a_signal_sets_the_flag_of_the_forward_pass_that_runs(quiet: None) -> None:
    listen()
    with stoppable():
        assert FLAG._text.value == b"0"
        os.kill(os.getpid(), signal.SIGINT)
        assert wait_for(b"1")
    with stoppable():
        assert FLAG._text.value == b"0", "the next one goes on"


def test_a_forward_pass_that_begins_after_the_signal_goes_on(quiet: None) -> None:
    with stoppable():
        count = FLAG.running()
    assert count is not None
    assert FLAG.running() is None
    with stoppable():
        FLAG.stop(count)
        assert FLAG._text.value == b"0"


def test_a_stopped_forward_pass_leaves_nothing_half_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LlamaModel(resolve("smollm2-draft").path, num_gpu_layers=0)
    context = LlamaContext(model, num_context=512, num_sequences=4, num_threads=1, max_rows=4)
    text = np.arange(100, 400, dtype=np.int32)
    query = RowQuery(0, text, Draft(), (0,))
    ((row,),) = context.rows([query])
    expected = row.copy()
    begin = type(FLAG).__enter__

    def stopped(flag: Any) -> None:
        begin(flag)
        flag._text[0] = b"1"

    other = RowQuery(0, text[::-1].copy(), Draft(), (0,))
    with monkeypatch.context() as patch:
        patch.setattr(type(FLAG), "__enter__", stopped)
        with pytest.raises(KeyboardInterrupt):
            context.rows([other])
    ((row,),) = context.rows([query])
    assert np.array_equal(row, expected)
    context.close()
    model.close()
