"""Plan a model from its configuration, and refuse it before its weights are read or downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duodec_torch.checkpoint.configuration import Source, outline, quietly, read_config
from duodec_torch.checkpoint.memory import Need, sizes_of
from duodec_torch.checkpoint.placing import DevicePlacement, choose_places
from duodec_torch.forward.network import check_outline
from duodec_torch.forward.spreading import blocks
from duodec_torch.library import torch

_UNKNOWN_CONTEXT = 2048  # tokens, for the few models that do not declare one


@dataclass(frozen=True)
class Blueprint:
    """A model that can be computed here, and its placement."""

    source: Source
    config: Any  # of transformers
    need: Need
    place: DevicePlacement
    layout: Mapping[str, str]  # the device of each module

    @classmethod
    def of(
        cls,
        path: Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        num_context: int = 0,
        num_slots: int = 1,
        num_head_params: int = 0,
    ) -> Blueprint:
        """Read config.json, or a GGUF file. ``dtype`` and ``device`` are names or auto: on a GPU
        bfloat16, on the CPU the files' own or float32; caches of ``num_slots`` texts of
        ``num_context`` tokens must fit next to the weights, and to those of heads.

        Raises ModelUnreadable for a model that cannot be computed or does not fit,
        BackendUnavailable and BadOption for a device or dtype.
        """
        choose_places(device, dtype, None)  # a missing GPU is reported at once
        source = Source(path)
        config = read_config(source)
        places = choose_places(device, dtype, None if source.is_gguf else _dtype_of(config))
        outlined = outline(config)
        with quietly():
            check_outline(outlined)
        need = Need(
            name_of(config, path),
            sizes_of(config.get_text_config(decoder=True), blocks(outlined)),
            min(num_context, num_context_train(config)),
            num_slots,
            num_head_params,
        )
        place, layout = need.settle(places)
        return cls(source, config, need, place, layout)


def name_of(config: Any, path: Path) -> str:
    """A model's own name, or its folder's."""
    return Path(getattr(config, "_name_or_path", "") or path).name or path.name


def num_context_train(config: Any) -> int:
    """Positions that a model was trained for."""
    text = config.get_text_config(decoder=True)
    return int(getattr(text, "max_position_embeddings", 0) or _UNKNOWN_CONTEXT)


def _dtype_of(config: Any) -> Any:
    """The number format of a folder's weights, None if it is not declared."""
    dtype = getattr(config, "dtype", None)
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype
