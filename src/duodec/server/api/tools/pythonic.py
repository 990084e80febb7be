"""Read and constrain calls that are written as in Python: LFM2's and Olmo 3's."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duodec.backends.grammar.llguidance import json_term
from duodec.server.api.tools.call import Literal, Tool, name_of, parameters_of
from duodec.server.api.tools.grammars import resolved, some_tool, with_root
from duodec.server.api.tools.splitting import BetweenTags

_LONGEST = 100_000  # characters of a block, which a compiler reads
_CONSTANTS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Pythonic(BetweenTags):
    """Calls between tags, within ``opening`` and ``closing``, ``separator`` between two."""

    opening: str
    closing: str
    separator: str

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        inside = self.inside(block).strip()
        if len(inside) > _LONGEST:
            raise ValueError("the block is too long")
        found = [call for line in ast.parse(inside).body for call in _calls(line)]
        if not found:
            raise ValueError("there is no call")
        return found

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        more = f" ({literal(self.separator)} tool)*" if is_many else ""
        head, tail = literal(self.begin + self.opening), literal(self.closing + self.finish)
        rules = [f"calls: {head} tool{more} {tail}", some_tool(tools)]
        for i, tool in enumerate(tools):
            rules += _rules(i, tool, literal)
        return rules


def _calls(line: ast.stmt) -> list[tuple[str, Any]]:
    if not isinstance(line, ast.Expr):
        raise ValueError("a line is no call")
    items = line.value.elts if isinstance(line.value, ast.List) else [line.value]
    found = []
    for item in items:
        if not isinstance(item, ast.Call) or item.args:
            raise ValueError("an item is no call with named arguments")
        values = {str(one.arg): _value(one.value) for one in item.keywords}
        found.append((ast.unparse(item.func), values))
    return found


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key else None for key in node.keys]
        return dict(zip(map(str, keys), map(_value, node.values), strict=True))
    value = ast.literal_eval(node)
    json.dumps(value, allow_nan=False)  # else it is no argument
    return value


def _rules(number: int, tool: Tool, literal: Literal) -> list[str]:
    """A tool's arguments in the order of its schema: those that must be given first."""
    schema = parameters_of(tool)
    names = schema.get("properties") if isinstance(schema, dict) else None
    names = names if isinstance(names, dict) else {}
    required = [name for name in names if name in schema.get("required", ())]
    optional = [name for name in names if name not in required]
    rules, parts = [], []
    for i, name in enumerate([*required, *optional]):
        rule = f"argument{number}_{i}"
        inner = with_root(names[name], schema)
        is_bool = resolved(inner).get("type") == "boolean"
        value = '("True" | "False")' if is_bool else json_term(inner)
        rules += [f"{rule}: {literal(f'{name}=')} value{number}_{i}", f"value{number}_{i}: {value}"]
        term = rule if not i else f'", " {rule}'
        parts.append(term if name in required else f"({term})?")
    if not required:  # an argument that is left out leaves no comma
        parts = [" | ".join([f"argument{number}_{i}" for i in range(len(optional))] or ['""'])]
        parts = [f"({parts[0]})?"] if optional else []
    head = literal(f"{name_of(tool)}(")
    return [f'tool{number}: {" ".join([head, *parts])} ")"', *rules]


LFM2 = Pythonic("<|tool_call_start|>", "<|tool_call_end|>", "[", "]", ", ")
OLMO = Pythonic("<function_calls>", "</function_calls>", "\n", "\n", "\n")
