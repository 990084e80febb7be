"""Compute with llguidance which tokens of a vocabulary may follow any beginning of a completion.

The library follows one beginning at a time and can roll back, so the branches of a draft are
followed in turn, each from where it leaves the previous one. The library could also prescribe how
forced text is split into tokens. Here that is the model's choice, so its distribution is the plain
one, renormalised over the tokens that continue a match.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from threading import Lock, RLock, Thread, stack_size
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from duodec.backends.grammar import library as grammar_library
from duodec.backends.grammar.library import Words
from duodec.core.prefix import common_prefix
from duodec.core.sampling.grammar import Grammar
from duodec.errors import BadOption, GrammarsFull

if TYPE_CHECKING:
    import llguidance

T = TypeVar("T")
_NOTHING: NDArray[np.int32] = np.empty(0, dtype=np.int32)
_REMEMBERED = 64  # most grammars
MOST_BYTES = 512 << 20  # compiled grammars, in use or remembered
_LONGEST = 400  # longest message of the library in characters: it may repeat the whole schema
_STACK_BYTES = 16 << 20
_STACKS = Lock()  # the size of new threads' stacks belongs to the process
# This may stand between two tokens of JSON: a model that may write any blank can write blanks for
# ever.
_JSON_BLANK = r"\n?[ \t]{0,40}"
_NO_FORCING = '%llguidance {"no_forcing": true}\n'


class Vocabulary(Protocol):
    """Define what a grammar needs to know of a vocabulary."""

    @property
    def num_vocab(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def piece(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


class Masks:
    """Hold the grammars of one vocabulary: compiled once, followed by any number of completions.

    The vocabulary is read at the first mask, which takes up to a second for the largest.
    ``most_bytes`` bounds the size of grammars that are in use or remembered.
    """

    def __init__(self, vocabulary: Vocabulary, most_bytes: int = MOST_BYTES) -> None:
        self._vocabulary = vocabulary
        self._most_bytes = most_bytes
        self._tokens: llguidance.LLTokenizer | None = None
        self._known: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._places: WeakSet[_Place] = WeakSet()
        self._lock = Lock()
        self._reading = RLock()

    @cached_property
    def words(self) -> Words:
        """Return the vocabulary. Raises BadOption."""
        with self._reading:
            return _read(self._vocabulary)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the grammars that are in use or remembered."""
        return sum(place.num_bytes for place in list(self._places))

    def mask(self, grammar: Grammar, num_bytes: int | None = None) -> PathMask:
        """Return the grammar's mask for one completion. ``num_bytes`` is what the compiled grammar
        takes, as a trial found; if that is unknown, no other grammar is remembered. Raises
        BadOption if the grammar is invalid, or too complex from its first token on, and
        GrammarsFull if those in use leave no memory for it.

        No thread waits for another's grammar: two with the same new grammar may both compile it.
        """
        if (found := self.known(grammar)) is not None:
            return found
        weight = self._most_bytes if num_bytes is None else num_bytes + 2 * len(grammar.source)
        place = self._reserved(weight, is_measured=num_bytes is not None)
        compiled = _Compiled(self.compile(grammar), place)
        _try(self._path_mask(compiled))
        with self._lock:
            self._known[grammar] = compiled
        return self._path_mask(compiled)

    def known(self, grammar: Grammar) -> PathMask | None:
        """Return the mask of a grammar that is already compiled, at no cost."""
        with self._lock:
            compiled = self._known.get(grammar)
            if compiled is None:
                return None
            self._known.move_to_end(grammar)
        return self._path_mask(compiled)

    def knows(self, grammar: Grammar) -> bool:
        """Return whether a grammar is compiled, so that a mask of it costs nothing."""
        with self._lock:
            return grammar in self._known

    def _reserved(self, num_bytes: int, *, is_measured: bool) -> _Place:
        """Reserve room for a grammar, for which others are forgotten. Raises GrammarsFull."""
        with self._lock:
            while self._known and (
                self.num_bytes + num_bytes > self._most_bytes or len(self._known) >= _REMEMBERED
            ):
                self._known.popitem(last=False)
            if is_measured and (used := self.num_bytes) and used + num_bytes > self._most_bytes:
                raise GrammarsFull(
                    f"the grammars in use take {used >> 20} MB, a new one {num_bytes >> 20} MB, "
                    f"and {self._most_bytes >> 20} MB is the most; ask again later"
                )
            place = _Place(num_bytes)
            self._places.add(place)
            return place

    def _path_mask(self, compiled: _Compiled) -> PathMask:
        return PathMask(compiled, self._vocabulary.num_vocab, self.words.ends)

    def compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        with self._reading:
            if self._tokens is None:
                self._tokens = self.words.opened()
        matcher = _on_deep_stack(partial(grammar_library.compiled, self._tokens, in_lark(grammar)))
        if matcher.is_error():
            raise BadOption(refusal(grammar, matcher.get_error()))
        return matcher


@dataclass(frozen=True, eq=False)
class _Place:
    """Account for the memory of a grammar, as long as it is referenced."""

    num_bytes: int


@dataclass(frozen=True)
class _Compiled:
    matcher: llguidance.LLMatcher
    place: _Place


class PathMask:
    """Follow one completion's grammar: see `duodec.core.sampling.grammar.Mask`."""

    def __init__(self, compiled: _Compiled, num_vocab: int, ends: Sequence[int]) -> None:
        self._compiled: _Compiled | None = compiled  # None: closed
        self._matcher = compiled.matcher.deep_copy()
        self._num_vocab, self.ends = num_vocab, ends
        self._path = _NOTHING  # the tokens followed so far
        self._bits = np.zeros((num_vocab + 31) // 32, dtype="<u4")
        self._lock = Lock()  # target and draft may call from two threads

    def allowed(self, completion: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        with self._lock:
            if self._compiled is None or not self._follow(completion):
                return None
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            self._check()
            bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
            return bits[: self._num_vocab].astype(bool)

    def close(self) -> None:
        with self._lock:  # an abandoned draft may still look
            if self._compiled is not None:
                self._compiled = None
                del self._matcher

    def _follow(self, completion: NDArray[np.int32]) -> bool:
        """Move to the end of ``completion``; return whether the grammar allows it."""
        num_kept = common_prefix(self._path, completion)
        self._matcher.rollback(len(self._path) - num_kept)
        tokens = completion[num_kept:].tolist()
        words = list(takewhile(lambda token: token not in self.ends, tokens))
        num_valid = self._matcher.validate_tokens(words)
        self._matcher.consume_tokens(tokens[:num_valid])
        self._path = completion[: num_kept + num_valid].copy()
        self._check()
        return num_valid == len(tokens)

    def _check(self) -> None:
        """Start another matcher after an error, which makes one unusable."""
        if not self._matcher.is_error():
            return
        assert self._compiled is not None, "it is open"
        reason = grammar_library.fault(self._matcher)
        self._matcher, self._path = self._compiled.matcher.deep_copy(), self._path[:0]
        if reason:
            raise BadOption(too_complex(reason))


def _try(mask: PathMask) -> None:
    """Compute the first mask, which detects a too complex grammar before anything is generated.
    Raises BadOption."""
    first = mask.allowed(_NOTHING)
    if first is not None and first.any():
        mask.allowed(np.flatnonzero(first)[:1].astype(np.int32))


def _on_deep_stack(call: Callable[[], T]) -> T:
    """Return the result of a call that may need a deeper stack than threads have: four times as
    deep as the one that its grammar was tried on. The program does not wait for the thread at its
    end."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001  the caller's
            found.set_exception(error)

    with _STACKS:
        before = stack_size(_STACK_BYTES)
        try:
            Thread(target=run, name="duodec-grammar-stack", daemon=True).start()
        finally:
            stack_size(before)
    return found.result()


def _read(vocabulary: Vocabulary) -> Words:
    every = range(vocabulary.num_vocab)
    ends = tuple(token for token in every if vocabulary.is_end(token))
    if not ends:
        raise BadOption("the model has no end token, which a grammar needs")
    pieces = [vocabulary.piece(token) for token in every]
    texts = (
        piece or vocabulary.token_text(token) for token, piece in zip(every, pieces, strict=True)
    )
    return Words(tuple(texts), tuple(token for token in every if not pieces[token]), ends)


def in_lark(grammar: Grammar) -> str:
    """Return a grammar in the library's own notation. Raises BadOption."""
    try:
        source = _NO_FORCING + _rules(grammar)
        source.encode()
    except RecursionError as error:
        raise BadOption("the JSON schema is nested too deeply; write a flatter one") from error
    except UnicodeEncodeError as error:
        raise BadOption("the grammar holds half of a character; write UTF-8") from error
    return source


def _rules(grammar: Grammar) -> str:
    if grammar.kind == "json_schema":
        return f"start: {json_term(_schema(grammar.source))}"
    if grammar.kind == "regex":
        whole = json.loads(grammar_library.library().LLMatcher.grammar_from_regex(grammar.source))
        return str(whole["grammars"][0]["lark_grammar"])
    return grammar.source


def _schema(source: str) -> Any:
    try:
        return json.loads(source)
    except ValueError as error:
        raise BadOption(f"the JSON schema is not JSON ({error}); write an object") from error


def json_term(schema: Any) -> str:
    """Return a term in Lark's notation that matches JSON texts of a schema."""
    if isinstance(schema, dict):
        schema = {"x-guidance": {"whitespace_pattern": _JSON_BLANK}, **schema}
    return f"%json {json.dumps(schema)}"


def control_term(token: int) -> str:
    """Return a term in Lark's notation that matches a control token."""
    return f"<[{token}]>"


def rules_as(name: str, grammar: Grammar) -> str:
    """Return a grammar's rules for use among others; the rule with that name matches the whole.
    Raises BadOption."""
    head, start, rest = _rules(grammar).partition("start:")
    return f"{head}{name}:{rest}" if start else head


def too_complex(reason: str) -> str:
    """Return why a valid grammar cannot be followed."""
    return f"the grammar is too complex to follow ({reason}); simplify it"


def refusal(grammar: Grammar, words: str) -> str:
    """Return why a grammar cannot be used, in one line from the library, without the position in a
    text that the user did not write."""
    names = {"json_schema": "JSON schema", "regex": "regular expression"}
    lines = [line.strip() for line in words.splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (causes or [lines[0].partition("): ")[2] or lines[0]])[-1]
    reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]} ..."
    return f"the {names.get(grammar.kind, 'grammar')} cannot be used: {reason}"
