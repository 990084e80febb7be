"""Every tuned constant of drafting, planning and methods stands in one file, explained and used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import duodec

ROOT = Path(duodec.__file__).parent
FILE = ROOT / "drafting" / "constants.py"
FILES = [
    path for room in ("drafting", "planning", "methods") for path in (ROOT / room).glob("*.py")
]
# formats, guards, and settings of published methods
OTHERS = {
    "drafting/datastore_file": {"_VERSION", "MAX_HEADER_BYTES", "_ALIGNMENT", "_CHUNK"},
    "drafting/continuations": {"END"},
    "drafting/recycling": {"_TEMPLATE"},
    "drafting/plans": {"MAX_SEQUENCES"},
    "methods/suffix": {"_MAX_DEPTH"},
    "planning/acceptance": {"NUM_RANKS"},
    "planning/coupling": {"LEAST"},
}


def numbers(path: Path) -> Iterator[str]:
    """Names that a module gives to numbers."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign):
            parts = [*ast.walk(node.value)]
            literals = [one for one in parts if isinstance(one, ast.Constant)]
            is_number = literals and all(isinstance(one.value, int | float) for one in literals)
            if is_number and not any(isinstance(one, ast.Name | ast.Call) for one in parts):
                yield from (one.id for target in node.targets for one in ast.walk(target)
                            if isinstance(one, ast.Name))  # fmt: skip


def test_no_other_file_of_the_rooms_has_tuned_constants() -> None:
    for path in FILES:
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        if path != FILE:
            assert set(numbers(path)) == OTHERS.get(name, set()), name


def test_each_is_used_and_explained() -> None:
    used = "\n".join(path.read_text("utf-8") for path in FILES if path != FILE)
    names = list(numbers(FILE))
    assert 50 < len(names) < 85, "who adds one, takes one away"
    assert set(names) <= set(re.findall(r"constants\.(\w+)", used))
    body = ast.parse(FILE.read_text("utf-8")).body
    for before, after in pairwise([*body, None]):
        if isinstance(before, ast.Assign) and not isinstance(after, ast.Assign):
            assert isinstance(after, ast.Expr), ast.unparse(before)
