"""Target models by the library that computes them: one path each, the same record in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from duodec.backends.llamacpp.library import load as load_llama
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import LlamaTarget
from duodec.config import DEFAULT_CONTEXT, LLAMA_CPP, TORCH, CorePlan, EngineConfig
from duodec.core.protocols import Target
from duodec.engine import Tokenizer, warn
from duodec.errors import BackendUnavailable, BadOption, ModelUnreadable
from duodec.models import Format, ModelFile, folder_bytes, format_of, resolve, resolve_folder
from duodec.vetting import vetted

if TYPE_CHECKING:
    from duodec.backends.torch.blueprint import Blueprint

CUDA_BUILD = 'build one with CMAKE_ARGS="-DGGML_CUDA=on" make setup'


class Vocabulary(Tokenizer, Protocol):
    """A vocabulary that is freed when it is closed."""

    def close(self) -> None: ...


class TargetModel(Tokenizer, Protocol):
    """A model's vocabulary, and what is known of the rest."""

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
        """Its weights lie in memory already; otherwise they come from the disk as they are used."""

    @property
    def num_context_train(self) -> int: ...
    @property
    def cache_bytes_per_token(self) -> int: ...
    def close(self) -> None: ...


class RunningTarget(Target, Protocol):
    """A target with its cache."""

    on_chunk: Callable[[], None]
    """Called while a long prompt is read; may raise to abandon it."""

    def use_threads(self, num_threads: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class LoadedTarget:
    """A model that is loaded; `start` makes the target that computes it, for texts of so many
    tokens, and raises ModelUnreadable when there is no memory for them."""

    model: TargetModel
    is_on_cpu: bool
    start: Callable[[int, CorePlan], RunningTarget]
    place: str  # for people: what computes it, where, and in which numbers
    free_bytes: Callable[[], int] | None = None  # of its own device's memory, where that is known
    num_padded: int = 1  # rows that a forward computes at least


def backend_of(config: EngineConfig) -> str:
    """The library that will compute the target: the one asked for, or the one for its files."""
    if config.target_backend != "auto":
        return config.target_backend
    return TORCH if _format(config) == "safetensors" else LLAMA_CPP


def _format(config: EngineConfig) -> Format:
    prefer: Format = "safetensors" if config.target_backend == TORCH else "gguf"
    return format_of(config.target, prefer=prefer, offline=config.offline)


def target_file(config: EngineConfig) -> ModelFile:
    """The target's file or folder, downloaded if need be. Raises what is wrong with it, and
    BackendUnavailable before a download that nothing here could load."""
    if config.target_backend == LLAMA_CPP or _format(config) == "gguf":
        return resolve(config.target, offline=config.offline)
    _require_torch(config)
    return resolve_folder(
        config.target, offline=config.offline, check=lambda folder: _blueprint(config, folder)
    )


def file_bytes(file: ModelFile) -> int:
    """What the model's weights take on the disk."""
    return folder_bytes(file.path) if file.path.is_dir() else file.path.stat().st_size


def load_target(config: EngineConfig, on_warning: Callable[[str], None] = warn) -> LoadedTarget:
    """The target's model, in memory. Raises what is wrong with its files, or with what is asked of
    its backend."""
    loads = _load_torch if backend_of(config) == TORCH else _load_llama
    return loads(config, on_warning)


def _load_llama(config: EngineConfig, on_warning: Callable[[str], None]) -> LoadedTarget:
    layers = llama_layers(config)
    path = vetted(target_file(config)).path
    model = LlamaModel(path, num_gpu_layers=layers, is_exact=config.exact)
    can_offload = bool(model.lib.llama_supports_gpu_offload())
    is_on_cpu = not can_offload or 0 <= layers < model.num_layers

    def start(num_context: int, plan: CorePlan) -> RunningTarget:
        return LlamaTarget(
            model,
            num_context=num_context,
            num_threads=plan.target_alone,
            is_width_exact=plan.shares_cores and not config.fast,
        )

    where = "the CPU" if not can_offload or not layers else "a GPU"
    if is_on_cpu and where != "the CPU":
        where = f"a GPU ({layers} of {model.num_layers} layers) and the CPU"
    return LoadedTarget(model, is_on_cpu, start, f"llama.cpp on {where}, as quantised")


def _blueprint(config: EngineConfig, path: Path) -> Blueprint:
    """What can be told of a torch model without its weights. Raises what is wrong with it."""
    from duodec.backends.torch.blueprint import Blueprint
    from duodec.backends.torch.network import check_rowwise

    found = Blueprint.of(
        path,
        dtype=config.dtype_name,
        device=config.device,
        num_context=config.context or DEFAULT_CONTEXT,
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
    free_bytes = None if is_on_cpu else lambda: sum(model.place.free_bytes)
    num_padded = 1 if config.fast else Extent.on("cpu" if is_on_cpu else "cuda", 0).num_rows
    return LoadedTarget(model, is_on_cpu, start, place, free_bytes, num_padded)


def open_vocabulary(config: EngineConfig) -> Vocabulary:
    """The target's vocabulary without its weights; the caller closes it."""
    file = target_file(config)
    if file.path.is_dir():
        from duodec.backends.torch.model import vocabulary_of

        return vocabulary_of(file.path)
    path = vetted(file, vocabulary_only=True).path
    return LlamaModel(path, vocabulary_only=True, num_gpu_layers=0)


def target_is_elsewhere(config: EngineConfig) -> bool:
    """Whether the target will compute on a GPU. Loads libraries, but no model."""
    if backend_of(config) == TORCH:
        _require_torch(config)
        from duodec.backends.torch.placing import choose_places

        return not choose_places(config.device, config.dtype_name, None)[0].is_on_cpu
    return llama_layers(config) != 0 and can_offload()


def forwards_are_padded(config: EngineConfig) -> bool:
    """Whether a forward computes several rows however few are asked for."""
    return backend_of(config) == TORCH and not config.fast


def can_offload() -> bool:
    """Whether llama.cpp was built for a GPU."""
    return bool(load_llama().llama_supports_gpu_offload())


def llama_layers(config: EngineConfig) -> int:
    """Layers that llama.cpp shall place on a GPU. Raises what it cannot do."""
    if config.dtype_name != "auto":
        raise BadOption(
            f"dtype is {config.dtype}, and llama.cpp computes a GGUF file as it is quantised; "
            "leave it out, or use --target-backend torch"
        )
    if config.device == "auto":
        return config.gpu_layers
    if config.device == "cpu":
        return 0
    if config.device != "cuda":
        raise BadOption(
            f"device is {config.device}, and llama.cpp knows auto, cpu and cuda; choose the GPU "
            "with CUDA_VISIBLE_DEVICES"
        )
    load_llama(is_exact=config.exact)  # the first to load it decides about its kernels
    if not can_offload():
        raise BackendUnavailable(
            f"no device cuda: this llama.cpp was built without a GPU; {CUDA_BUILD}, or use "
            "--target-backend torch"
        )
    return config.gpu_layers


def _require_torch(config: EngineConfig) -> None:
    """Raises BadOption for what only llama.cpp can do, and BackendUnavailable, which names the
    remedy."""
    if config.gpu_layers != -1:
        raise BadOption(
            f"gpu-layers is {config.gpu_layers}, which only llama.cpp can serve; use --device"
        )
    import duodec.backends.torch.library  # noqa: F401
