"""Compile grammars with llguidance, alike in this process and in the one that tries them.

A trial says something about a grammar only if it compiles the same text, on the same vocabulary,
within the same limits. So both do it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from duodec.errors import BackendUnavailable

if TYPE_CHECKING:
    from llguidance import LLMatcher as Matcher
    from llguidance import LLTokenizer as Tokens

MOST_SOURCE_BYTES = 256 << 10  # longest grammar in the library's own notation
# These limits of the library do not depend on its version. Within them no mask of a schema or an
# expression takes 0.1 s.
_LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,  # for one completion, 1 to 2 kB each; made as needed
    "max_grammar_size": 500_000,
}
# No token continues, as in a vocabulary that lacks a letter; then the mask lets the text end.
_DEAD_ENDS = ("NoExtension", "NoExtensionBias")


@cache
def library() -> Any:
    """Import llguidance at the first grammar: decoding without one does not need it. Raises
    BackendUnavailable."""
    try:
        import llguidance
    except ImportError as error:
        raise BackendUnavailable(
            f"llguidance cannot be loaded ({error}), which schemas and grammars need; run: "
            "pip install llguidance"
        ) from error
    return llguidance


@dataclass(frozen=True)
class Words:
    """Hold a vocabulary in the form that the library needs; it is sent to another process by value.
    ``controls`` are tokens that are not text, ``ends`` those that end a completion."""

    tokens: tuple[bytes, ...]
    controls: tuple[int, ...]
    ends: tuple[int, ...]

    @cached_property
    def key(self) -> str:
        """Return a key that only equal vocabularies share."""
        found = sha256(repr((self.controls, self.ends, len(self.tokens))).encode())
        for token in self.tokens:
            found.update(len(token).to_bytes(4, "little") + token)
        return found.hexdigest()

    def opened(self) -> Tokens:
        wrapped = library().TokenizerWrapper(_Wrapped(self))
        opened: Tokens = library().LLTokenizer(
            wrapped, n_vocab=len(self.tokens), eos_token=[*self.ends]
        )
        return opened


@dataclass(frozen=True)
class Trial:
    """Hold a grammar and its limits. ``key`` is the vocabulary's; the vocabulary is sent too if the
    process that tries does not know it."""

    key: str
    words: Words | None
    seconds: float
    num_bytes: int
    source: str


class _Wrapped:
    """Present a vocabulary by the names that the library looks for."""

    bos_token_id = None

    def __init__(self, words: Words) -> None:
        self.tokens = words.tokens
        self.special_token_ids = [*words.controls]
        self.eos_token_id = words.ends[0]

    def __call__(self, text: bytes) -> list[int]:
        """Do nothing useful: the library only checks that this can be called. It would need it to
        force tokens, which is switched off."""
        raise AssertionError("no text is forced into tokens")


def compiled(tokens: Tokens, source: str) -> Matcher:
    """Compile a grammar in the library's notation; the result's ``is_error`` tells whether it is
    invalid. The stack is as deep as the grammar's references."""
    limits = library().LLParserLimits(**_LIMITS)
    matcher: Matcher = library().LLMatcher(tokens, source, log_level=0, limits=limits)
    return matcher


def fault(matcher: Matcher) -> str:
    """Return why a compiled matcher cannot continue; "" if it can, or if no token continues."""
    if not matcher.is_error():
        return ""
    reason = matcher.get_error().partition("\n")[0]
    return "" if reason in _DEAD_ENDS else reason
