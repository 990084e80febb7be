"""One-line corruptions of the code, which the tests must catch."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """``function`` with ``old`` replaced by ``new``: its name, and the test that must notice it."""

    name: str
    function: Callable
    old: str
    new: str
    checks: tuple[Callable[[], None], ...]

    def code(self):
        """The code of the corrupted function."""
        source = textwrap.dedent(inspect.getsource(self.function))
        assert source.count(self.old) == 1, f"{self.name}: the source has changed, adapt it"
        scope = dict(self.function.__globals__)
        corrupted = source.replace(self.old, self.new)
        exec(compile(corrupted, f"<{self.name}>", "exec", dont_inherit=True), scope)
        found = scope[self.function.__name__]
        return getattr(found, "fget", found).__code__
