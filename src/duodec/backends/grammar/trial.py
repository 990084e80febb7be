"""Try a grammar in a process with limits, before this process compiles it.

A JSON schema of two kilobytes can take gigabytes and minutes to compile, and the library has no
limit that covers all of it. So each grammar is first compiled in a process that may die of it: the
same text, on the same vocabulary. The grammar is never rewritten.
"""

from __future__ import annotations

import atexit
import pickle
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Lock

from duodec.backends.grammar import child
from duodec.backends.grammar.child import (
    COMPLEX,
    DEEP,
    DONE,
    LARGE,
    PROMPT_S,
    SLOW,
    UNREAD,
)
from duodec.backends.grammar.library import MOST_SOURCE_BYTES, Trial, Words
from duodec.backends.grammar.llguidance import Masks, in_lark, refusal, too_complex
from duodec.backends.interrupts import interruptible
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.tokenizers import Tokenizer
from duodec.errors import BackendUnavailable, BadOption
from duodec.machine.helper import SIZE, Helper, Late

_REMEMBERED = 256  # results, of less than 1 kB: a grammar is known by its SHA-256
_START_S = 10.0  # time for the process's own work, on a busy machine

_MOST_IDLE = 2  # processes that wait for a grammar; each has a vocabulary, some 60 MB
SECONDS, NUM_BYTES = 2.0, 256 << 20
_NAME = "the JSON schema or grammar"


class GrammarTrial:
    """Compile grammars in another process, within limits of processor seconds and bytes, and
    remember the results. It is thread-safe: no thread waits for another's grammar."""

    def __init__(self, seconds: float = SECONDS, num_bytes: int = NUM_BYTES) -> None:
        self._seconds = seconds
        self._num_bytes = num_bytes
        self._known: OrderedDict[bytes, int | str] = OrderedDict()  # its bytes, or what is wrong
        self._lock = Lock()

    def __call__(self, grammar: Grammar, words: Words) -> int:
        """Return the bytes of memory that a compiled grammar takes on a vocabulary. Raises
        BadOption for a grammar that takes too much or is invalid."""
        found = self._recalled(_key(grammar, words))
        if found is None:
            found = self._remembered(grammar, words, *self.ended(grammar, words, self._seconds))
        if isinstance(found, str):
            raise BadOption(found)
        return found

    def is_quick(self, grammar: Grammar, words: Words) -> bool:
        """Return whether the result is known within a tenth of a second of processor time; it is
        then remembered. Raises BadOption for what is not a grammar in any notation."""
        if self._recalled(_key(grammar, words)) is None:
            kind, said = self.ended(grammar, words, min(PROMPT_S, self._seconds))
            if kind == SLOW:
                return False
            self._remembered(grammar, words, kind, said)
        return True

    def _recalled(self, key: bytes) -> int | str | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def _remembered(self, grammar: Grammar, words: Words, kind: int, said: str) -> int | str:
        found = int(said) if kind == DONE else self._why(grammar, kind, said)
        with self._lock:
            self._known[_key(grammar, words)] = found
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _why(self, grammar: Grammar, kind: int, said: str) -> str:
        """Return why a grammar is refused."""
        if kind == SLOW:
            return f"{_NAME} takes longer than {self._seconds:g} s to compile; simplify it"
        if kind == LARGE:
            return f"{_NAME} takes more than {self._num_bytes >> 20} MB to compile; simplify it"
        if kind == DEEP:
            return f"{_NAME} is nested too deeply, by its references perhaps; write a flatter one"
        return too_complex(said) if kind == COMPLEX else refusal(grammar, said)

    def ended(self, grammar: Grammar, words: Words, seconds: float) -> tuple[int, str]:
        """Return how a trial of ``seconds`` ended, and its message. Raises BadOption."""
        if len(grammar.source) > MOST_SOURCE_BYTES:
            raise BadOption(_too_long(len(grammar.source)))
        source = in_lark(grammar)
        if (num_bytes := len(source.encode("utf-8", "replace"))) > MOST_SOURCE_BYTES:
            raise BadOption(_too_long(num_bytes))
        trial = Trial(words.key, None, seconds, self._num_bytes, source)
        helper = _taken()
        try:
            try:
                return _asked(helper, trial, words)
            except OSError:  # the system may have ended it because memory is short
                return _asked(helper, trial, words)
        except Late:
            return SLOW, ""
        except OSError as error:
            raise BackendUnavailable(f"a grammar cannot be tried ({error})") from error
        finally:
            if len(_IDLE) < _MOST_IDLE:
                _IDLE.append(helper)
            else:
                helper.close()


def _asked(helper: Helper, trial: Trial, words: Words) -> tuple[int, str]:
    limit_s = 5 * trial.seconds + _START_S
    found = helper.ask(_framed(trial), limit_s)
    if found[0] == UNREAD:
        found = helper.ask(_framed(replace(trial, words=words)), limit_s)
    return found


def _framed(trial: Trial) -> bytes:
    data = pickle.dumps(trial)
    return SIZE.pack(len(data)) + data


def _key(grammar: Grammar, words: Words) -> bytes:
    """Return the key of a grammar on a vocabulary."""
    text = f"{words.key} {grammar.kind} {grammar.source}"
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _too_long(num_bytes: int) -> str:
    return (
        f"{_NAME} has {num_bytes / 1024:.0f} KB and {MOST_SOURCE_BYTES >> 10} KB is the most; "
        "simplify it"
    )


_IDLE: list[Helper] = []


def _taken() -> Helper:
    try:
        return _IDLE.pop()
    except IndexError:
        return Helper(Path(child.__file__))


@atexit.register
def _close() -> None:
    while _IDLE:
        _IDLE.pop().close()


class GrammarCompiler:
    """Compile grammars. ``trial`` is called first; it raises BadOption for a grammar that takes too
    much."""

    def __init__(self, tokenizer: Tokenizer, trial: GrammarTrial | None = None) -> None:
        self.trial = trial or GrammarTrial()
        self.masks = Masks(tokenizer)

    def knows(self, grammar: Grammar) -> bool:
        """Return whether a grammar is already compiled."""
        return self.masks.knows(grammar)

    def is_quick(self, grammar: Grammar) -> bool:
        """Return whether a grammar takes a tenth of a second at most. Raises BadOption if it is
        invalid."""
        return self.trial.is_quick(grammar, self.masks.words)

    def mask(self, grammar: Grammar) -> Mask:
        """Return a mask of the grammar for one completion. Raises BadOption."""
        if (mask := self.masks.known(grammar)) is not None:
            return mask
        num_bytes = self.trial(grammar, self.masks.words)
        return interruptible(partial(self.masks.mask, grammar, num_bytes), lambda mask: None)
