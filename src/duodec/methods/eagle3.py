"""Decode with EAGLE-3: a layer of its own file drafts a chain from three depths of the target."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.methods.mtp import MultiTokenPrediction


@dataclass(frozen=True)
class Eagle3(MultiTokenPrediction):
    """2503.01840 on llama.cpp: such a chain from a layer of its own file, which fuses states from
    three depths of the target; llama.cpp's ``draft-eagle3``."""

    name = "eagle3"
    needs_heads = "eagle3"
