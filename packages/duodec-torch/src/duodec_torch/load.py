"""Load a folder of safetensors, or a GGUF file, as a target that torch computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import duodec_torch.library  # noqa: F401  says what to do where there is no torch
from duodec.backends.loaded import LoadedTarget, RunningTarget, checked_context
from duodec.backends.options import TargetOptions
from duodec.backends.placement import Placement
from duodec.core.traits import Widths
from duodec.errors import ModelUnreadable, warn
from duodec.machine.core_plan import CorePlan
from duodec_torch.checkpoint.blueprint import Blueprint
from duodec_torch.checkpoint.memory import Extent
from duodec_torch.checkpoint.model import TorchModel
from duodec_torch.checkpoint.placing import choose_places, is_out_of_memory
from duodec_torch.forward.network import Network, check_rowwise
from duodec_torch.heads.eagle import Eagle
from duodec_torch.heads.files import HeadFiles
from duodec_torch.heads.hydra import Hydra
from duodec_torch.heads.medusa import Medusa
from duodec_torch.heads.states import HeadModel
from duodec_torch.target import TorchTarget
from duodec_torch.width_choice import choice_for

_HEADS: Mapping[str, Callable[[HeadFiles, Network], HeadModel]] = {
    "medusa_num_heads": Medusa,
    "hydra_num_heads": Hydra,
    "num_hidden_layers": Eagle,
}  # by what the config.json of no other kind has
DEFAULT_CONTEXT = 8192  # tokens, if the model was trained for so many


def blueprint(path: Path, config: TargetOptions, heads: Path | None = None) -> Blueprint:
    """The plan of a model and of the folder of its heads, without their weights. Raises what is
    wrong with it."""
    found = Blueprint.of(
        path,
        dtype=config.dtype_name,
        device=config.device,
        num_context=config.context or DEFAULT_CONTEXT,
        num_slots=config.num_slots,
        num_head_params=HeadFiles.of(heads).num_params if heads else 0,
    )
    if not config.fast:
        check_rowwise(found.config)
    return found


def free_bytes(config: TargetOptions) -> int:
    """Of the memory where the model would be."""
    return sum(choose_places(config.device, config.dtype_name, None)[-1].free_bytes)


def load_heads(path: Path, network: Network) -> HeadModel:
    """The heads in a folder, for a target's network. Raises ModelUnreadable."""
    files = HeadFiles.of(path)
    kind = next((kind for name, kind in _HEADS.items() if name in files.config), None)
    if kind is None:
        raise ModelUnreadable(
            f"{path} holds heads of no kind that is known here: its config.json has none of "
            f"{', '.join(_HEADS)}"
        )
    return kind(files, network)


def load(
    path: Path,
    config: TargetOptions,
    on_warning: Callable[[str], None] = warn,
    *,
    heads: Path | None = None,
) -> LoadedTarget:
    """Load a target's files, and the folder of its heads. Raises what is wrong with them or with
    the options."""
    model = TorchModel(blueprint(path, config, heads))

    def start(num_context: int, plan: CorePlan) -> RunningTarget:
        with _memory_said(model, num_context):
            network = Network(model.causal_lm, on_warning)
            return TorchTarget(
                network,
                num_context=num_context,
                num_slots=config.num_slots,
                num_threads=plan.target_alone,
                is_width_exact=not config.fast,
                widths=widths,
                heads=load_heads(heads, network) if heads else None,
                on_warning=on_warning,
            )

    place = f"torch on {model.place.words}, in {model.place.dtype_name}"
    is_on_cpu = model.place.is_on_cpu
    placement = Placement.CPU if is_on_cpu else Placement.ELSEWHERE
    asked, trained = config.context, model.num_context_train
    num_context = checked_context(asked, trained) if asked else min(trained, DEFAULT_CONTEXT)
    free = None if is_on_cpu else lambda: sum(model.place.free_bytes)
    try:
        with _memory_said(model, num_context):
            widths, pass_s = chosen_widths(config, model, num_context)
    except BaseException:
        model.close()
        raise
    if pass_s:
        place += f", {widths} rows a forward pass"
    return LoadedTarget(
        model, placement, num_context, start, place, free, widths=widths, pass_s=pass_s
    )


@contextmanager
def _memory_said(model: TorchModel, num_context: int) -> Iterator[None]:
    """Too little memory is a ModelUnreadable that says how much is needed."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        need = replace(model.need, num_context=num_context).beside_weights()
        raise ModelUnreadable(f"out of memory: {need.complaint(model.place)}") from error


def chosen_widths(
    config: TargetOptions, model: TorchModel, num_context: int
) -> tuple[Widths, Mapping[int, float]]:
    """Rows that a forward pass of a text may have, and its seconds by its rows where they were
    measured: on a GPU. On a CPU, where each row takes its time, passes have few; with ``fast`` as
    many as are wanted. Raises ComputeFailed."""
    if config.fast:
        return Widths(), {}
    if model.place.is_on_cpu:
        return Widths.only(Extent.on("cpu", num_context).num_rows), {}
    choice = choice_for(model, num_context)
    return choice.widths, choice.seconds_of(choice.widths)
