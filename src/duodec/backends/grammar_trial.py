"""Try a grammar in a process with limits, before this process compiles it.

A JSON schema of two kilobytes can take gigabytes and minutes to compile, and the library has no
limit that covers all of it. So each grammar is first compiled in a process that may die of it.
"""

from __future__ import annotations

import atexit
import json
import re
from collections import OrderedDict
from pathlib import Path
from threading import Lock

from duodec.backends import grammar_child
from duodec.backends.grammar_child import DONE, LARGE, PROMPT_S, SLOW
from duodec.backends.llguidance import in_lark, refusal
from duodec.core.grammar import Grammar
from duodec.errors import BackendUnavailable, BadOption
from duodec.machine.helper import Helper, Late

_REMEMBERED = 256  # grammars
_CONTROL = re.compile(r"<\[\d+\]>")
_START_S = 10.0  # for the process's own work, on a busy machine

_MOST_IDLE = 2  # processes that wait for a grammar; each has some 25 MB
SECONDS, NUM_BYTES = 2.0, 256 << 20


class GrammarTrial:
    """Compiles grammars in another process, within limits of processor seconds and bytes; remembers
    the results. Thread-safe: no thread waits for another's grammar."""

    def __init__(self, seconds: float = SECONDS, num_bytes: int = NUM_BYTES) -> None:
        self._seconds = seconds
        self._num_bytes = num_bytes
        self._known: OrderedDict[Grammar, str] = OrderedDict()  # and why each is refused, or ""
        self._lock = Lock()

    def __call__(self, grammar: Grammar) -> None:
        """Raises BadOption for a grammar that takes too much or is invalid."""
        why = self._recalled(grammar)
        if why is None:
            why = self._remembered(grammar, *self._ended(grammar, self._seconds))
        if why:
            raise BadOption(why)

    def is_quick(self, grammar: Grammar) -> bool:
        """Whether the result is known within a tenth of a second of processor time, and is
        remembered then."""
        if self._recalled(grammar) is None:
            kind, words = self._ended(grammar, min(PROMPT_S, self._seconds))
            if kind != DONE:
                return False
            self._remembered(grammar, kind, words)
        return True

    def _recalled(self, grammar: Grammar) -> str | None:
        with self._lock:
            return self._known.get(grammar)

    def _remembered(self, grammar: Grammar, kind: int, words: str) -> str:
        """Why a grammar is refused, or ""."""
        why = self._why(grammar, kind, words)
        with self._lock:
            self._known[grammar] = why
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return why

    def _why(self, grammar: Grammar, kind: int, words: str) -> str:
        name = "the JSON schema or grammar"
        if kind == SLOW:
            return f"{name} takes longer than {self._seconds:g} s to compile; simplify it"
        if kind == LARGE:
            return f"{name} takes more than {self._num_bytes >> 20} MB to compile; simplify it"
        if not words or "special token" in words:  # the model's own, which are not known there
            return ""
        return refusal(grammar, words)

    def _ended(self, grammar: Grammar, seconds: float) -> tuple[int, str]:
        """How a trial of so many seconds ended, and what the library said."""
        # control tokens are the model's own: one stands for all in the vocabulary of the trial
        source = _CONTROL.sub("<[256]>", in_lark(grammar))
        request = json.dumps([seconds, self._num_bytes, source]).encode() + b"\n"
        helper = _taken()
        try:
            try:
                return helper.ask(request, 5 * seconds + _START_S)
            except OSError:  # somebody ended it: where memory is short the system does
                return helper.ask(request, 5 * seconds + _START_S)
        except Late:
            return SLOW, ""
        except OSError as error:
            raise BackendUnavailable(f"a grammar cannot be tried ({error})") from error
        finally:
            if len(_IDLE) < _MOST_IDLE:
                _IDLE.append(helper)
            else:
                helper.close()


_IDLE: list[Helper] = []


def _taken() -> Helper:
    try:
        return _IDLE.pop()
    except IndexError:
        return Helper(Path(grammar_child.__file__))


@atexit.register
def _close() -> None:
    while _IDLE:
        _IDLE.pop().close()
