"""Decode with block drafters: DFlash, DFlash2 and DSpark draft a block of tokens in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.methods.mtp import MultiTokenPrediction


@dataclass(frozen=True)
class DFlash(MultiTokenPrediction):
    """Draft as in 2602.06036, on llama.cpp. Layers that fill masked places behind the target's
    states propose a chain of ``num_tokens`` tokens, or as many as the drafter's blocks have;
    llama.cpp's ``draft-dflash``."""

    name = "dflash"
    needs_heads = "dflash"

    num_tokens: int = 15


@dataclass(frozen=True)
class DFlash2(DFlash):
    """Draft like DFlash where the drafter says how likely a token is after each candidate of the
    place before; the chain follows these."""

    name = "dflash2"
    needs_heads = "dflash2"


@dataclass(frozen=True)
class DSpark(DFlash):
    """Draft like DFlash where a place's logits know the likeliest token of the place before;
    llama.cpp's ``draft-dspark``."""

    name = "dspark"
    needs_heads = "dspark"
