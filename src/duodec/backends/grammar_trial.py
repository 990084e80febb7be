"""Try a grammar in a child process with limits, before this process compiles it.

A JSON schema of two kilobytes can take gigabytes and minutes to compile, and the library has no
limit that reaches all of it. What it takes once is taken in a process that may die of it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import OrderedDict
from threading import Lock

from duodec.backends.llguidance import in_lark
from duodec.core.grammar import Grammar
from duodec.errors import BackendUnavailable, BadOption

_REMEMBERED = 256  # grammars
_START_S = 10.0  # for the child's own beginnings, on a busy machine

# The path is the parent's: without it, a file in the working directory could pass for a library.
# A vocabulary of bytes is enough: a larger one adds what the library's own limits bound.
_CHILD = """\
import json, os, sys
seconds, num_bytes = float(sys.argv[1]), int(sys.argv[2])
sys.path[:] = json.loads(sys.argv[3])
import resource, signal
import llguidance

class Bytes:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [bytes([i]) for i in range(256)] + [b"<end>"]
    def __call__(self, text):
        return list(text)

tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()), n_vocab=257)
source = sys.stdin.buffer.read().decode()
os.nice(10)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if os.path.exists("/proc/self/statm"):
    with open("/proc/self/statm") as file:
        num_bytes += int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
print("ready", flush=True)
signal.setitimer(signal.ITIMER_REAL, seconds)  # the kernel ends it: Python's handlers must wait
matcher = llguidance.LLMatcher(tokens, source, log_level=0)
if not matcher.is_error():
    matcher.compute_bitmask()
os._exit(0)
"""


class GrammarTrial:
    """Compiles grammars elsewhere, within so many seconds and bytes; remembers those that it
    tried. For many threads: none waits for another's grammar."""

    def __init__(self, seconds: float, num_bytes: int) -> None:
        self._seconds = seconds
        self._num_bytes = num_bytes
        self._known: OrderedDict[Grammar, str] = OrderedDict()  # and why it is refused, or ""
        self._lock = Lock()

    def __call__(self, grammar: Grammar) -> None:
        """Raises BadOption of a grammar that takes too much. What is no grammar at all passes: it
        is for the library to say why."""
        with self._lock:
            why = self._known.get(grammar)
        if why is None:
            why = self._try(in_lark(grammar))
            with self._lock:
                self._known[grammar] = why
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        if why:
            raise BadOption(why)

    def _try(self, source: str) -> str:
        """Why it is refused, or ""."""
        limits = [str(self._seconds), str(self._num_bytes), json.dumps(sys.path)]
        name = "the JSON schema or grammar"
        slow = f"{name} takes longer than {self._seconds:g} s to compile; simplify it"
        try:
            child = subprocess.run(
                [sys.executable, "-c", _CHILD, *limits], input=source.encode("utf-8", "replace"),
                capture_output=True, timeout=self._seconds + _START_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return slow
        except OSError as error:
            raise BackendUnavailable(f"no process starts to try a grammar in ({error})") from error
        if child.returncode == 0:
            return ""
        if not child.stdout.startswith(b"ready"):
            last = child.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise BackendUnavailable(f"a grammar cannot be tried ({last})")
        if child.returncode == -signal.SIGALRM:
            return slow
        return f"{name} takes more than {self._num_bytes >> 20} MB to compile; simplify it"
