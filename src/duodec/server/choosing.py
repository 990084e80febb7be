"""Which method a request is answered with, and what is read of its scores."""

from __future__ import annotations

from dataclasses import replace

from duodec.decoding.method import Method
from duodec.decoding.methods import METHODS
from duodec.engine import Engine
from duodec.errors import BadOption
from duodec.server.keeping import Keep, keep_laws, keep_path, keep_rows, marking
from duodec.server.logprobs import Mark

_REJECTION = "sps-rejection"  # the one rule that reads laws


def method_for(engine: Engine, name: str | None, max_draft: int | None) -> Method:
    """The slot's method of that name. Raises BadOption."""
    method = engine.method(name)
    if max_draft is None:
        return method
    if "num_tokens" not in getattr(method, "__dataclass_fields__", {}):
        raise BadOption(f"method '{method.name}' takes no max_draft; leave it out")
    # what it has learned is shared with the one that it is a copy of
    return replace(method, num_tokens=max_draft)  # type: ignore[type-var]


def keep_for(method: Method, marks: list[Mark], num_logprobs: int | None) -> Keep:
    """What must be read of each forward for this method, and for its logprobs. Raises BadOption."""
    keep: Keep = keep_rows if method.reads_off_path else keep_path
    if method.name == _REJECTION:
        if num_logprobs is not None:
            raise BadOption(f"method '{method.name}' tells no logprobs; ask without them")
        return keep_laws
    return keep if num_logprobs is None else marking(keep, marks, num_logprobs)


def base_name(name: str) -> str:
    """A method's name without a number; BadOption lists the names there are."""
    base = name.partition(":")[0]
    if base != name or base not in METHODS:
        raise BadOption(
            f"unknown method '{name}'; choose from: {', '.join(METHODS)}, and say how many tokens "
            "to draft with max_draft"
        )
    return base
