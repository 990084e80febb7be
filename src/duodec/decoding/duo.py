"""DuoDecoding: as PEARL, with several sequences where the draft is unsure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duodec.core.round import Round
from duodec.decoding.loops import overlapped
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.drafting.plans import Sequences


@dataclass(frozen=True)
class DuoDecoding(Method):
    """2503.00784. The budget is measured: the draft tokens that fit in one target forward."""

    name = "duo"
    needs_draft_model = True
    is_overlapped = True

    def rounds(self, session: Session) -> Iterator[Round]:
        return overlapped(session, Sequences)
