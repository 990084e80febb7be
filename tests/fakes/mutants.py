"""Corruptions of the code, which the tests must catch.

A corruption is a change of the syntax tree: patterns of Python, in which one capital letter stands
for any expression, the same one for the same expression, and ``P0``, ``P1``, ... for the function's
parameters. So neither formatting nor the names of variables matter.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

_WILD = re.compile(r"[A-Z]\d?")
_UNCOMPARED = {"ctx", "type_comment", "kind"}

Bound = dict[str, ast.AST]
"""What stands for each letter."""


@dataclass(frozen=True)
class Mutant:
    """``function`` with each pattern of ``changes`` replaced by the code that follows it: its name,
    and the tests that must notice it. A letter that an earlier change found means the same in later
    ones; a change to itself only finds."""

    name: str
    function: Callable
    changes: tuple[tuple[str, str], ...]
    checks: tuple[Callable[[], None], ...] = ()

    def code(self):
        """The code of the corrupted function."""
        function = ast.parse(textwrap.dedent(inspect.getsource(self.function)))
        (definition,) = function.body
        assert isinstance(definition, ast.FunctionDef)
        bound: Bound = {f"P{i}": ast.Name(arg.arg) for i, arg in enumerate(definition.args.args)}
        for old, new in self.changes:
            places = list(_matches(function, ast.parse(old).body, bound))
            assert len(places) == 1, f"{self.name}: '{old}' is there {len(places)} times, not once"
            place, bound = places[0]
            place.put(_filled(ast.parse(new).body, bound))
        scope = dict(self.function.__globals__)
        exec(compile(ast.unparse(function), f"<{self.name}>", "exec", dont_inherit=True), scope)
        found = scope[self.function.__name__]
        return getattr(found, "fget", found).__code__


@dataclass(frozen=True)
class _Place:
    """Statements of a block, or an expression in a field of a node."""

    owner: ast.AST
    field: str
    at: slice | int | None

    def put(self, statements: list[ast.stmt]) -> None:
        if isinstance(self.at, slice):
            getattr(self.owner, self.field)[self.at] = statements
            return
        (statement,) = statements
        assert isinstance(statement, ast.Expr)
        if self.at is None:
            setattr(self.owner, self.field, statement.value)
        else:
            getattr(self.owner, self.field)[self.at] = statement.value


def _matches(
    tree: ast.AST, pattern: list[ast.stmt], bound: Bound
) -> Iterator[tuple[_Place, Bound]]:
    """Where an expression, or a run of statements, is in a tree."""
    is_expression = len(pattern) == 1 and isinstance(pattern[0], ast.Expr)
    wanted = pattern[0].value if is_expression else pattern
    for owner in ast.walk(tree):
        for field, value in ast.iter_fields(owner):
            if is_expression:
                several = isinstance(value, list)
                for at, one in enumerate(value if several else [value]):
                    if isinstance(one, ast.expr) and (found := _bound(wanted, one, bound)):
                        yield _Place(owner, field, at if several else None), found[0]
            elif isinstance(value, list):
                for begin in range(len(value) - len(pattern) + 1):
                    at = slice(begin, begin + len(pattern))
                    if found := _bound(wanted, value[at], bound):
                        yield _Place(owner, field, at), found[0]


def _bound(pattern: object, code: object, bound: Bound) -> tuple[Bound] | None:
    """What the letters stand for if the code is as the pattern says; None if it is not."""
    if isinstance(pattern, ast.Name) and _WILD.fullmatch(pattern.id):
        known = bound.get(pattern.id)
        if known is None:
            return ({**bound, pattern.id: code},) if isinstance(code, ast.expr) else None
        return (bound,) if _bound(known, code, {}) else None
    if type(pattern) is not type(code):
        return None
    if isinstance(pattern, ast.AST):
        parts = [
            (value, getattr(code, field))
            for field, value in ast.iter_fields(pattern)
            if field not in _UNCOMPARED
        ]
    elif isinstance(pattern, list):
        if len(pattern) != len(code):
            return None
        parts = list(zip(pattern, code, strict=True))
    else:
        return (bound,) if pattern == code else None
    for own, other in parts:
        found = _bound(own, other, bound)
        if found is None:
            return None
        (bound,) = found
    return (bound,)


class _Filled(ast.NodeTransformer):
    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return deepcopy(self._bound[node.id]) if _WILD.fullmatch(node.id) else node


def _filled(statements: list[ast.stmt], bound: Bound) -> list[ast.stmt]:
    """The statements with what the letters stand for."""
    return [_Filled(bound).visit(statement) for statement in statements]
