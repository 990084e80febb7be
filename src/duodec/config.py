"""What to load and how, and how the machine's cores are shared between target and drafter."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from duodec.backends.llamacpp.caches import CACHE_TYPES
from duodec.backends.window import DEFAULT_WINDOW, LEAST_WINDOW
from duodec.core.parameters import Parameter, check
from duodec.errors import BadOption

DEFAULT_TARGET = "smollm2"
TORCH_CONTEXT = 8192  # tokens by default in torch, where the model was trained for as many
LLAMA_CPP, TORCH = "llama.cpp", "torch"
BACKENDS = ("auto", LLAMA_CPP, TORCH)
DTYPES = {
    "auto": "auto",
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float16", "fp16", "half"), "float16"),
    **dict.fromkeys(("float32", "fp32", "float"), "float32"),
}
_DEVICE = re.compile(r"auto|cpu|cuda|cuda:\d+(,cuda:\d+)*")


@dataclass(frozen=True)
class EngineConfig:
    """What to load and how. Every described field is an option of the command line."""

    target: Annotated[
        str,
        Parameter(
            "The model whose text is wanted: a GGUF file, a folder of safetensors, "
            "hf:owner/repo[:quant], or an alias (see `duodec models`).",
            "Models",
            ("--target", "-m"),
            "MODEL",
        ),
    ] = DEFAULT_TARGET
    draft: Annotated[
        str | None,
        Parameter(
            "The smaller model that drafts for it; auto: the one known to suit the target; "
            "none: no draft.",
            "Models",
            ("--draft", "-md"),
            "MODEL",
        ),
    ] = "auto"
    target_backend: Annotated[
        str,
        Parameter(
            "What computes the target: llama.cpp or torch; auto: llama.cpp for GGUF files, torch "
            "for safetensors.",
            "Models",
            metavar="NAME",
            choices=BACKENDS,
        ),
    ] = "auto"
    datastore: Annotated[
        str | None,
        Parameter(
            "What `rest` drafts from; auto: the one that `duodec datastore build` made for this "
            "vocabulary.",
            "Models",
            metavar="FILE",
        ),
    ] = None
    offline: Annotated[bool, Parameter("Use only models that are on the disk.", "Models")] = False
    exact: Annotated[
        bool,
        Parameter(
            "The same bits however many tokens are scored at once, for every kind of "
            "quantisation; without it, attention alone has this property.",
            "Decoding",
        ),
    ] = False
    fast: Annotated[
        bool,
        Parameter(
            "llama.cpp's own choice of kernels: some per cent faster on a CPU, but near ties "
            "may fall otherwise than in plain decoding.",
            "Decoding",
        ),
    ] = False
    pace: Annotated[
        float,
        Parameter(
            "Let each target forward take at least this long, as on a slower or larger model.",
            "Decoding",
            metavar="SECONDS",
            ge=0,
            lt=math.inf,
            remedy="use seconds, 0 or more",
        ),
    ] = 0.0
    parse_special: Annotated[
        bool,
        Parameter(
            "Let control tokens that prompts and messages spell be control tokens; without it, "
            "text is text.",
            "Decoding",
        ),
    ] = False
    context: Annotated[
        int | None,
        Parameter(
            "Tokens that prompt and answer may hold together; by default what the model was "
            "trained for, as far as memory holds it.",
            "Machine",
            ("--context", "-c"),
            ge=1,
        ),
    ] = None
    threads: Annotated[
        int | None,
        Parameter(
            "Cores to use; by default all that this process may use.",
            "Machine",
            ("--threads", "-t"),
            ge=1,
        ),
    ] = None
    draft_threads: Annotated[
        int | None,
        Parameter(
            "Cores for the draft model; by default a share of them.",
            "Machine",
            ("--draft-threads", "-td"),
            ge=1,
        ),
    ] = None
    draft_window: Annotated[
        int | None,
        Parameter(
            f"Tokens of a text that the draft model holds at most, {LEAST_WINDOW} or more; by "
            f"default {DEFAULT_WINDOW}. It drafts from the end of a long prompt at once and reads "
            "older text while that pays.",
            "Machine",
            metavar="TOKENS",
            ge=LEAST_WINDOW,
        ),
    ] = None
    gpu_layers: Annotated[
        int,
        Parameter(
            "Layers of the target to place on a GPU; -1: all, where llama.cpp was built for it.",
            "Machine",
            ("--gpu-layers", "-ngl"),
        ),
    ] = -1
    cpu_moe: Annotated[
        bool,
        Parameter(
            "Keep the experts of a mixture on the CPU, and the rest on the GPU.",
            "Machine",
            ("--cpu-moe", "-cmoe"),
        ),
    ] = False
    n_cpu_moe: Annotated[
        int,
        Parameter(
            "The same, for the experts of the first N layers only.",
            "Machine",
            ("--n-cpu-moe", "-ncmoe"),
            "N",
            ge=0,
        ),
    ] = 0
    override_tensor: Annotated[
        tuple[str, ...],
        Parameter(
            "Keep tensors whose names match a regular expression on a device, as exps=CPU; "
            "several by commas, or given several times. The first that matches counts.",
            "Machine",
            ("--override-tensor", "-ot"),
            "PATTERN=DEVICE",
        ),
    ] = ()
    cache_type_k: Annotated[
        str,
        Parameter(
            "The format of the target's cached keys: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 "
            "or iq4_nl; auto: bf16 on a CPU, else f16. See docs/exactness.md.",
            "Machine",
            ("--cache-type-k", "-ctk"),
            "TYPE",
            choices=CACHE_TYPES,
        ),
    ] = "auto"
    cache_type_v: Annotated[
        str,
        Parameter(
            "The same of its cached values; auto: f16.",
            "Machine",
            ("--cache-type-v", "-ctv"),
            "TYPE",
            choices=CACHE_TYPES,
        ),
    ] = "auto"
    device: Annotated[
        str,
        Parameter(
            "Where the target computes: cpu, cuda (as few GPUs as hold it), cuda:1, or "
            "cuda:0,cuda:1; auto: a GPU where there is one.",
            "Machine",
            metavar="NAME",
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        Parameter(
            "Numbers of a torch target: bfloat16, float16 or float32; auto: bfloat16 on a GPU, "
            "the files' own on the CPU.",
            "Machine",
            metavar="NAME",
            choices=DTYPES,
        ),
    ] = "auto"
    num_slots: int = 1  # requests that run at once, in the same forward passes; --parallel of serve

    def __post_init__(self) -> None:
        check(self)
        if self.exact and self.fast:
            raise BadOption("exact and fast exclude each other; choose one")
        if not _DEVICE.fullmatch(self.device):
            raise BadOption(
                f"unknown device '{self.device}'; use auto, cpu, cuda, one GPU such as cuda:1, "
                "or several as cuda:0,cuda:1"
            )

        num_cores = len(available_cores())
        for name in ("threads", "draft_threads"):
            if (getattr(self, name) or 0) > num_cores:
                raise BadOption(
                    f"{name.replace('_', '-')} is {getattr(self, name)} and this process may use "
                    f"{num_cores} cores: more threads than cores slow each other down tenfold; "
                    f"use {num_cores} or less"
                )

    @property
    def dtype_name(self) -> str:
        """Spelled out: `bf16` is bfloat16."""
        return DTYPES[self.dtype]


MOST_DRAFT_THREADS = 8  # a small model gains nothing beyond
_NODES = Path("/sys/devices/system/node")  # where Linux tells which memory is near which core

Cores = tuple[int, ...]


def available_cores() -> Cores:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def memory_nodes(cores: Cores, folder: Path = _NODES) -> tuple[Cores, ...]:
    """The cores by the memory that is near them; all of them together where nobody tells."""
    lists = [file.read_text() for file in sorted(folder.glob("node[0-9]*/cpulist"))]
    nodes = (tuple(sorted(listed_cores(text) & set(cores))) for text in lists)
    return tuple(node for node in nodes if node) or (cores,)


def listed_cores(text: str) -> set[int]:
    """Linux's way to write a set: ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _together(cores: Cores, count: int, nodes: Sequence[Cores]) -> Cores:
    """The last ``count`` cores, of one node where one has as many: threads that share a model's
    weights should share the memory that holds them."""
    own = [tuple(core for core in node if core in cores) for node in nodes]
    roomy = [node for node in own if len(node) >= count]
    return (roomy[-1] if roomy else cores)[-count:]


def keep_to(cores: Cores) -> None:
    """Let the calling thread, and threads that it starts, run on these cores only, where the
    system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True)
class CorePlan:
    """Busy threads never exceed cores: llama.cpp's workers spin, and two oversubscribed pools
    were measured at less than a tenth of their speed.

    ``target_alone`` threads compute the target while nothing is drafted, ``target_beside``
    while the drafter is at work on ``draft_cores``. A target elsewhere needs one thread, which
    launches its work, and then keeps to ``launch_cores``.
    """

    target_alone: int
    target_beside: int
    draft_cores: Cores
    shares_cores: bool
    launch_cores: Cores

    @classmethod
    def make(
        cls,
        cores: Cores,
        *,
        target_is_on_cpu: bool,
        num_threads: int | None = None,
        num_draft_threads: int | None = None,
        nodes: Sequence[Cores] = (),
    ) -> CorePlan:
        """The plan for these cores; a target elsewhere leaves all of them but one to the draft."""
        usable = num_threads or len(cores)
        if num_draft_threads:
            num_draft = num_draft_threads
        elif target_is_on_cpu:
            num_draft = max(1, usable // 4)
        else:
            num_draft = max(1, min(MOST_DRAFT_THREADS, len(cores) - 1))
        num_draft = min(num_draft, max(1, len(cores) - 1))
        own = cores if target_is_on_cpu else cores[1:] or cores
        draft_cores = _together(own, num_draft, nodes)
        beside = max(1, min(usable, len(cores) - num_draft))
        return cls(
            target_alone=usable if target_is_on_cpu else 1,
            target_beside=beside if target_is_on_cpu else 1,
            draft_cores=draft_cores,
            shares_cores=target_is_on_cpu,
            launch_cores=tuple(core for core in cores if core not in draft_cores) or cores,
        )
