"""Decode with EAGLE-3: a layer of its own file drafts a chain from three depths of the target."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.methods.mtp import MultiTokenPrediction


@dataclass(frozen=True)
class Eagle3(MultiTokenPrediction):
    """Draft as in 2503.01840, on llama.cpp: a layer of its own file fuses states from three depths
    of the target and proposes a chain; llama.cpp's ``draft-eagle3``."""

    name = "eagle3"
    needs_heads = "eagle3"
