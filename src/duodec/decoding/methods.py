"""The registry: every method by the name it has on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import ClassVar, Protocol

from duodec.core.round import Round
from duodec.decoding.ar import Autoregressive
from duodec.decoding.duo import DuoDecoding
from duodec.decoding.lookup import PromptLookup
from duodec.decoding.pearl import Pearl
from duodec.decoding.session import Session
from duodec.decoding.sps import SpeculativeSampling
from duodec.decoding.sps_rejection import RejectionSampling
from duodec.errors import BadOption


class Method(Protocol):
    """A way to decode: rounds over a session until its text is full."""

    name: ClassVar[str]
    needs_draft_model: ClassVar[bool]
    is_overlapped: ClassVar[bool]
    """The drafter computes while the target does."""
    reads_off_path: ClassVar[bool]
    """Laws or rows beside the text are read, which a replayed text cannot answer."""

    def rounds(self, session: Session) -> Iterator[Round]: ...


METHODS: Mapping[str, Callable[[], Method]] = {
    kind.name: kind
    for kind in (
        Autoregressive,
        SpeculativeSampling,
        RejectionSampling,
        PromptLookup,
        Pearl,
        DuoDecoding,
    )
}


def method(name: str) -> Method:
    """The method of that name. Raises BadOption, which lists the names."""
    if name not in METHODS:
        near = get_close_matches(name, METHODS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise BadOption(f"unknown method '{name}'{hint}; choose from: {', '.join(METHODS)}")
    return METHODS[name]()
