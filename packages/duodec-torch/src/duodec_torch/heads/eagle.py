"""Compute EAGLE's head (2401.15077): one layer that goes on with the target's states by itself.

Its input at a position is the target's state there and the token after it; its output stands for
the next state, of which the target's own matrix makes logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Candidates
from duodec.errors import ModelUnreadable
from duodec_torch.forward.network import Network, num_params
from duodec_torch.heads.files import TARGETS_OWN, HeadFiles, fitting, number
from duodec_torch.heads.states import StatedText
from duodec_torch.library import torch
from duodec_torch.uploads import upload

_DEPTH = 6  # tokens that the release looks ahead
_ROPE = 10000.0
_Cached = tuple[torch.Tensor, torch.Tensor]  # keys and values, (kv heads, length, head size)


class EagleModule(torch.nn.Module):  # type: ignore[misc]
    """The layer, with the names of the published weights. Raises ModelUnreadable."""

    def __init__(self, files: HeadFiles, *, has_bias: bool, has_qkv_bias: bool) -> None:
        super().__init__()
        config = files.config
        if config.get("rope_scaling"):
            raise ModelUnreadable(
                f"{files.path} holds an EAGLE head with a scaled rotation, which is not computed "
                "here; name one without `rope_scaling`"
            )
        width, inner = number(files, "hidden_size"), number(files, "intermediate_size")
        self.num_heads = number(files, "num_attention_heads")
        self.head_size = width // self.num_heads
        self.num_kv_heads = int(config.get("num_key_value_heads") or self.num_heads)
        self.theta = float(config.get("rope_theta", _ROPE))
        kv = self.num_kv_heads * self.head_size

        def linear(num_in: int, num_out: int, bias: bool = False) -> torch.nn.Linear:
            return torch.nn.Linear(num_in, num_out, bias=bias)

        self.fc = linear(2 * width, width, has_bias)
        self.layers = torch.nn.ModuleList()
        self.layers.append(
            torch.nn.ModuleDict(
                {
                    "self_attn": torch.nn.ModuleDict(
                        {
                            "q_proj": linear(width, width, has_qkv_bias),
                            "k_proj": linear(width, kv, has_qkv_bias),
                            "v_proj": linear(width, kv, has_qkv_bias),
                            "o_proj": linear(width, width),
                        }
                    ),
                    "mlp": torch.nn.ModuleDict(
                        {
                            "gate_proj": linear(width, inner),
                            "up_proj": linear(width, inner),
                            "down_proj": linear(inner, width),
                        }
                    ),
                    "post_attention_layernorm": torch.nn.RMSNorm(
                        width, eps=float(config.get("rms_norm_eps", 1e-6))
                    ),
                }
            )
        )

    def forward(
        self,
        states: torch.Tensor,
        embedded: torch.Tensor,
        positions: torch.Tensor,
        cached: _Cached | None,
        sees: torch.Tensor,
    ) -> tuple[torch.Tensor, _Cached]:
        """States that follow these rows, (rows, width), and the keys and values with theirs.
        ``sees`` (rows, cached + rows) says which of them a row attends to."""
        (layer,) = self.layers
        joined = self.fc(torch.cat([embedded, states], dim=-1))
        attention, mlp = layer["self_attn"], layer["mlp"]
        query = self._rotated(self._split(attention["q_proj"](joined), self.num_heads), positions)
        keys = self._rotated(self._split(attention["k_proj"](joined), self.num_kv_heads), positions)
        values = self._split(attention["v_proj"](joined), self.num_kv_heads)
        if cached is not None:
            keys, values = (
                torch.cat([old, new], dim=1)
                for old, new in zip(cached, (keys, values), strict=True)
            )
        found = torch.nn.functional.scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=sees, enable_gqa=True
        )[0]
        joined = joined + attention["o_proj"](found.transpose(0, 1).flatten(1))
        normed = layer["post_attention_layernorm"](joined)
        gated = torch.nn.functional.silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed)
        return joined + mlp["down_proj"](gated), (keys, values)

    def _split(self, rows: torch.Tensor, num_heads: int) -> torch.Tensor:
        return rows.view(len(rows), num_heads, self.head_size).transpose(0, 1)

    def _rotated(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """With Llama's rotary embedding."""
        half = self.head_size // 2
        steps = torch.arange(half, device=heads.device, dtype=torch.float32) / half
        angles = positions[:, None].float() * self.theta**-steps
        cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Eagle:
    """A head in a folder as EAGLE publishes it, with the target's own embedding and matrix. It
    keeps keys and values of each slot's text. Raises ModelUnreadable."""

    kind, num_heads = "eagle", _DEPTH

    def __init__(self, files: HeadFiles, network: Network) -> None:
        weights = files.weights("model", "pytorch_model")
        weights.pop(TARGETS_OWN, None)
        self.embedding, self.output = network.embedding, network.output
        width = self.embedding.weight.shape[-1]
        if number(files, "hidden_size") != width:
            raise ModelUnreadable(
                f"{files.path} holds no heads for this target, whose states have {width} numbers; "
                "name heads that were trained for it"
            )
        with torch.device("meta"):
            self.module = EagleModule(
                files,
                has_bias="fc.bias" in weights,
                has_qkv_bias="layers.0.self_attn.q_proj.bias" in weights,
            )
        fitting(self.module, weights, files, self.embedding.weight)
        self._slots: dict[int, _Known] = {}

    @property
    def num_params(self) -> int:
        """A level reads the layer and the target's matrix."""
        return _DEPTH * (num_params(self.module) + int(self.output.weight.numel()))

    def at(self, text: StatedText) -> EagleHeads:
        whole = np.concatenate([text.query.text, np.array(text.tokens, dtype=np.int32)])
        known = self._slots.setdefault(text.query.slot, _Known())
        return EagleHeads(self, text, known.go_on(self, text, whole))


@dataclass
class _Known:
    """What is cached of a slot's text: row i is of the state at i and the token after it."""

    tokens: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    cached: _Cached | None = None
    last: torch.Tensor | None = None  # the state that follows the text, (1, width)

    def go_on(self, model: Eagle, text: StatedText, whole: Tokens) -> _Known:
        """Compute the rows that are missing of a text, the last at least."""
        length = min(len(self.tokens), len(whole) - 1)
        differs = np.flatnonzero(self.tokens[:length] != whole[:length])
        begin = max(0, (int(differs[0]) if len(differs) else length) - 1)
        old = None if self.cached is None else tuple(part[:, :begin] for part in self.cached)
        device = model.embedding.weight.device
        states = text.states.values[upload(list(text.cells[begin:]), device)]
        embedded = model.embedding(upload(whole[begin + 1 :].astype(np.int64), device))
        end = len(whole) - 1
        sees = torch.ones((end - begin, end), dtype=torch.bool, device=device).tril(begin)
        found, self.cached = model.module(
            states, embedded, torch.arange(begin, end, device=device), old, sees
        )
        self.tokens, self.last = whole, found[-1:]
        return self


class EagleHeads:
    """The head at the end of a text: it goes on with its own states in place of the target's."""

    def __init__(self, model: Eagle, text: StatedText, known: _Known) -> None:
        self._model, self._text = model, text
        assert known.last is not None
        self._states, self._cached = known.last, known.cached  # states: of the root, then of nodes
        self._rows: dict[int, int] = {ROOT: 0}  # of the nodes whose state is known
        self._num_text, self._position = len(known.tokens) - 1, len(known.tokens) - 1

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        if list(leaves) != [ROOT]:
            self._deepen(tree, leaves)
        device = self._states.device
        states = self._states[upload([self._rows[leaf] for leaf in leaves], device)]
        guesses = self._text.guesses(self._model.output(states))
        return [
            guesses.after(row, tree.path_tokens(leaf), count) for row, leaf in enumerate(leaves)
        ]

    def _deepen(self, tree: CandidateTree, leaves: Sequence[int]) -> None:
        """Compute the states of these nodes."""
        device, num_before = self._states.device, len(self._rows) - 1
        parents = upload([self._rows[tree.parents[leaf]] for leaf in leaves], device)
        embedded = self._model.embedding(upload([tree.tokens[leaf] for leaf in leaves], device))
        self._rows |= {leaf: 1 + num_before + row for row, leaf in enumerate(leaves)}
        sees = np.zeros((len(leaves), self._num_text + num_before + len(leaves)), dtype=bool)
        sees[:, : self._num_text] = True
        self._mark(sees[:, self._num_text :], tree, leaves)
        positions = torch.full((len(leaves),), self._position, device=device)
        found, self._cached = self._model.module(
            self._states[parents], embedded, positions, self._cached, upload(sees, device)
        )
        self._states = torch.cat([self._states, found])
        self._position += 1

    def _mark(self, sees: NDArray[np.bool_], tree: CandidateTree, leaves: Sequence[int]) -> None:
        """Each node sees itself and those above it."""
        for row, leaf in enumerate(leaves):
            node = leaf
            while node != ROOT:
                sees[row, self._rows[node] - 1] = True
                node = tree.parents[node]
