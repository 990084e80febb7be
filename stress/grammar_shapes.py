"""Make grammars in llama.cpp's notation by shape and size: what is cheap to send and dear to check.

Each shape takes a number of bytes and gives rules of about that size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt


def _listed(heads: list[str], rules: list[str]) -> str:
    return "\n".join([*heads, *rules, ""])


def chain(size: int) -> str:
    """Each rule names the next one."""
    num = max(1, size // 22)
    rules = [f'r{i} ::= "a" r{i + 1}' for i in range(num)]
    return _listed(["root ::= r0"], [*rules, f'r{num} ::= "b"'])


def backward_chain(size: int) -> str:
    """The same, from the last to the first."""
    head, *rules = chain(size).splitlines()
    return _listed([head], rules[::-1])


def cycle(size: int) -> str:
    """The last rule names the first one."""
    num = max(1, size // 22)
    return _listed(["root ::= r0"], [f'r{i} ::= "a" r{(i + 1) % num}' for i in range(num)])


def fan(size: int) -> str:
    """One rule names all others."""
    num = max(1, size // 22)
    names = [f"r{i}" for i in range(num)]
    return _listed([f"root ::= {' | '.join(names)}"], [f'{name} ::= "a"' for name in names])


def all_pairs(size: int) -> str:
    """Each rule names all that follow it."""
    num = max(2, isqrt(size // 3))
    rules = [f"r{i} ::= {' '.join(f'r{j}' for j in range(i + 1, num))}" for i in range(num)]
    return _listed(["root ::= r0"], rules)


SHAPES: Mapping[str, Callable[[int], str]] = {
    "a chain": chain,
    "a chain backwards": backward_chain,
    "a cycle": cycle,
    "a fan": fan,
    "all pairs": all_pairs,
    "a literal": lambda size: 'root ::= "' + "a" * size + '"',
    "escapes": lambda size: 'root ::= "' + "\\x41" * (size // 4) + '"',
    "a set": lambda size: "root ::= [" + "a-z" * (size // 3) + "]",
    "alternatives": lambda size: 'root ::= "a"' + '|"a"' * (size // 4),
    "repetitions": lambda size: "root ::= " + '"a"*' * (size // 4),
    "counts": lambda size: "root ::= " + '("a"){9,99}' * (size // 11),
    "empty groups": lambda size: "root ::= " + "()" * (size // 2),
    "nested groups": lambda size: "root ::= " + "(" * size,
    "comments": lambda size: 'root ::= "a"\n' + "#\n" * (size // 2),
    "blanks": lambda size: 'root ::= "a"' + " " * size,
    "one rule again and again": lambda size: 'root ::= "a"\n' * (size // 13),
    "rules that are not there": lambda size: (
        "root ::= " + " ".join(f"q{i}" for i in range(size // 7))
    ),
    "a long name": lambda size: "root ::= " + "a" * size,
}  # fmt: skip
"""By what they are made of."""
