"""Decode autoregressively: one token a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.draft import NO_DRAFT
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class Autoregressive(Method):
    """Decode plainly: every other method must equal its text and beat its speed."""

    name = "ar"

    def decode(self, request: Request) -> Loop:
        return serial(request, lambda _: NO_DRAFT)
