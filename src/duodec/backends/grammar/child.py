"""Compile grammars, each in a fork of this process with limits of processor time and memory.

This is a program of its own: see `duodec.machine.helper` and `duodec.backends.grammar.trial`. The
library is imported once, and a vocabulary is read once, so a fork costs milliseconds.
"""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from duodec.backends.grammar.library import Trial, compiled, fault, library
from duodec.machine.helper import RESPONSE, SIZE
from duodec.machine.processes import activity, share_with_others, yield_to_all

if TYPE_CHECKING:
    from llguidance import LLTokenizer as Tokens

# These say how a trial ended; the message has the bytes that the grammar takes, or what is wrong
# with it.
DONE, WRONG, COMPLEX, SLOW, LARGE, DEEP, UNREAD = range(7)
_WAIT_FACTOR = 5.0  # a trial may take this many times its processor time by the clock
PROMPT_S = 0.1  # what takes longer shares the processor with others,
_SHARED_S = 1.0  # and after this time gets only what they leave
# This is a quarter of what this process's twin compiles with: see
# `duodec.backends.grammar.llguidance`.
_STACK_BYTES = 4 << 20
_LONGEST = 4096  # longest message of the library, in bytes


def main(requests: BinaryIO, responses: BinaryIO) -> None:
    """Try requested grammars until there are no more requests."""
    key, tokens = "", None
    library()  # once, before any fork
    _respond(responses, DONE, b"")  # ready
    while len(head := requests.read(SIZE.size)) == SIZE.size:
        trial: Trial = pickle.loads(requests.read(*SIZE.unpack(head)))  # noqa: S301  our parent's
        if trial.words is not None:
            key, tokens = trial.key, trial.words.opened()
        if tokens is None or key != trial.key:
            _respond(responses, UNREAD, b"")
        else:
            _respond(responses, *_ended(tokens, trial))


def _ended(tokens: Tokens, trial: Trial) -> tuple[int, bytes]:
    reading, writing = os.pipe()
    fork = os.fork()
    if not fork:
        _limit(trial)
        _try(tokens, trial.source, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        while not select.select([pipe], [], [], PROMPT_S)[0]:
            seen = activity(fork)
            if seen is None or seen.cpu_s > _SHARED_S:
                yield_to_all(fork)
                break
            share_with_others(fork)  # a target on this processor leaves nothing
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    if code == 0 and said:
        return said[0], said[1:]
    ends = {-signal.SIGPROF: SLOW, -signal.SIGALRM: SLOW, -signal.SIGSEGV: DEEP}
    return ends.get(code, LARGE), b""


def _try(tokens: Tokens, source: str, writing: int) -> NoReturn:
    """Compile a grammar and compute its first masks, then end the process."""
    matcher = compiled(tokens, source)
    if matcher.is_error():
        kind, words = WRONG, matcher.get_error()
    else:
        first = matcher.compute_bitmask()
        if (token := _lowest(first)) is not None and not fault(matcher):
            matcher.consume_tokens([token])
            matcher.compute_bitmask()
        words = fault(matcher)
        kind, words = (COMPLEX, words) if words else (DONE, str(_num_bytes()))
    os.write(writing, bytes([kind]) + words.encode()[:_LONGEST])
    os._exit(0)


def _lowest(mask: bytes) -> int | None:
    bits = int.from_bytes(mask, "little")
    return (bits & -bits).bit_length() - 1 if bits else None


def _num_bytes() -> int:
    """Return the memory that this fork has written to and shares with no other process; 0 if the
    system does not tell. Freed memory counts, since the next use may need it."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    sizes = dict(line.split()[:2] for line in lines if line.endswith(" kB"))
    return int(sizes.get("Private_Dirty:", 0)) << 10


def _limit(trial: Trial) -> None:
    """Set limits, beyond which the kernel ends this process: Python's handlers would wait for the
    library."""
    num_bytes = trial.num_bytes
    with suppress(OSError):
        num_pages = Path("/proc/self/statm").read_text().split()[0]
        num_bytes += int(num_pages) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    with suppress(OSError, ValueError):  # a lower limit stays
        resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, _STACK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, trial.seconds)
    signal.setitimer(signal.ITIMER_REAL, _WAIT_FACTOR * trial.seconds)


def _respond(responses: BinaryIO, kind: int, words: bytes) -> None:
    responses.write(RESPONSE.pack(kind, len(words)) + words)
    responses.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
