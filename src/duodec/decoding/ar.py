"""Autoregressive decoding: one token a forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.core.round import Round
from duodec.decoding.loops import serial
from duodec.decoding.method import Method
from duodec.decoding.session import Session


@dataclass(frozen=True)
class Autoregressive(Method):
    """Plain decoding: what every other method must equal in text and beat in speed."""

    name = "ar"

    def rounds(self, session: Session) -> Iterator[Round]:
        return serial(session, lambda _: Draft())
