"""Choose the method that a request is decoded with."""

from __future__ import annotations

from dataclasses import replace

from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.methods.method import Method
from duodec.methods.registry import METHODS, names


def method_for(llm: LLM, name: str | None, max_draft: int | None) -> Method:
    """The method of that name. Raises BadOption."""
    method = llm.method(name)
    if max_draft is None:
        return method
    if "num_tokens" not in getattr(method, "__dataclass_fields__", {}):
        raise BadOption(f"method '{method.name}' takes no max_draft; leave it out")
    # what it has learned is shared with the one that it is a copy of
    return replace(method, num_tokens=max_draft)  # type: ignore[type-var]


def base_name(name: str) -> str:
    """A method's name, without a number and without a module: a client names nothing that is then
    imported. BadOption lists the names there are."""
    if ":" in name or (name not in METHODS and name not in names()):
        raise BadOption(
            f"unknown method '{name}'; choose from: {', '.join(names())}, and say how many tokens "
            "to draft with max_draft"
        )
    return name
