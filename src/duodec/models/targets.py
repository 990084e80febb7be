"""Load target models with the library that computes them, into one record for all libraries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from duodec.backends.llamacpp import devices, overrides
from duodec.backends.llamacpp.caches import CacheTypes
from duodec.backends.llamacpp.footprint import UNKNOWN_CONTEXT, Footprint
from duodec.backends.llamacpp.header import Header
from duodec.backends.llamacpp.library import load as load_llama
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.row_choice import FEWEST, RowChoice, choice_for
from duodec.backends.llamacpp.target import LlamaTarget
from duodec.backends.placement import Placement
from duodec.core.protocols import Target, Tokenizer
from duodec.errors import (
    BackendUnavailable,
    BadOption,
    ContextExceeded,
    DuodecError,
    ModelUnreadable,
    warn,
)
from duodec.machine.busy import SpareCores
from duodec.machine.cores import CorePlan, available_cores
from duodec.machine.memory import available_bytes
from duodec.models import (
    ALIASES,
    Format,
    ModelFile,
    folder_bytes,
    format_of,
    resolve,
    resolve_folder,
)
from duodec.models.config import LLAMA_CPP, TORCH, TORCH_CONTEXT, EngineConfig
from duodec.models.vetting import vetted

if TYPE_CHECKING:
    from duodec.backends.torch.blueprint import Blueprint

_OF_LLAMA_CPP = {  # options that torch lacks, and their remedies
    "gpu_layers": "use --device",
    "cpu_moe": "leave it out",
    "n_cpu_moe": "leave it out",
    "no_repack": "leave it out",
    "override_tensor": "leave it out",
    "cache_type_k": "leave it out",
    "cache_type_v": "leave it out",
}
_PASS_ROWS = 64  # of a target elsewhere: rows that cost as much as another pass over its weights
GPU_BUILD = "build one with `duodec setup --gpu cuda` (or vulkan, rocm, metal)"


class OpenVocabulary(Tokenizer, Protocol):
    """A vocabulary that is freed when it is closed."""

    def close(self) -> None: ...


class TargetModel(Tokenizer, Protocol):
    """A model's vocabulary and its facts."""

    @property
    def name(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def license(self) -> str | None: ...
    @property
    def num_params(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def is_read(self) -> bool:
        """Whether its weights are in memory; otherwise they are read from the disk as they are
        used."""

    @property
    def num_context_train(self) -> int: ...
    @property
    def cache_bytes_per_token(self) -> int: ...
    def close(self) -> None: ...


class RunningTarget(Target, Protocol):
    """A target with its cache."""

    on_chunk: Callable[[], None]
    """Called during the prefill of a long prompt; may raise to abort it."""

    def use_threads(self, num_threads: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class LoadedTarget:
    """A loaded model; `start` makes the target that computes it, for texts of so many tokens, and
    raises ModelUnreadable if memory is too short."""

    model: TargetModel
    placement: Placement
    num_context: int  # most tokens of a text: as configured, or as many as memory holds
    start: Callable[[int, CorePlan], RunningTarget]
    place: str  # for people: its backend, device and number format
    free_bytes: Callable[[], int] | None = None  # of its own device's memory, if known
    num_padded: int = 1  # rows that a forward pass pads to
    footprint: Footprint | None = None  # if it was estimated before loading

    @property
    def is_on_cpu(self) -> bool:
        """Whether it computes on cores that a drafter would use, if only in part."""
        return self.placement.uses_cores


def backend_of(config: EngineConfig) -> str:
    """The library that will compute the target: the configured one, or the one for its files."""
    if config.target_backend != "auto":
        return config.target_backend
    return TORCH if _format(config) == "safetensors" else LLAMA_CPP


def _format(config: EngineConfig) -> Format:
    prefer: Format = "safetensors" if config.target_backend == TORCH else "gguf"
    return format_of(config.target, prefer=prefer, offline=config.offline)


def target_file(config: EngineConfig) -> ModelFile:
    """The target's file or folder, downloaded if needed. Raises what is wrong with it, and
    BackendUnavailable before downloading a model that cannot be loaded here."""
    if config.target_backend == LLAMA_CPP or _format(config) == "gguf":
        return resolve(config.target, offline=config.offline)
    _require_torch(config)
    return resolve_folder(
        config.target, offline=config.offline, check=lambda folder: _blueprint(config, folder)
    )


def file_bytes(file: ModelFile) -> int:
    """The size of a model's weights on the disk."""
    return folder_bytes(file.path) if file.path.is_dir() else file.path.stat().st_size


def fits(config: EngineConfig, taken_bytes: int) -> bool:
    """Whether memory holds a target with caches of a short context, where ``taken_bytes`` of what
    looks free are other models' weights: an estimate. Raises what is wrong with its files."""
    if backend_of(config) == TORCH:
        return file_bytes(target_file(config)) <= _free_for_torch(config) - taken_bytes
    lib, path = load_llama(), vetted(target_file(config)).path
    header = Header.read(lib, path)
    if header is None:
        return True  # loading reports what is wrong with the file
    cache = CacheTypes(config.cache_type_k, config.cache_type_v)
    if config.context:
        checked_context(config.context, header.num_context_train or UNKNOWN_CONTEXT)
    footprint, free = _llama_memory(config, header, cache, taken_bytes)
    return footprint.weight_bytes + footprint.least_bytes(config.context) <= free


def _free_for_torch(config: EngineConfig) -> int:
    from duodec.backends.torch.placing import choose_places

    return sum(choose_places(config.device, config.dtype_name, None)[-1].free_bytes)


def _llama_memory(
    config: EngineConfig, header: Header, cache: CacheTypes, taken_bytes: int
) -> tuple[Footprint, int]:
    """What a target takes where it will be, and the free bytes there."""
    lib = load_llama()
    footprint = Footprint.of(lib, header, cache, config.num_slots)
    layers = llama_layers(config)
    if layers and can_offload():
        on = llama_devices(config)
        free = devices.free_bytes(lib, on) or available_bytes()  # some drivers do not report it
        return footprint.on_gpu(header, placed_tensors(config), layers), free
    return footprint, available_bytes() - _draft_bytes(config) - taken_bytes


def load_target(
    config: EngineConfig, on_warning: Callable[[str], None] = warn, taken_bytes: int = 0
) -> LoadedTarget:
    """Load the target's model; ``taken_bytes`` of the memory that looks free are not. Raises what
    is wrong with its files, or with the backend's options."""
    if backend_of(config) == TORCH:
        return _load_torch(config, on_warning)
    return _load_llama(config, on_warning, taken_bytes)


def _load_llama(
    config: EngineConfig, on_warning: Callable[[str], None], taken_bytes: int
) -> LoadedTarget:
    spare = SpareCores(len(available_cores()))  # looks at the cores while the model loads
    layers = llama_layers(config)
    path = vetted(target_file(config)).path
    placed, cache = placed_tensors(config), CacheTypes(config.cache_type_k, config.cache_type_v)
    lib = load_llama()
    on = llama_devices(config)
    footprint, num_context, packs = None, config.context, not config.no_repack
    if header := Header.read(lib, path):  # otherwise loading reports what is wrong with the file
        overrides.check(placed, path, header)
        cache.check(lib, header)
        footprint, free = _llama_memory(config, header, cache, taken_bytes)
        num_context = llama_context(config.context, header, footprint, free, on_warning)
        packs = packs and _holds_packed(config, header, footprint, taken_bytes, on_warning)
    model = LlamaModel(
        path, num_gpu_layers=layers, packs=packs, placed=placed, cache=cache, on=on,
        is_mapped=not config.no_mmap,
    )  # fmt: skip
    placement = model.placement
    is_device = placement is not Placement.CPU and not model.is_recurrent
    rows = padded_rows(config, model, on_warning) if is_device else None

    def start(num_context: int, plan: CorePlan) -> RunningTarget:
        # llama.cpp looks at the cores that others leave free where nobody has said how many to use
        looks = plan.shares_cores and config.threads is None
        return LlamaTarget(
            model,
            num_context=num_context,
            num_threads=plan.target_alone,
            num_slots=config.num_slots,
            num_rows=rows,
            is_width_exact=plan.shares_cores and not config.fast,
            pass_rows=1 if plan.shares_cores else _PASS_ROWS,
            most_threads=spare if looks else None,
        )

    place = f"llama.cpp on {_where(model, layers)}, as quantised"
    if rows:
        place += f", {rows} rows a forward pass"
    num_context = num_context or model.num_context_train
    return LoadedTarget(
        model, placement, num_context, start, place, num_padded=rows or 1, footprint=footprint
    )


def _holds_packed(
    config: EngineConfig,
    header: Header,
    footprint: Footprint,
    taken_bytes: int,
    on_warning: Callable[[str], None],
) -> bool:
    """Whether main memory holds a packed copy of the weights that the CPU computes; otherwise they
    stay in the mapped file, which comes into memory as it is read."""
    is_on_gpu = llama_layers(config) != 0 and can_offload()
    weights = header.num_bytes - (footprint.weight_bytes if is_on_gpu else 0)
    caches = 0 if is_on_gpu else footprint.least_bytes(config.context)
    free = available_bytes() - _draft_bytes(config) - taken_bytes
    if weights + caches <= free:
        return True
    on_warning(
        f"{weights / 1e9:.1f} GB of weights stay mapped from their file, as memory is short: they "
        "are computed by slower kernels than a packed copy would be"
    )
    return False


def _where(model: LlamaModel, num_layers: int) -> str:
    """What computes a model, for people."""
    if model.placement is Placement.CPU:
        return "the CPU"
    names = " and ".join(f"{device.name} ({device.description})" for device in model.devices)
    if model.placement is Placement.ELSEWHERE:
        return names
    part = f" ({num_layers} of {model.num_layers} layers)" if num_layers >= 0 else ""
    return f"{names}{part} and the CPU"


def padded_rows(
    config: EngineConfig, model: LlamaModel, on_warning: Callable[[str], None] = warn
) -> int | None:
    """Rows of every forward pass on a device, so that no bit depends on what is drafted. None for
    `--fast`, and where padding costs too much and nobody asked for `--exact`."""
    if config.fast:
        return None
    choice = row_choice(config, model)
    if choice.num_rows is None and not config.exact:
        on_warning(
            f"{FEWEST} rows of a forward pass take {choice.price:.1f} times as long as one here, "
            "so passes are not padded to one number of rows, and last bits depend on what is "
            "drafted; --exact pads them all the same"
        )
        return None
    return choice.num_rows or FEWEST


def row_choice(config: EngineConfig, model: LlamaModel) -> RowChoice:
    """What rows cost on the device that a model is on."""
    return choice_for(model, num_threads=config.threads or len(available_cores()))


def placed_tensors(config: EngineConfig) -> list[overrides.Override]:
    """Tensors to place on other devices than their layers. Raises BadOption."""
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
    """The most tokens of a text: as configured, or as the model was trained for and memory holds.
    Raises ContextExceeded for more than either."""
    trained = header.num_context_train or UNKNOWN_CONTEXT
    if asked is None:
        num_context = min(trained, footprint.good_context(free_bytes))
        if num_context < trained:
            on_warning(
                f"the context is {num_context} tokens of the {trained} that the model was trained "
                "for, as memory is short; --context sets another"
            )
        return num_context
    most = footprint.most_context(free_bytes)
    if checked_context(asked, trained) > most:
        raise ContextExceeded(
            f"context is {asked}, and memory holds caches of {most} tokens; use {most} or less, "
            "or a smaller format with --cache-type-k and --cache-type-v"
        )
    return asked


def _draft_bytes(config: EngineConfig) -> int:
    """The size of the draft model's weights, if it is on this machine; its cache is small."""
    alias = ALIASES.get(config.target.lower())
    draft = alias.draft if alias and config.draft == "auto" else config.draft
    if draft in (None, "none", "auto"):
        return 0
    with suppress(DuodecError):  # it is not fetched yet, or there is none
        return resolve(draft, offline=True).path.stat().st_size
    return 0


def checked_context(num_context: int, trained: int) -> int:
    """Raises ContextExceeded for more than the model was trained for."""
    if num_context > trained:
        raise ContextExceeded(
            f"context is {num_context} and the model was trained for {trained} tokens; "
            f"use {trained} or less"
        )
    return num_context


def _blueprint(config: EngineConfig, path: Path) -> Blueprint:
    """The plan of a torch model, without its weights. Raises what is wrong with it."""
    from duodec.backends.torch.blueprint import Blueprint
    from duodec.backends.torch.network import check_rowwise

    found = Blueprint.of(
        path,
        dtype=config.dtype_name,
        device=config.device,
        num_context=config.context or TORCH_CONTEXT,
        num_slots=config.num_slots,
    )
    if not config.fast:
        check_rowwise(found.config)
    return found


def _load_torch(config: EngineConfig, on_warning: Callable[[str], None]) -> LoadedTarget:
    _require_torch(config)
    from duodec.backends.torch.memory import Extent
    from duodec.backends.torch.model import TorchModel
    from duodec.backends.torch.network import Network
    from duodec.backends.torch.placing import is_out_of_memory
    from duodec.backends.torch.target import TorchTarget

    file = vetted(target_file(config), vocabulary_only=True)
    model = TorchModel(_blueprint(config, file.path))

    def start(num_context: int, plan: CorePlan) -> RunningTarget:
        try:
            return TorchTarget(
                Network(model.causal_lm, on_warning),
                num_context=num_context,
                num_slots=config.num_slots,
                num_threads=plan.target_alone,
                is_width_exact=not config.fast,
                on_warning=on_warning,
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            need = replace(model.need, num_context=num_context).beside_weights()
            raise ModelUnreadable(f"out of memory: {need.complaint(model.place)}") from error

    place = f"torch on {model.place.words}, in {model.place.dtype_name}"
    is_on_cpu = model.place.is_on_cpu
    placement = Placement.CPU if is_on_cpu else Placement.ELSEWHERE
    asked, trained = config.context, model.num_context_train
    num_context = checked_context(asked, trained) if asked else min(trained, TORCH_CONTEXT)
    free_bytes = None if is_on_cpu else lambda: sum(model.place.free_bytes)
    num_padded = 1 if config.fast else Extent.on("cpu" if is_on_cpu else "cuda", 0).num_rows
    return LoadedTarget(model, placement, num_context, start, place, free_bytes, num_padded)


def open_vocabulary(config: EngineConfig) -> OpenVocabulary:
    """The target's vocabulary without its weights; the caller closes it."""
    file = target_file(config)
    if file.path.is_dir():
        from duodec.backends.torch.model import vocabulary_of

        return vocabulary_of(file.path)
    path = vetted(file, vocabulary_only=True).path
    return LlamaModel(path, vocabulary_only=True, num_gpu_layers=0)


def can_offload() -> bool:
    """Whether llama.cpp was built for a GPU."""
    return bool(load_llama().llama_supports_gpu_offload())


def llama_layers(config: EngineConfig) -> int:
    """Layers that llama.cpp is to place on a GPU. Raises what it cannot do."""
    if config.dtype_name != "auto":
        raise BadOption(
            f"dtype is {config.dtype}, and llama.cpp computes a GGUF file as it is quantised; "
            "leave it out, or use --target-backend torch"
        )
    if config.device == "auto":
        return config.gpu_layers
    if config.device == "cpu":
        return 0
    return config.gpu_layers


def llama_devices(config: EngineConfig) -> list[devices.Device]:
    """The devices that the user names for a GGUF file; none: all that there are. Raises BadOption
    and BackendUnavailable."""
    lib = load_llama()
    if config.gpu_layers > 0 and config.device != "cpu" and not can_offload():
        raise BackendUnavailable(
            f"gpu-layers is {config.gpu_layers}, and this llama.cpp was built without a GPU; leave "
            f"it out, or {GPU_BUILD}"
        )
    if config.device in ("auto", "cpu"):
        return []
    found = [device for name in config.device.split(",") for device in devices.find(lib, name)]
    if len(set(found)) < len(found):
        raise BadOption(f"device is {config.device}, which names a GPU twice; name each once")
    return found


def _require_torch(config: EngineConfig) -> None:
    """Raises BadOption for options that only llama.cpp has, and BackendUnavailable, which names the
    remedy."""
    default = EngineConfig()
    for name, remedy in _OF_LLAMA_CPP.items():
        if (value := getattr(config, name)) != getattr(default, name):
            shown = ",".join(value) if isinstance(value, tuple) else value
            raise BadOption(
                f"{name.replace('_', '-')} is {shown}, which only llama.cpp can serve; {remedy}"
            )
    import duodec.backends.torch.library  # noqa: F401
