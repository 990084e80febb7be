"""Autoregressive decoding: one token a forward."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class Autoregressive(Method):
    """Plain decoding: what every other method must equal in text and beat in speed."""

    name = "ar"

    def decode(self, request: Request) -> Loop:
        return serial(request, lambda _: Draft())
