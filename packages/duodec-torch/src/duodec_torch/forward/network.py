"""Check a causal language model of transformers, and run its forward passes for the target.

Models whose text cannot be scored as a tree are refused here with one line: those with recurrent
state (which has no branches), chunks, or a rotation that changes with the length of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from duodec.errors import BadOption, ModelUnreadable
from duodec_torch.forward.attention import (
    NAME,
    AttentionMetadata,
    PerDevice,
    Rows,
    Scoring,
    TextWindow,
)
from duodec_torch.forward.cache import CellCache
from duodec_torch.forward.fusing import fuse, gains_by_fusing
from duodec_torch.forward.layers import fuse_layers
from duodec_torch.forward.spreading import join
from duodec_torch.library import first_line, torch, transformers

_KINDS = {"full_attention", "sliding_attention"}  # of layers
_MEMORIES = ("DynamicLayer", "DynamicSlidingWindowLayer")  # that these have in transformers
_PROBE = (1, 0, 2, 1, 1, 0)  # tokens of the self-test
# of its logits, in their standard deviations: half precision rounds logits to some eighths
_TOLERANCE, _HALF_TOLERANCE = 0.1, 0.6


class Network:
    """A model of transformers in eval mode, on its devices, with our attention in place of its own
    until `close`, and on a GPU with its projections permanently fused. It serves one target at a
    time. ``on_warning`` gets a line when forward passes are slower than they should be.

    Raises ModelUnreadable for models that we cannot score, or whose logits our attention changes.
    """

    def __init__(self, model: Any, on_warning: Callable[[str], None] = lambda line: None) -> None:
        self._model = model
        self.config = model.config.get_text_config()
        self.dtype = model.dtype
        _check_config(model)
        self._own_attention = model.config._attn_implementation
        assert self._own_attention != NAME, "a model serves one target at a time"
        self._part = join(model)
        self._forget_states: Callable[[], None] = lambda: None
        self.split_layers: Callable[[], None] = lambda: None  # restores their own forward
        self.has_fused_layers = False
        try:
            with torch.inference_mode():
                expected = self._learn()
            gains = gains_by_fusing(self.device)
            if gains:
                fuse(model)
            model.set_attn_implementation(NAME)
            with torch.inference_mode():
                self.check_logits(expected)
                if gains:
                    self._fuse_layers(expected, on_warning)
        except BaseException:
            self.close()
            raise

    def _learn(self) -> torch.Tensor:
        """The model's structure from its own forward pass, and the logits of that pass."""
        expected, layers = self._own_forward()
        self.device = expected.device  # of the logits: the last, where there are several
        self.layer_devices = [layer.keys.device for layer in layers]
        self.devices = tuple(dict.fromkeys([*self.layer_devices, self.device]))
        self.num_layers = len(layers)
        found = (getattr(layer, "sliding_window", None) for layer in layers)
        self.windows = sorted(window for window in found if window is not None)
        _, self.num_kv_heads, _, self.head_size = layers[0].keys.shape
        self.group = self.config.num_attention_heads // self.num_kv_heads
        self.num_vocab = expected.shape[-1]
        return expected

    def _fuse_layers(self, expected: torch.Tensor, on_warning: Callable[[str], None]) -> None:
        """Fuse the layers if the kernels compile and give the model's logits."""
        try:
            self.split_layers = fuse_layers(self._model)
            self.check_logits(expected)
            self.has_fused_layers = True
        except Exception as error:  # noqa: BLE001  # a compiler may raise anything
            self.split_layers()
            reason = first_line(error)
            on_warning(f"Triton's layers are off, decoding will be slower: {reason}")

    def close(self) -> None:
        """Restore the model's own attention, and release it; can be called twice."""
        if self._model is not None:
            self.split_layers()
            self._model.set_attn_implementation(self._own_attention)
            self._forget_states()
            self._part()
            self._model = None

    def keep_states(self) -> None:
        """From now on, ``states`` are those that the last forward pass computed its logits from:
        (rows, width), of all of its rows."""

        def keep(module: Any, inputs: Any, output: Any) -> None:
            self.states: torch.Tensor = output.last_hidden_state[0]

        self._forget_states = self._model.base_model.register_forward_hook(keep).remove

    @property
    def num_params(self) -> int:
        return num_params(self._model)

    @property
    def embedding(self) -> Any:
        """Of tokens."""
        return self._model.get_input_embeddings()

    @property
    def output(self) -> Any:
        """Makes logits of states."""
        return self._model.get_output_embeddings()

    def check_rowwise(self) -> None:
        """Raises BadOption if a row's numbers depend on the other rows."""
        check_rowwise(self._model.config)

    def cache(self, num_cells: int) -> CellCache:
        return CellCache(
            self.layer_devices,
            num_kv_heads=self.num_kv_heads,
            num_cells=num_cells,
            head_size=self.head_size,
            dtype=self.dtype,
        )

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: CellCache,
        plan: AttentionMetadata,
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of the rows, or of those ``kept``: (rows, vocab), in the model's own type."""
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            **self._cached(cache),
            logits_to_keep=0 if kept is None else kept,
            plan=plan,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _cached(self, cache: Any) -> dict[str, Any]:
        """Arguments of the model's ``forward`` that make it use a cache; transformers before 5.24
        has another name for it."""
        known = signature(type(self._model).forward).parameters
        return {"cache" if "cache" in known else "past_key_values": cache, "use_cache": True}

    # --- the self-test

    def _own_forward(self) -> tuple[torch.Tensor, list[Any]]:
        """The probe's logits by the model's own attention, and the layers of its own cache."""
        cache: Any = transformers.DynamicCache(config=self._model.config)
        device = next(self._model.parameters()).device
        tokens = torch.tensor([_PROBE], device=device)
        positions = torch.arange(len(_PROBE), device=device)[None]
        output = self._model(input_ids=tokens, position_ids=positions, **self._cached(cache))
        for layer in cache.layers:
            if type(layer).__name__ not in _MEMORIES:
                kind = type(layer).__name__.removeprefix("Dynamic").removesuffix("Layer")
                raise ModelUnreadable(
                    f"{_name(self._model)} has layers of kind {kind}, whose memory has no "
                    "branches; the torch backend scores models with full attention or windows only"
                )
        if len({layer.keys.shape[1::2] for layer in cache.layers}) > 1:
            raise ModelUnreadable(
                f"{_name(self._model)} has layers of different shapes; it cannot be a target"
            )
        if cache.layers[0].keys.shape != cache.layers[0].values.shape:
            raise ModelUnreadable(f"{_name(self._model)} has keys and values of different shapes")
        return output.logits[0], list(cache.layers)

    def check_logits(self, expected: torch.Tensor) -> None:
        cache = self.cache(len(_PROBE))
        places = torch.arange(len(_PROBE), device=self.device)
        rows = Rows(places, torch.zeros_like(places), places[:, None])
        cache.write_to(places)
        plan = _Noted(PerDevice.of(TextWindow(0, len(_PROBE)), rows, self.devices))
        tokens = torch.tensor(_PROBE, device=self.device)
        found = self.forward(tokens, places, cache, plan)
        if len(plan.scorings) != self.num_layers:
            raise ModelUnreadable(
                f"{_name(self._model)} has an attention of its own, which cannot be replaced; the "
                "torch backend scores models that use transformers' AttentionInterface"
            )
        told = sorted(s.window for s in plan.scorings if s.window is not None)
        if told != self.windows:  # the probe is too short to show it
            raise ModelUnreadable(
                f"{_name(self._model)} has layers with windows of {_listed(self.windows)} and "
                f"tells its attention {_listed(told)}; it cannot be a target"
            )
        kinds = {(s.scaling, s.window, s.cap, s.sinks is None): s for s in plan.scorings}
        self.scorings = tuple(kinds.values())
        if self.device.type == "meta":
            return  # an outline has no numbers
        off = (found.float() - expected.float()).abs().max() / expected.float().std()
        tolerance = _TOLERANCE if self.dtype == torch.float32 else _HALF_TOLERANCE
        if not bool(off < tolerance):  # NaN too; waits for the device
            raise ModelUnreadable(
                f"{_name(self._model)} gives different logits with tree attention than with "
                f"its own (off by {float(off):.2g} standard deviations); it cannot be a target"
            )


def num_params(module: Any) -> int:
    """Weights of a module; shared ones count once."""
    return sum(weight.numel() for weight in module.parameters())


def check_outline(model: Any) -> None:
    """Refuse a model by its shapes, without its weights, as `Network` would, except for its
    numbers. Raises ModelUnreadable."""
    # some models read numbers in their forward pass; `Network` checks again once there are any
    with suppress(NotImplementedError, RuntimeError):
        Network(model).close()


def check_rowwise(config: Any) -> None:
    """Raises BadOption if a row's numbers depend on the other rows."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    if any(getattr(config.get_text_config(), name, None) for name in names):
        raise BadOption(
            f"{config.model_type} is a mixture of experts, whose rows depend on the "
            "others; use `fast=True`"
        )


@dataclass
class _Noted:
    """A plan that notes the layers that use it."""

    plan: AttentionMetadata
    scorings: list[Scoring] = field(default_factory=list)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        self.scorings.append(scoring)
        return self.plan.attend(query, keys, values, scoring)


def _listed(windows: list[int]) -> str:
    return ", ".join(map(str, windows)) or "none"


def _name(model: Any) -> str:
    return str(model.config.model_type)


def _check_config(model: Any) -> None:
    config = model.config.get_text_config()
    name = _name(model)
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelUnreadable(f"{name} is an encoder-decoder; use a causal language model")
    kinds = set(getattr(config, "layer_types", None) or ()) - _KINDS
    if kinds:
        raise ModelUnreadable(
            f"{name} has layers of kind {', '.join(sorted(kinds))}; the torch backend scores "
            "models with full attention or windows only"
        )
    for kind in _rope_types(getattr(config, "rope_parameters", None) or {}):
        if kind in ("dynamic", "longrope"):
            raise ModelUnreadable(
                f"{name} has a {kind} rotary embedding, which changes with the text's length; "
                "use a model with a fixed one"
            )


def _rope_types(parameters: dict[str, Any]) -> list[str]:
    """The rotations named in a config: one, or one for each kind of layer."""
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return [str(p.get("rope_type", "default")) for p in (parameters, *nested)]
