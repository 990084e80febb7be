"""Choose the widths of torch's forward passes on a GPU, once for a model, a card and a version."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from duodec.backends.widths.choice import TREES, WidthChoice, content, keep, kept, key_of, measured
from duodec.backends.widths.classes import DEPTHS, fitting, num_cells
from duodec.core.traits import Widths
from duodec_torch import forward
from duodec_torch.checkpoint.memory import Extent
from duodec_torch.checkpoint.model import TorchModel
from duodec_torch.forward.layouts import exact_layouts
from duodec_torch.forward.network import Network
from duodec_torch.library import torch, transformers
from duodec_torch.target import TorchTarget

WIDTHS = (8, 16, 32)  # fewer rows take as long on a GPU, and give trees no room


def choice_for(model: TorchModel, num_context: int) -> WidthChoice:
    """The choice that was made for this model on its devices, or one made now, within the memory
    of a text of ``num_context`` tokens. Raises ComputeFailed."""
    most = max(WIDTHS)
    depths = fitting(DEPTHS, num_context, most)
    with closing(Network(model.causal_lm)) as network:
        computed = _computed(network, num_cells(depths, most))
        place = model.place.words, model.place.dtype_name
        key = key_of(_content(model.path), *place, depths, _built(), computed)
        if found := kept(key, TREES):
            return found
        target = TorchTarget(network, num_context=num_cells(depths, most), widths=Widths(WIDTHS))
        with closing(target):
            choice = measured(target, WIDTHS, model.num_vocab, depths, TREES)
    keep(key, choice)
    return choice


def _computed(network: Network, num_context: int) -> tuple[object, ...]:
    """What computes a row's bits here and now: Triton may be installed and not compile."""
    num_region = Extent.on(network.device.type, num_context).num_region
    layouts = exact_layouts(network, 1, num_region, Widths(WIDTHS), lambda line: None)
    return network.has_fused_layers, type(layouts).__name__


def _content(path: Path) -> list[str]:
    """Names the content of a GGUF file, or of a folder's files."""
    if path.is_file():
        return [content(path)]
    files = (*path.glob("config.json"), *path.glob("*.safetensors"))
    return [content(file) for file in sorted(files)]


def _built() -> tuple[object, ...]:
    """What the kernels of a forward pass follow from: versions, and our own code."""
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = None
    own = [content(file) for file in sorted(Path(forward.__path__[0]).glob("*.py"))]
    return torch.__version__, torch.version.cuda, cudnn, transformers.__version__, triton, own
