"""Ctrl-C ends every command within a second, whatever it is still doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest
from fakes import TESTS

from duodec.cli import app, interrupts
from duodec.cli.interrupts import Deadline
from duodec_lab.bench import benchmark as benchmark_module
from duodec_lab.bench.results import Generation, Results
from duodec_lab.bench.run import Runner

# a command that has begun to close what it opened, which takes a minute
PROGRAM = """
import os, signal, sys, time
from duodec.cli import app
from duodec_lab.commands import report

def closing(files, output, json):
    os.write(1, b"begun")
    {body}

report._read = lambda path: closing(None, None, None)
report.check_installed = lambda: None
sys.argv = ["duodec", "report", "x"]
app.main()
"""
BODIES = {
    "closes": "\n    try: time.sleep(60)\n    finally: time.sleep(60)",
    "swallows": (
        "\n    while True:\n        try: time.sleep(60)\n        except BaseException: pass"
    ),
    "another exception": (
        "\n    try: time.sleep(60)\n    except KeyboardInterrupt: raise ImportError('half')"
    ),
    "fails on its way": (
        "\n    class Closing:\n        def __del__(self): 1 / 0\n"
        "    closing = Closing()\n    time.sleep(60)"
    ),
    "a library's thread": (
        "\n    import threading\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n    time.sleep(60)"
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_it_ends_with_one_line(name: str) -> None:
    program = PROGRAM.format(body=BODIES[name])
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"begun"
        begin_s = monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
        seconds = monotonic() - begin_s
    assert (process.returncode, err) == (130, b"interrupted\n")
    assert seconds < 30, "it waits for nothing; a busy machine may be slow"


def test_a_second_one_ends_it_at_once() -> None:
    program = (
        "import os, signal, time\n"
        "from duodec.cli.interrupts import Deadline\n"
        "with Deadline(1000):\n"
        "    try: os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
        "    except KeyboardInterrupt: os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=240)
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")


def test_what_ends_in_time_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "end_now", lambda: pytest.fail("ended"))
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    with Deadline(1000) as found:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert found.is_interrupted
    assert found._timer.finished.is_set()
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before


# what is measured stays, and nobody waits for a report


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Runs a benchmark of one record that is interrupted, by what is said."""

    def run(folder: Path, *, during: str) -> Path:
        class Interrupted(Runner):
            def run(self, prompts) -> None:
                self.journal.keep(
                    Generation("qa", "1", 1, "ar", "smollm2", None, 0, "real", trace=[])
                )
                if during == "measuring":
                    self.on_interrupt()
                    results = Results.read(folder)
                    assert len(results.generations) == 1, "kept before anything is closed"
                    raise KeyboardInterrupt

        def write_report(*_: object, **__: object) -> None:
            if during == "measuring":
                pytest.fail("a report is written")
            raise KeyboardInterrupt

        monkeypatch.setattr(benchmark_module, "Runner", Interrupted)
        monkeypatch.setattr(benchmark_module, "markdown_report", lambda results: "")
        monkeypatch.setattr(benchmark_module, "write_report", write_report)
        line = ["bench", "--methods", "ar", "--tasks", "qa", "-o", str(folder)]
        assert app.run(line) == 130
        return folder

    return run


@pytest.mark.parametrize("during", ["measuring", "the report"])
def test_nobody_waits_for_a_report(
    tmp_path: Path, interrupted: Callable[..., Path], during: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = interrupted(tmp_path / "out", during=during)
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert err == f"interrupted; what was measured is in {folder}: continue with --resume"
    document = json.loads((folder / "results.json").read_text())
    assert len(document["generations"]) == 1
    assert document["settings"]["is_complete"] is (during == "the report")
