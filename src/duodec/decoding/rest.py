"""REST: what followed the text's last tokens in a datastore, as a token tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.core.round import Round
from duodec.decoding.loops import serial
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.drafting.continuations import most_frequent


@dataclass(frozen=True)
class Rest(Method):
    """2311.08252. The longest suffix that the datastore knows; its commonest continuations."""

    name = "rest"
    needs_datastore = True

    num_tokens: int = 64
    max_span: int = 16  # tokens of the suffix
    min_span: int = 2
    length: int = 10  # tokens of a continuation

    def rounds(self, session: Session) -> Iterator[Round]:
        def propose(session: Session) -> Draft:
            windows = session.datastore.continuations(
                session.text, max_span=self.max_span, min_span=self.min_span, length=self.length
            )
            return most_frequent(windows, self.num_tokens).draft

        return serial(session, propose)
