"""Decode with REST: the draft is what followed the text's last tokens in a datastore."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.drafting import constants
from duodec.drafting.continuations import most_frequent
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class Rest(Method):
    """Draft as in 2311.08252: the most frequent continuations of the longest suffix in the
    datastore."""

    name = "rest"
    needs_datastore = True

    num_tokens: int = constants.DATASTORE_TOKENS
    max_span: int = constants.DATASTORE_SPAN  # tokens of the suffix
    min_span: int = constants.DATASTORE_MIN_SPAN
    length: int = constants.DATASTORE_LENGTH  # tokens of a continuation

    def decode(self, request: Request) -> Loop:
        def propose(request: Request) -> Draft:
            windows = request.datastore.continuations(
                request.text, max_span=self.max_span, min_span=self.min_span, length=self.length
            )
            return most_frequent(windows, self.num_tokens).draft

        return serial(request, propose)
