"""Compile grammars, each in a fork of this process with limits of processor time and memory.

A program of its own: see `duodec.machine.helper` and `duodec.backends.grammar_trial`. The library
is imported once, so that a fork costs milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import llguidance

from duodec.machine.helper import ANSWER
from duodec.machine.processes import yield_to_all

DONE, SLOW, LARGE = 0, 1, 2  # how a trial ended; the text of DONE is what is wrong, if anything
_WAIT_FACTOR = 5.0  # how much longer than its processor time a trial may take by the clock
PROMPT_S = 0.1  # what takes longer leaves the processor to others
_LONGEST = 4096  # bytes of what the library says


class _Bytes:
    """A vocabulary of bytes: a larger one adds what the library's own limits bound."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Try what is asked, until nobody asks."""
    tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)
    _answer(answers, DONE, b"")  # ready
    for line in requests:
        seconds, num_bytes, source = json.loads(line)
        reading, writing = os.pipe()
        fork = os.fork()
        if not fork:
            _limit(seconds, num_bytes)
            matcher = llguidance.LLMatcher(tokens, source, log_level=0)
            if not matcher.is_error():
                matcher.compute_bitmask()
            os.write(writing, matcher.get_error().encode()[:_LONGEST])
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            if not select.select([pipe], [], [], PROMPT_S)[0]:
                yield_to_all(fork)
            words = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        ends = {0: DONE, -signal.SIGPROF: SLOW, -signal.SIGALRM: SLOW}
        _answer(answers, ends.get(code, LARGE), words)


def _limit(seconds: float, num_bytes: int) -> None:
    """The kernel ends this process beyond them: Python's handlers would wait for the library."""
    with suppress(OSError):
        num_pages = Path("/proc/self/statm").read_text().split()[0]
        num_bytes += int(num_pages) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _WAIT_FACTOR * seconds)


def _answer(answers: BinaryIO, kind: int, words: bytes) -> None:
    answers.write(ANSWER.pack(kind, len(words)) + words)
    answers.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
