"""Compute Medusa heads (2401.10774): each guesses one token further ahead, from one state alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from duodec.core.candidates import CandidateTree
from duodec.core.targets import Candidates
from duodec_torch.forward.network import Network, num_params
from duodec_torch.heads.files import HeadFiles, fitting, number
from duodec_torch.heads.states import Guesses, StatedText
from duodec_torch.library import torch


class ResBlock(torch.nn.Module):  # type: ignore[misc]
    """x + silu(W x + b): the identity, where W and b are 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states + torch.nn.functional.silu(self.linear(states))


class MedusaModule(torch.nn.ModuleList):  # type: ignore[misc]
    """The heads, with the names of the published weights: some blocks and a matrix each."""

    config: ClassVar[dict[str, object]] = {}  # beyond the numbers of heads and layers

    def __init__(self, num_heads: int, num_layers: int, width: int, num_vocab: int) -> None:
        super().__init__(
            torch.nn.Sequential(
                *(ResBlock(width) for _ in range(num_layers)),
                torch.nn.Linear(width, num_vocab, bias=False),
            )
            for _ in range(num_heads)
        )

    @property
    def matrices(self) -> list[torch.nn.Linear]:
        """The heads' last layers."""
        return [head[-1] for head in self]

    def begin_as_target(self) -> None:
        """Have every head pass the state on."""
        for *blocks, _ in self:
            for block in blocks:
                torch.nn.init.zeros_(block.linear.weight)
                torch.nn.init.zeros_(block.linear.bias)

    def state(self, i: int, states: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """What the matrix of head i reads: (rows, width). ``following`` are the embeddings of the
        tokens that come between, (rows, 1 + i, width), and tell it nothing."""
        found: torch.Tensor = self[i][:-1](states)
        return found


class Medusa:
    """Heads in a folder as Medusa publishes them. Raises ModelUnreadable."""

    kind = "medusa"

    def __init__(self, files: HeadFiles, network: Network) -> None:
        weights = files.weights("medusa_lm_head")
        like = network.embedding.weight
        # the first releases say 2 of five heads
        num_heads = 1 + max((int(name.partition(".")[0]) for name in weights), default=0)
        num_layers = number(files, "medusa_num_layers")
        with torch.device("meta"):
            self._module = MedusaModule(num_heads, num_layers, like.shape[-1], network.num_vocab)
        fitting(self._module, weights, files, like)

    @property
    def num_heads(self) -> int:
        return len(self._module)

    @property
    def num_params(self) -> int:
        return num_params(self._module)

    def at(self, text: StatedText) -> MedusaHeads:
        logits = [own(text.last_state) for own in self._module]
        return MedusaHeads(text.guesses(torch.cat(logits)))


@dataclass(frozen=True)
class MedusaHeads:
    """All heads at the end of a text: what one guesses is the same after all tokens before."""

    guesses: Guesses  # a row a head

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        paths = [tree.path_tokens(leaf) for leaf in leaves]
        return [self.guesses.after(len(path), path, count) for path in paths]
