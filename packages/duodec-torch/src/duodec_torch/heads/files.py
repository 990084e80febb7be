"""Read the files of heads as they are published."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file

from duodec.errors import ModelUnreadable
from duodec_torch.library import first_line, torch

STEMS = ("medusa_lm_head", "hydra_lm_head", "pytorch_model", "model")  # of each kind's file
TARGETS_OWN = "embed_tokens.weight"  # a copy of the target's, in EAGLE's files


@dataclass(frozen=True)
class HeadFiles:
    """A folder of heads: config.json, and weights as safetensors or as tensors that torch pickled,
    of which no code is run."""

    path: Path
    config: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, path: Path) -> HeadFiles:
        """Raises ModelUnreadable."""
        try:
            return cls(path, dict(json.loads((path / "config.json").read_text("utf-8"))))
        except (OSError, ValueError) as error:
            raise ModelUnreadable(
                f"{path} is no folder of heads ({first_line(error)}); name one with config.json "
                "and the weights of Medusa, Hydra or EAGLE"
            ) from error

    @property
    def num_params(self) -> int:
        """Weights of the heads themselves, by the header of their file. Raises ModelUnreadable."""
        weights = self.weights(*STEMS, device="meta")
        return sum(weight.numel() for name, weight in weights.items() if name != TARGETS_OWN)

    def weights(self, *stems: str, device: str = "cpu") -> dict[str, torch.Tensor]:
        """The tensors of the first of these files that there is; on the device "meta" their shapes
        alone. Raises ModelUnreadable."""
        names = [stem + end for stem in stems for end in (".safetensors", ".pt", ".bin")]
        path = next((self.path / name for name in names if (self.path / name).is_file()), None)
        if path is None:
            raise ModelUnreadable(f"{self.path} holds none of {', '.join(names)}; fetch it again")
        try:
            if path.suffix == ".safetensors":
                return _safetensors(path, device)
            return dict(torch.load(path, map_location=device, weights_only=True))
        except Exception as error:  # of a damaged file, or a pickle with more than tensors
            raise ModelUnreadable(
                f"{path} cannot be read ({first_line(error)}); fetch it again"
            ) from error


def _safetensors(path: Path, device: str) -> dict[str, torch.Tensor]:
    if device != "meta":
        return dict(load_file(path))
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return {name: torch.empty(shape, device=device) for name, shape in shapes.items()}


def number(files: HeadFiles, name: str) -> int:
    """A number of 1 or more in their config.json. Raises ModelUnreadable."""
    found = files.config.get(name, 1)
    if not isinstance(found, int) or found < 1:
        raise ModelUnreadable(f"{files.path}/config.json says {name} is {found}; fetch it again")
    return found


def fitting(
    module: torch.nn.Module, weights: dict[str, torch.Tensor], files: HeadFiles, like: torch.Tensor
) -> None:
    """Give a module its weights, on the device and in the number format of a target's. Raises
    ModelUnreadable for weights of other names or shapes, as those of another target have."""
    try:
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        line = str(error).strip().splitlines()[-1].strip()
        raise ModelUnreadable(
            f"{files.path} holds no heads for this target ({line}); name heads that were trained "
            "for it"
        ) from error
    module.to(device=like.device, dtype=like.dtype).requires_grad_(False).eval()
