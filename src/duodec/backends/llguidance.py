"""Compute with llguidance which tokens of a vocabulary may follow any beginning of a completion.

The library follows one beginning at a time and can roll back, so the branches of a draft are
followed in turn, each from where it leaves the previous one. The library could also prescribe how
forced text is split into tokens. Here that is the model's choice, so its distribution is the plain
one, renormalised over the tokens that continue a match.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from itertools import takewhile
from threading import Lock
from typing import Any, Protocol

import llguidance
import numpy as np
from numpy.typing import NDArray

from duodec.core.grammar import Grammar
from duodec.core.prefix import common_prefix
from duodec.errors import BadOption

_NOTHING: NDArray[np.int32] = np.empty(0, dtype=np.int32)
_REMEMBERED = 64  # grammars
_LEXER_STATES = 50_000  # of one grammar, 1 to 2 kB each; made as needed
# between two tokens of JSON: a model that may write any blank can write blanks for ever
_JSON_BLANK = r"\n?[ \t]{0,40}"
# no token continues, as in a vocabulary that lacks a letter: the mask then lets the text end
_DEAD_ENDS = ("NoExtension", "NoExtensionBias")
_NO_FORCING = '%llguidance {"no_forcing": true}\n'


class Vocabulary(Protocol):
    """What a grammar needs to know of a vocabulary."""

    @property
    def num_vocab(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def piece(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


class Masks:
    """The grammars of one vocabulary: compiled once, followed by any number of completions.

    The vocabulary is read at the first mask: up to a second for the largest.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens: llguidance.LLTokenizer | None = None
        self._ends: list[int] = []
        self._known: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()
        self._lock = Lock()
        self._reading = Lock()

    def mask(self, grammar: Grammar) -> PathMask:
        """The grammar's mask for one completion. Raises BadOption if the grammar is invalid, or too
        complex from its first token on.

        No thread waits for another's grammar: two with the same new grammar may both compile it.
        """
        with self._lock:
            matcher = self._known.get(grammar)
        if matcher is None:
            matcher = self._compiled(grammar)
            _try(self._path_mask(matcher))
        with self._lock:
            self._known[grammar] = matcher
            self._known.move_to_end(grammar)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._path_mask(matcher)

    def knows(self, grammar: Grammar) -> bool:
        """It is compiled: a mask of it costs nothing."""
        with self._lock:
            return grammar in self._known

    def _path_mask(self, matcher: llguidance.LLMatcher) -> PathMask:
        return PathMask(matcher, self._vocabulary.num_vocab, self._ends)

    def _compiled(self, grammar: Grammar) -> llguidance.LLMatcher:
        with self._reading:
            if self._tokens is None:
                self._tokens, self._ends = _read(self._vocabulary)
        source = in_lark(grammar)
        limits = llguidance.LLParserLimits(max_lexer_states=_LEXER_STATES)
        matcher = llguidance.LLMatcher(self._tokens, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise BadOption(refusal(grammar, matcher.get_error()))
        return matcher


class PathMask:
    """One completion's grammar: see `duodec.core.grammar.Mask`."""

    def __init__(self, matcher: llguidance.LLMatcher, num_vocab: int, ends: list[int]) -> None:
        self._fresh, self._matcher = matcher, matcher.deep_copy()
        self._num_vocab, self._ends = num_vocab, ends
        self._path = _NOTHING  # the tokens followed so far
        self._bits = np.zeros((num_vocab + 31) // 32, dtype="<u4")
        self._lock = Lock()  # target and draft may call from two threads

    def allowed(self, answer: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        with self._lock:
            if not self._follow(answer):
                return None
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            self._check()
            bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
            return bits[: self._num_vocab].astype(bool)

    def _follow(self, answer: NDArray[np.int32]) -> bool:
        """Move to the end of ``answer``; returns whether the grammar allows it."""
        num_kept = common_prefix(self._path, answer)
        self._matcher.rollback(len(self._path) - num_kept)
        tokens = answer[num_kept:].tolist()
        words = list(takewhile(lambda token: token not in self._ends, tokens))
        num_valid = self._matcher.validate_tokens(words)
        self._matcher.consume_tokens(tokens[:num_valid])
        self._path = answer[: num_kept + num_valid].copy()
        self._check()
        return num_valid == len(tokens)

    def _check(self) -> None:
        """After an error the matcher is unusable: start another."""
        if not self._matcher.is_error():
            return
        reason = self._matcher.get_error().partition("\n")[0]
        self._matcher, self._path = self._fresh.deep_copy(), self._path[:0]
        if reason not in _DEAD_ENDS:
            raise BadOption(f"the grammar is too complex to follow ({reason}); simplify it")


def _try(mask: PathMask) -> None:
    """Compute the first mask, which detects a too complex grammar before anything is generated.
    Raises BadOption."""
    first = mask.allowed(_NOTHING)
    if first is not None and first.any():
        mask.allowed(np.flatnonzero(first)[:1].astype(np.int32))


class _Wrapped:
    """A vocabulary in the library's form: control tokens, which are not text, are separate."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, ends: list[int]) -> None:
        every = range(vocabulary.num_vocab)
        pieces = [vocabulary.piece(token) for token in every]
        self.eos_token_id = ends[0]
        self.special_token_ids = [token for token in every if not pieces[token]]
        self.tokens = [
            piece or vocabulary.token_text(token)
            for token, piece in zip(every, pieces, strict=True)
        ]

    def __call__(self, text: bytes) -> list[int]:
        """The library only checks that this can be called. It would need it to force tokens, which
        is switched off."""
        raise AssertionError("no text is forced into tokens")


def _read(vocabulary: Vocabulary) -> tuple[llguidance.LLTokenizer, list[int]]:
    ends = [token for token in range(vocabulary.num_vocab) if vocabulary.is_end(token)]
    if not ends:
        raise BadOption("the model has no end token, which a grammar needs")
    wrapped = llguidance.TokenizerWrapper(_Wrapped(vocabulary, ends))
    return llguidance.LLTokenizer(wrapped, n_vocab=vocabulary.num_vocab, eos_token=ends), ends


def in_lark(grammar: Grammar) -> str:
    """A grammar in the library's own notation. Raises BadOption."""
    return _NO_FORCING + _rules(grammar)


def _rules(grammar: Grammar) -> str:
    if grammar.kind == "json_schema":
        return f"start: {json_term(_schema(grammar.source))}"
    if grammar.kind == "regex":
        whole = json.loads(llguidance.LLMatcher.grammar_from_regex(grammar.source))
        return str(whole["grammars"][0]["lark_grammar"])
    return grammar.source


def _schema(source: str) -> Any:
    try:
        return json.loads(source)
    except RecursionError as error:
        raise BadOption("the JSON schema is nested too deeply; write a flatter one") from error
    except ValueError as error:
        raise BadOption(f"the JSON schema is not JSON ({error}); write an object") from error


def json_term(schema: Any) -> str:
    """A term in Lark's notation that matches JSON texts of that schema."""
    if isinstance(schema, dict):
        schema = {"x-guidance": {"whitespace_pattern": _JSON_BLANK}, **schema}
    return f"%json {json.dumps(schema)}"


def control_term(token: int) -> str:
    """A term in Lark's notation that matches a control token."""
    return f"<[{token}]>"


def rules_as(name: str, grammar: Grammar) -> str:
    """A grammar's rules, to be put among others: the one of that name matches the whole. Raises
    BadOption."""
    head, start, rest = _rules(grammar).partition("start:")
    return f"{head}{name}:{rest}" if start else head


def refusal(grammar: Grammar, words: str) -> str:
    """Why a grammar cannot be used, in one line of what the library says, without the place in a
    text that the user did not write."""
    names = {"json_schema": "JSON schema", "regex": "regular expression"}
    lines = [line.strip() for line in words.splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (causes or [lines[0].partition("): ")[2] or lines[0]])[-1]
    return f"the {names.get(grammar.kind, 'grammar')} cannot be used: {reason}"
