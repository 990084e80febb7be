"""Find the special tokens that a text spells, in time linear in its length."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_LONGEST = 256  # longest token in characters; longer ones are compared one by one


class Spelled(NamedTuple):
    """Mark a special token at ``text[begin:end]``."""

    begin: int
    end: int
    token: int


class SpecialTokens:
    """Map tokens to fixed texts, whatever surrounds them."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = {text: token for text, token in tokens.items() if text}
        self._pattern = re.compile(_expression(self.tokens) if self.tokens else r"(?!)")

    def find(self, text: str) -> Iterator[Spelled]:
        """Yield the special tokens in ``text``, from left to right; the longest where several
        begin."""
        for match in self._pattern.finditer(text):
            yield Spelled(match.start(), match.end(), self.tokens[match[0]])


def _expression(texts: Mapping[str, int]) -> str:
    """Return a regular expression that matches all texts. Shared beginnings are compared once, so a
    thousand texts are as fast as a few."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for letter in text if len(text) <= _LONGEST else ():
            node = node.setdefault(letter, {})
        node[""] = {}
    long = sorted((text for text in texts if len(text) > _LONGEST), key=len, reverse=True)
    tree.pop("", None)
    return "|".join([*map(re.escape, long), *([_branches(tree)] if tree else [])])


def _branches(node: dict[str, Any]) -> str:
    """Return the expression of what may follow, longest first. A chain of single letters is not
    nested."""
    chain = ""
    while len(node) == 1 and "" not in node:
        ((letter, node),) = node.items()
        chain += re.escape(letter)
    inner = [re.escape(letter) + _branches(then) for letter, then in node.items() if letter]
    if not inner:
        return chain
    return f"{chain}(?:{'|'.join(inner)}){'?' if '' in node else ''}"


NO_TOKENS = SpecialTokens({})
