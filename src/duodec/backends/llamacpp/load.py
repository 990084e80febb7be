"""Load a GGUF file as a target: where its layers lie, how long its texts may be, how it scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp import devices, library
from duodec.backends.llamacpp.footprint import UNKNOWN_CONTEXT, Footprint
from duodec.backends.llamacpp.gguf import overrides
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.heads import files as head_files
from duodec.backends.llamacpp.heads import layers as heads
from duodec.backends.llamacpp.heads.blocks import open_head
from duodec.backends.llamacpp.library import load as load_llama
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.options import LlamaOptions
from duodec.backends.llamacpp.target.caches import CacheTypes
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.width_choice import choice_for
from duodec.backends.llamacpp.vision.sight import LlamaSight
from duodec.backends.loaded import LoadedTarget, checked_context
from duodec.backends.placement import Placement
from duodec.core.traits import Widths
from duodec.errors import BackendUnavailable, BadOption, ContextExceeded, warn
from duodec.machine.busy import SpareCores
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import available_cores
from duodec.machine.memory import available_bytes
from duodec.machine.topology import Topology

_ONE_CARD = 8192  # tokens of context that one GPU must hold to be enough, by default
_SPARE = 1.1  # factor on what is estimated
GPU_BUILD = "build one with `duodec setup --gpu cuda` (or vulkan, rocm, metal)"


def load(
    path: Path,
    config: LlamaOptions,
    on_warning: Callable[[str], None] = warn,
    *,
    taken_bytes: int = 0,
    heads_path: Path | None = None,
    mmproj: Path | None = None,
) -> LoadedTarget:
    """Load a target's file, the head in ``heads_path``, and the projector for pictures, ``mmproj``.
    ``taken_bytes`` of the memory that looks free are in use by other models' weights and the
    draft's. Raises an error if something is wrong with the files or with the options."""
    spare = SpareCores(len(available_cores()))  # looks at the cores while the model loads
    layers = llama_layers(config)
    placed, cache = placed_tensors(config), CacheTypes(config.cache_type_k, config.cache_type_v)
    lib = load_llama()
    on = llama_devices(config)
    footprint, num_context, packs, has_mtp = None, config.context, not config.no_repack, False
    if header := Header.read(lib, path):  # otherwise loading reports what is wrong with the file
        overrides.check(placed, path, header)
        cache.check(lib, header)
        footprint, free, on = _memory(config, header, cache, layers, taken_bytes)
        free -= sum(own.stat().st_size for own in (heads_path, mmproj) if own)
        num_context = llama_context(config.context, header, footprint, free, on_warning)
        packs = packs and _holds_packed(config, layers, header, footprint, taken_bytes, on_warning)
        has_mtp = config.mtp == "auto" and heads_path is None and head_files.has_mtp(header)
    if heads_path and (other := head_files.other_target(lib, heads_path, path)):
        on_warning(other)
    model = LlamaModel(
        path, num_gpu_layers=layers, packs=packs, placed=placed, cache=cache, on=on,
        is_mapped=not config.no_mmap, has_mtp=has_mtp,
    )  # fmt: skip
    if heads_path:
        head_files.show_layers(model, head_files.read_layers(lib, heads_path))
    placement = model.placement
    if mmproj:
        threads = config.threads or len(Topology.read().fast)
        on_gpu = placement is not Placement.CPU
        model.sight = LlamaSight(model, mmproj, num_threads=threads, on_gpu=on_gpu)
    widths, pass_s = chosen_widths(config, model)

    def start(num_context: int, plan: CorePlan) -> LlamaTarget:
        sizes: Any = {
            "num_slots": config.num_slots,
            "num_context": num_context,
            "num_threads": plan.target_alone,
        }

        def open_for(context: object) -> heads.LlamaHead:
            if heads_path is None:
                return heads.MtpHead(model, **sizes)
            own = None if placement is Placement.CPU else Header.read(lib, heads_path)
            places = [layers]
            if own is not None and head_files.computes_on_cpu(own, has_moved=bool(placed)):
                places.append(0)
            opened = partial(open_head, model, context, heads_path, **sizes)
            return heads.cheapest([partial(opened, num_gpu_layers=place) for place in places])

        # llama.cpp uses the cores that other programs leave free, unless the number of threads is
        # set.
        looks = plan.shares_cores and config.threads is None
        return LlamaTarget(
            model,
            num_context=num_context,
            num_threads=plan.target_alone,
            num_slots=config.num_slots,
            widths=widths,
            is_width_exact=not config.fast,
            most_threads=spare if looks else None,
            open_head=open_for if has_mtp or heads_path else None,
        )

    place = f"llama.cpp on {_where(model, layers)}, as quantised"
    if widths:
        place += f", {widths} rows a forward pass"
    if has_mtp:
        place += ", with its layer of multi-token prediction"
    elif heads_path:
        place += f", with the head {heads_path.name}"
    if mmproj:
        place += f", with {mmproj.name} for pictures"
    num_context = num_context or model.num_context_train
    return LoadedTarget(
        model,
        placement,
        num_context,
        start,
        place,
        widths=widths,
        pass_s=pass_s,
        footprint=footprint,
    )


def fits(path: Path, config: LlamaOptions, taken_bytes: int) -> bool:
    """Estimate whether memory holds a target with caches of a short context; ``taken_bytes`` of
    what looks free are in use. Raises ContextExceeded and BadOption."""
    header = Header.read(load_llama(), path)
    if header is None:
        return True  # loading reports what is wrong with the file
    cache = CacheTypes(config.cache_type_k, config.cache_type_v)
    if config.context:
        checked_context(config.context, header.num_context_train or UNKNOWN_CONTEXT)
    footprint, free, _ = _memory(config, header, cache, llama_layers(config), taken_bytes)
    return footprint.weight_bytes + footprint.least_bytes(config.context) <= free


def _memory(
    config: LlamaOptions, header: Header, cache: CacheTypes, layers: int, taken_bytes: int
) -> tuple[Footprint, int, list[devices.Device]]:
    """Return what a target takes on its devices, the free bytes there, and the devices."""
    lib = load_llama()
    if layers and can_offload():
        # These contexts compute separately; recurrent models keep all texts in one.
        num_contexts = 1 if config.fast or header.state_bytes else config.num_slots
        whole = Footprint.of(
            lib, header, cache, config.num_slots, num_lone=0, num_contexts=num_contexts
        )
        footprint = whole.on_gpu(header, placed_tensors(config), layers)
        on = llama_devices(config)
        if config.device in ("auto", *devices.KINDS):  # the number is not set
            text = config.context or min(_ONE_CARD, header.num_context_train or UNKNOWN_CONTEXT)
            need = footprint.weight_bytes + footprint.least_bytes(text)
            on = devices.fewest(lib, on, int(_SPARE * need))
        free = devices.free_bytes(lib, on) or available_bytes()  # some drivers do not report it
        return footprint, free, on
    footprint = Footprint.of(lib, header, cache, config.num_slots)
    return footprint, available_bytes() - taken_bytes, []


def _holds_packed(
    config: LlamaOptions,
    layers: int,
    header: Header,
    footprint: Footprint,
    taken_bytes: int,
    on_warning: Callable[[str], None],
) -> bool:
    """Return whether main memory holds a packed copy of the weights that the CPU computes;
    otherwise they stay in the mapped file, which is loaded into memory as it is read."""
    is_on_gpu = layers != 0 and can_offload()
    weights = header.num_bytes - (footprint.weight_bytes if is_on_gpu else 0)
    weights = int(weights * _packed_bytes(header) / header.num_bytes)
    caches = 0 if is_on_gpu else footprint.least_bytes(config.context)
    free = available_bytes() - taken_bytes
    if weights + caches <= free:
        return True
    on_warning(
        f"{weights / 1e9:.1f} GB of weights stay mapped from their file, as memory is short: they "
        "are computed by slower kernels than a packed copy would be"
    )
    return False


def _packed_bytes(header: Header) -> float:
    """Of all weights, packed where our kernels compute them: formats of few bits take more then."""
    lib = load_llama()
    sizes = {type_: library.packed_size(lib, type_) or 1.0 for type_ in set(header.types.values())}
    types = header.types
    return sum(size * sizes.get(types.get(name, -1), 1.0) for name, size in header.tensors.items())


def _where(model: LlamaModel, num_layers: int) -> str:
    """Return what computes a model, for people."""
    if model.placement is Placement.CPU:
        return "the CPU"
    names = " and ".join(f"{device.name} ({device.description})" for device in model.devices)
    if model.placement is Placement.ELSEWHERE:
        return names
    part = f" ({num_layers} of {model.num_layers} layers)" if num_layers >= 0 else ""
    return f"{names}{part} and the CPU"


def chosen_widths(config: LlamaOptions, model: LlamaModel) -> tuple[Widths, Mapping[int, float]]:
    """Return the rows that a forward pass of a text may have on a device, and its seconds by its
    rows if they were measured. Any number is allowed on a CPU and for a recurrent model, whose
    passes are not padded. Raises BadOption."""
    if model.placement is Placement.CPU or model.is_recurrent:
        if config.rows:
            what = "a recurrent model's" if model.is_recurrent else "a CPU's"
            raise BadOption(
                f"rows is {config.rows}, and {what} forward passes are not padded; leave it out"
            )
        return Widths(), {}
    if config.rows:
        return Widths.only(config.rows), {}
    choice = choice_for(model, num_threads=config.threads or len(Topology.read().fast))
    widths = Widths.only(choice.fastest) if config.fast else choice.widths
    return widths, choice.seconds_of(widths)


def placed_tensors(config: LlamaOptions) -> list[overrides.Override]:
    """Return tensors to place on other devices than their layers. Raises BadOption."""
    found = overrides.parse(config.override_tensor)
    if config.cpu_moe:
        found += overrides.experts(None)
    return found + overrides.experts(config.n_cpu_moe)


def llama_context(
    asked: int | None,
    header: Header,
    footprint: Footprint,
    free_bytes: int,
    on_warning: Callable[[str], None],
) -> int:
    """Return the most tokens of a text: as configured, or as the model was trained for and memory
    holds. Raises ContextExceeded for more than either."""
    trained = header.num_context_train or UNKNOWN_CONTEXT
    if asked is None:
        num_context = min(trained, footprint.good_context(free_bytes))
        if num_context < trained:
            on_warning(
                f"the context is {num_context} tokens of the {trained} that the model was trained "
                "for, as memory is short; `context` sets another"
            )
        return num_context
    most = footprint.most_context(free_bytes)
    if checked_context(asked, trained) > most:
        where = "GPU memory" if footprint.fixed_bytes else "memory"
        if not most:
            raise ContextExceeded(
                f"context is {asked}, and {free_bytes / 1e9:.1f} GB of free {where} hold no caches "
                f"besides {footprint.fixed_bytes / 1e9:.1f} GB of weights; use fewer `gpu_layers`, "
                "or a smaller quantisation"
            )
        raise ContextExceeded(
            f"context is {asked}, and {where} holds caches of {most} tokens; use {most} or less, "
            "or a smaller format with `cache_type_k` and `cache_type_v`"
        )
    return asked


def can_offload() -> bool:
    """Return whether llama.cpp was built for a GPU."""
    return bool(load_llama().llama_supports_gpu_offload())


def llama_layers(config: LlamaOptions) -> int:
    """Return the number of layers that llama.cpp is to place on a GPU. Raises an error for what it
    cannot do."""
    if config.dtype_name != "auto":
        raise BadOption(
            f"dtype is {config.dtype}, and llama.cpp computes a GGUF file as it is quantised; "
            "leave it out, or use `target_backend=torch`"
        )
    if config.device == "auto":
        return config.gpu_layers
    if config.device == "cpu":
        return 0
    return config.gpu_layers


def llama_devices(config: LlamaOptions) -> list[devices.Device]:
    """Return the devices that the user names for a GGUF file; an empty list means all devices.
    Raises BadOption and BackendUnavailable."""
    lib = load_llama()
    if config.gpu_layers > 0 and config.device != "cpu" and not can_offload():
        raise BackendUnavailable(
            f"gpu_layers is {config.gpu_layers}, and this llama.cpp was built without a GPU; leave "
            f"it out, or {GPU_BUILD}"
        )
    if config.device in ("auto", "cpu"):
        return []
    found = [device for name in config.device.split(",") for device in devices.find(lib, name)]
    if len(set(found)) < len(found):
        raise BadOption(f"device is {config.device}, which names a GPU twice; name each once")
    return found
