"""Load a GGUF file that makes embeddings or ranks texts: where it lies, how long texts may be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from duodec.backends.llamacpp.embedding.embedder import LlamaEmbedder, batch_tokens
from duodec.backends.llamacpp.embedding.model import PooledModel
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.library import load as load_llama
from duodec.backends.llamacpp.load import llama_devices, llama_layers
from duodec.backends.llamacpp.options import LlamaOptions
from duodec.backends.loaded import checked_context
from duodec.backends.placement import Placement
from duodec.errors import BadOption, ContextExceeded, warn
from duodec.machine.busy import SpareCores
from duodec.machine.cores import available_cores
from duodec.machine.memory import available_bytes
from duodec.machine.topology import Topology

_MOST_CONTEXT = 8192  # tokens of a text by default
_SHARE = 0.5  # share of the memory that weights leave, for a forward pass by default
_LEAST = 64  # tokens


def load(
    path: Path,
    config: LlamaOptions,
    on_warning: Callable[[str], None] = warn,
    *,
    parse_special: bool = False,
    taken_bytes: int = 0,
) -> LlamaEmbedder:
    """Load a model. ``taken_bytes`` of the memory that looks free are other models' weights. Raises
    an error if something is wrong with the file or with the options."""
    spare = SpareCores(len(available_cores()))
    layers = llama_layers(config)
    header = Header.read(load_llama(), path)
    fits_packed = header is None or header.num_bytes <= available_bytes() - taken_bytes
    model = PooledModel(
        path, num_gpu_layers=layers, packs=fits_packed and not config.no_repack,
        on=llama_devices(config), is_mapped=not config.no_mmap,
    )  # fmt: skip
    try:
        free = available_bytes() - taken_bytes
        num_context = _context(model, config.context, free, on_warning)
        is_alone = config.threads is None and model.placement is Placement.CPU
        return LlamaEmbedder(
            model,
            num_context=num_context,
            num_threads=config.threads or len(Topology.read().fast),
            most_threads=spare if is_alone else None,
            parse_special=parse_special,
        )
    except BaseException:
        model.close()
        raise


def fits(path: Path, taken_bytes: int) -> bool:
    """Estimate whether memory holds its weights and a short text; ``taken_bytes`` of what looks
    free are in use."""
    header = Header.read(load_llama(), path)  # none: loading reports what is wrong with the file
    return header is None or header.num_bytes <= available_bytes() - taken_bytes


def work_bytes(model: PooledModel, num_context: int) -> int:
    """Estimate the most memory that forward passes take, besides weights."""
    lib, handle = model.lib, model.handle
    num_batch = batch_tokens(model, num_context)
    inner = model.metadata(f"{model.architecture}.feed_forward_length") or "0"
    width = int(lib.llama_model_n_embd(handle))
    numbers = 3 * (int(inner) if inner.isdecimal() else 4 * width) + 12 * width
    numbers += model.num_vocab if model.is_decoder else 0  # it computes logits that are not read
    num_cells = max(num_context, num_batch)
    caches = model.cache_bytes_per_token * num_cells if model.is_decoder else 0
    return int(4 * numbers * num_batch + caches + 4 * num_batch * num_cells)


def _context(
    model: PooledModel, asked: int | None, free: int, on_warning: Callable[[str], None]
) -> int:
    """Return the most tokens of a text: as configured, or as the model was trained for and memory
    holds. Raises ContextExceeded for more than either, and BadOption."""
    trained = model.num_context_train
    if asked is not None:
        least = 1 + len(model.last_tokens)
        if asked <= least:
            raise BadOption(f"context is {asked}, and a text has {least} tokens; use more")
        if (need := work_bytes(model, checked_context(asked, trained))) > free:
            raise ContextExceeded(
                f"context is {asked}, and a text of so many tokens takes {need / 1e9:.1f} GB to "
                f"compute, where {max(0, free) / 1e9:.1f} GB are free; use fewer"
            )
        return asked
    wished = num_context = min(trained, _MOST_CONTEXT)
    while num_context > _LEAST and work_bytes(model, num_context) > _SHARE * free:
        num_context //= 2
    if num_context < wished:
        on_warning(
            f"a text may have {num_context} tokens of the {trained} that {model.path.name} was "
            "trained for, as memory is short; `context` sets another number"
        )
    return num_context
