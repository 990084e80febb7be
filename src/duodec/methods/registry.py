"""Look up methods by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches

from duodec.errors import BadOption
from duodec.methods.ar import Autoregressive
from duodec.methods.auto import Auto
from duodec.methods.duo import DuoDecoding
from duodec.methods.lookahead import Lookahead
from duodec.methods.lookup import PromptLookup
from duodec.methods.method import Method
from duodec.methods.pearl import Pearl
from duodec.methods.recycling import TokenRecycling
from duodec.methods.rest import Rest
from duodec.methods.sps import SpeculativeSampling
from duodec.methods.sps_rejection import RejectionSampling
from duodec.methods.stream import Stream
from duodec.methods.suffix import SuffixDecoding

METHODS: Mapping[str, Callable[..., Method]] = {
    kind.name: kind
    for kind in (
        Autoregressive,
        SpeculativeSampling,
        RejectionSampling,
        PromptLookup,
        Rest,
        Lookahead,
        TokenRecycling,
        SuffixDecoding,
        Pearl,
        DuoDecoding,
        Stream,
        Auto,
    )
}

DEFAULT_METHOD = Auto.name


def method(name: str) -> Method:
    """A new method of that name, which has learned nothing yet. ``sps:2`` is `sps` with two draft
    tokens a round. Raises BadOption, which lists the names."""
    base, _, number = name.partition(":")
    if base not in METHODS:
        near = get_close_matches(base, METHODS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise BadOption(f"unknown method '{name}'{hint}; choose from: {', '.join(METHODS)}")
    kind = METHODS[base]
    if base == name:
        return kind()
    if all(field.name != "num_tokens" for field in fields(kind)):  # type: ignore[arg-type]
        raise BadOption(f"method '{base}' takes no number of draft tokens; write '{base}'")
    if not (number.isdecimal() and int(number) > 0):
        raise BadOption(f"'{name}' does not say how many tokens to draft; write, say, {base}:4")
    return kind(num_tokens=int(number))
