"""PEARL: draft the next chain while the target verifies the last one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duodec.core.round import Round
from duodec.decoding.loops import overlapped
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.drafting.plans import Chain


@dataclass(frozen=True)
class Pearl(Method):
    """2408.11850. Pre-verify: the first token of a chain is judged while the rest is drafted.
    Post-verify: the next chain is drafted while this one is judged."""

    name = "pearl"
    needs_draft_model = True
    is_overlapped = True

    def rounds(self, session: Session) -> Iterator[Round]:
        return overlapped(session, Chain)
