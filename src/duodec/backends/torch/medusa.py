"""Compute Medusa heads (2401.10774): each guesses one token further ahead, from one state alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duodec.backends.torch.heads import Guesses, HeadFiles, StatedText, fitting
from duodec.backends.torch.library import torch
from duodec.backends.torch.network import Network
from duodec.core.candidates import CandidateTree
from duodec.core.protocols import Candidates

FILE = "medusa_lm_head"  # of the weights, without its ending


class ResBlock(torch.nn.Module):  # type: ignore[misc]
    """x + silu(W x + b): the identity, where W and b are 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states + torch.nn.functional.silu(self.linear(states))


def head(num_layers: int, width: int, num_vocab: int) -> Any:
    """One head, with the names of the published weights."""
    blocks = [ResBlock(width) for _ in range(num_layers)]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(width, num_vocab, bias=False))


class Medusa:
    """Heads in a folder as Medusa publishes them. Raises ModelUnreadable."""

    kind = "medusa"

    def __init__(self, files: HeadFiles, network: Network) -> None:
        weights = files.weights(FILE)
        num_heads = int(files.config["medusa_num_heads"])
        num_heads = min(num_heads, 1 + max(int(name.partition(".")[0]) for name in weights))
        num_layers = int(files.config.get("medusa_num_layers", 1))
        like = network.embedding.weight
        width = like.shape[-1]
        with torch.device("meta"):
            heads = [head(num_layers, width, network.num_vocab) for _ in range(num_heads)]
        self._heads = torch.nn.ModuleList(heads)
        fitting(self._heads, weights, files, like)

    @property
    def num_heads(self) -> int:
        return len(self._heads)

    def at(self, text: StatedText) -> MedusaHeads:
        state = text.last_state
        logits = torch.cat([own(state) for own in self._heads])
        return MedusaHeads(text.guesses(logits.float()))


@dataclass(frozen=True)
class MedusaHeads:
    """All heads at the end of a text: what one guesses is the same after all tokens before."""

    guesses: Guesses  # a row a head

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        paths = [tree.path_tokens(leaf) for leaf in leaves]
        return [self.guesses.after(len(path), path, count) for path in paths]
