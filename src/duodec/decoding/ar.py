"""Autoregressive decoding: one token a forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from duodec.core.draft import Draft
from duodec.core.round import Round
from duodec.decoding.loops import serial
from duodec.decoding.session import Session


@dataclass(frozen=True)
class Autoregressive:
    """Plain decoding: what every other method must equal in text and beat in speed."""

    name: ClassVar[str] = "ar"
    needs_draft_model: ClassVar[bool] = False
    is_overlapped: ClassVar[bool] = False
    reads_off_path: ClassVar[bool] = False

    def rounds(self, session: Session) -> Iterator[Round]:
        return serial(session, lambda _: Draft())
