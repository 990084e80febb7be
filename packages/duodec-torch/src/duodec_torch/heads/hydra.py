"""Compute Hydra heads (2402.05109): as Medusa's, and each knows the tokens drafted before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from duodec.core.candidates import CandidateTree
from duodec.core.targets import Candidates
from duodec.errors import ModelUnreadable
from duodec_torch.forward.network import Network, num_params
from duodec_torch.heads.files import HeadFiles, fitting, number
from duodec_torch.heads.medusa import ResBlock
from duodec_torch.heads.states import StatedText
from duodec_torch.library import torch
from duodec_torch.uploads import upload


class GroundedBlock(torch.nn.Module):  # type: ignore[misc]
    """A state and the embeddings of ``num_tokens`` tokens made one state."""

    def __init__(self, width: int, num_tokens: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width * (1 + num_tokens), width)
        self.res_connection = torch.nn.Linear(width * (1 + num_tokens), width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.res_connection(states)
        return found + torch.nn.functional.silu(self.linear(states))


class HydraModule(torch.nn.Module):  # type: ignore[misc]
    """The heads, with the names of the published weights."""

    config: ClassVar[dict[str, object]] = {"hydra_head_arch": "mlp", "grounded_heads": True}

    def __init__(self, num_heads: int, num_layers: int, width: int, num_vocab: int) -> None:
        super().__init__()
        self.hydra_mlp = torch.nn.ModuleList(
            torch.nn.Sequential(
                GroundedBlock(width, 1 + i), *(ResBlock(width) for _ in range(num_layers - 1))
            )
            for i in range(num_heads)
        )
        self.hydra_lm_head = torch.nn.ModuleList(
            torch.nn.Linear(width, num_vocab) for _ in range(num_heads)
        )

    @property
    def matrices(self) -> list[torch.nn.Linear]:
        """The heads' last layers."""
        return list(self.hydra_lm_head)

    def begin_as_target(self) -> None:
        """Have every head pass the state on."""
        for blocks, matrix in zip(self.hydra_mlp, self.hydra_lm_head, strict=True):
            for weight in (*blocks.parameters(), matrix.bias):
                torch.nn.init.zeros_(weight)
            identity = blocks[0].res_connection.weight
            torch.nn.init.eye_(identity[:, : len(identity)])

    def state(self, i: int, states: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """What the matrix of head i reads, (rows, width), after the tokens whose embeddings
        ``following`` are: (rows, 1 + i, width)."""
        found: torch.Tensor = self.hydra_mlp[i](torch.cat([states, following.flatten(1)], dim=-1))
        return found

    def logits(self, i: int, states: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Those of head i, likewise: (rows, vocab)."""
        found: torch.Tensor = self.hydra_lm_head[i](self.state(i, states, following))
        return found


class Hydra:
    """Heads in a folder as Hydra publishes them, without its prefix attention. Raises
    ModelUnreadable."""

    kind = "hydra"

    def __init__(self, files: HeadFiles, network: Network) -> None:
        arch = files.config.get("hydra_head_arch", "mlp")
        if arch != "mlp" or not files.config.get("grounded_heads", False):
            raise ModelUnreadable(
                f"{files.path} holds Hydra heads of the kind '{arch}', and only 'mlp' heads that "
                "are grounded are computed here; name those"
            )
        like = self._like = network.embedding.weight
        self._embedding, self.num_heads = network.embedding, number(files, "hydra_num_heads")
        with torch.device("meta"):
            self._module = HydraModule(
                self.num_heads,
                number(files, "hydra_num_layers"),
                like.shape[-1],
                network.num_vocab,
            )
        fitting(self._module, files.weights("hydra_lm_head"), files, like)

    @property
    def num_params(self) -> int:
        return num_params(self._module)

    def at(self, text: StatedText) -> HydraHeads:
        return HydraHeads(self, text)

    def logits(self, state: torch.Tensor, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """After a state and each of these sequences of tokens, all of one length: (rows, vocab)."""
        following = self._embedding(upload(tokens, state.device))
        i, rows = following.shape[1] - 1, len(tokens)
        return self._module.logits(i, state.expand(rows, -1), following)


@dataclass(frozen=True)
class HydraHeads:
    """The heads at the end of a text."""

    model: Hydra
    text: StatedText

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        paths = [tree.path_tokens(leaf) for leaf in leaves]
        known = [[self.text.tokens[-1], *path] for path in paths]
        guesses = self.text.guesses(self.model.logits(self.text.last_state, known))
        return [guesses.after(row, path, count) for row, path in enumerate(paths)]
