"""Translate grammars in llama.cpp's notation (GBNF) into Lark's, which llguidance reads.

Lark's grammars have a lexer, which takes the longest word that it knows; GBNF's have none. So here
each character is a word of its own where rules call themselves; where none does, the whole grammar
is one expression, which is followed faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

MOST_DEPTH = 64  # of brackets
MOST_REPEATS = 2000  # as llama.cpp has it
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TIMES = re.compile(r"\{\s*(\d{1,6})\s*(,?)\s*(\d{1,6})?\s*\}")
_ESCAPE = re.compile(
    r"\\(?:([nrt\\\"\[\]^-])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))"
)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
_BLANK = re.compile(r"(?:[ \t]|#[^\n]*)*")
_BLANKS = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")


@dataclass(frozen=True)
class _Rule:
    """A rule as an expression in Lark's notation, and the rules that it names. ``body`` has the
    form ``\\0name\\0`` in place of their names."""

    body: str
    names: frozenset[str]


def in_lark(source: str) -> str:
    """The grammar whose ``root`` matches what that of ``source`` does. Raises ValueError, which
    says what is wrong with it."""
    rules = _Parser(source).rules()
    if "root" not in rules:
        raise ValueError("there is no rule named root")
    known = frozenset(rules)
    for name, rule in rules.items():
        if missing := sorted(rule.names - known):
            raise ValueError(f"rule {name} names {missing[0]}, which there is not")
    # terminals of Lark may not call themselves, and rules may
    head = "r" if _is_recursive(rules) else "R"
    numbers = {name: f"{head}{i}" for i, name in enumerate(rules)}
    lines = [f"start: {numbers['root']}"]
    for name, rule in rules.items():
        body = re.sub("\0([^\0]+)\0", lambda found: numbers[found[1]], rule.body)
        lines.append(f"{numbers[name]}: {body}")
    return "\n".join(lines)


def _is_recursive(rules: dict[str, _Rule]) -> bool:
    """Some rule names itself, or one that does. Takes time linear in the names."""
    try:
        TopologicalSorter({name: rule.names for name, rule in rules.items()}).prepare()
    except CycleError:
        return True
    return False


class _Parser:
    def __init__(self, source: str) -> None:
        self._source, self._at = source, 0
        self._names: set[str] = set()

    def rules(self) -> dict[str, _Rule]:
        found: dict[str, _Rule] = {}
        self._skip(_BLANKS)
        while self._at < len(self._source):
            name = self._name()
            self._skip(_BLANK)
            if not self._take("::="):
                raise self._error(f"after {name} comes no ::=")
            self._names = set()
            self._skip(_BLANKS)
            body = self._alternatives(0)
            found[name] = _Rule(body, frozenset(self._names))
            if self._at < len(self._source) and self._source[self._at] not in "\r\n":
                raise self._error("a rule has not ended")
            self._skip(_BLANKS)
        return found

    def _alternatives(self, depth: int) -> str:
        if depth > MOST_DEPTH:
            raise self._error(f"brackets are nested more than {MOST_DEPTH} times")
        found = [self._sequence(depth)]
        while self._take("|"):
            self._skip(_BLANKS)
            found.append(self._sequence(depth))
        return " | ".join(found)

    def _sequence(self, depth: int) -> str:
        blank = _BLANKS if depth else _BLANK
        items: list[str] = []
        while (item := self._item(depth)) is not None:
            self._skip(blank)
            items.append(self._repeated(item))
            self._skip(blank)
        return " ".join(items) or '""'

    def _item(self, depth: int) -> str | None:
        sign = self._source[self._at : self._at + 1]
        if sign == '"':
            letters = self._literal()
            return f"({' '.join(map(_class_of, letters))})" if letters else '""'
        if sign == "[":
            return self._class()
        if sign == ".":
            self._at += 1
            return "/(?s:.)/"
        if sign == "(":
            self._at += 1
            self._skip(_BLANKS)
            inner = self._alternatives(depth + 1)
            if not self._take(")"):
                raise self._error("a bracket is not closed")
            return f"({inner})"
        if sign and _NAME.match(sign):
            name = self._name()
            self._names.add(name)
            return f"\0{name}\0"
        return None

    def _repeated(self, item: str) -> str:
        for sign in "*+?":
            if self._take(sign):
                return f"{item}{sign}"
        found = _TIMES.match(self._source, self._at)
        if found is None:
            return item
        self._at = found.end()
        least = int(found[1])
        most = least if not found[2] else None if found[3] is None else int(found[3])
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise self._error(f"{found[0]} is no number of repetitions up to {MOST_REPEATS}")
        return f"{item}{{{least},{'' if most is None else most}}}"

    def _name(self) -> str:
        found = _NAME.match(self._source, self._at)
        if found is None:
            raise self._error("no name of a rule")
        self._at = found.end()
        return found[0]

    def _literal(self) -> list[str]:
        self._at += 1
        return list(self._characters('"'))

    def _class(self) -> str:
        """A set of characters, as an expression."""
        self._at += 1
        is_negated = self._take("^")
        letters = list(self._characters("]", is_set=True))
        parts: list[str] = []
        i = 0
        while i < len(letters):
            if i + 2 < len(letters) and letters[i + 1] == "\0-":
                begin, end = letters[i], letters[i + 2].lstrip("\0")
                if begin > end:
                    raise self._error("a range of characters runs backwards")
                parts.append(f"{_hex(begin)}-{_hex(end)}")
                i += 3
            else:
                parts.append(_hex(letters[i].lstrip("\0") or "\0"))
                i += 1
        if not parts:
            raise self._error("a set of characters is empty")
        return f"/[{'^' if is_negated else ''}{''.join(parts)}]/"

    def _characters(self, end: str, *, is_set: bool = False) -> Iterator[str]:
        """Up to ``end``; the sign of a range in a set is marked."""
        while not self._take(end):
            letter = self._source[self._at : self._at + 1]
            if letter in ("", "\n") or letter == "\0":
                raise self._error(f"{end} is missing")
            if letter != "\\":
                self._at += 1
                yield "\0-" if is_set and letter == "-" else letter
                continue
            found = _ESCAPE.match(self._source, self._at)
            if found is None:
                raise self._error("an escape that is not known")
            self._at = found.end()
            plain, *codes = found.groups()
            if plain is not None:
                yield _PLAIN.get(plain, plain)
                continue
            code = int(next(code for code in codes if code is not None), 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise self._error(f"{found[0]} is no character")
            yield chr(code)

    def _take(self, text: str) -> bool:
        is_there = self._source.startswith(text, self._at)
        self._at += len(text) * is_there
        return is_there

    def _skip(self, blank: re.Pattern[str]) -> None:
        found = blank.match(self._source, self._at)
        assert found is not None, "it matches nothing, too"
        self._at = found.end()

    def _error(self, why: str) -> ValueError:
        line = self._source.count("\n", 0, self._at) + 1
        return ValueError(f"line {line}: {why}")


def _class_of(letter: str) -> str:
    return f"/[{_hex(letter)}]/"


def _hex(letter: str) -> str:
    return f"\\x{{{ord(letter):x}}}"
