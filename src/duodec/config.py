"""What to load and how, and how the machine's cores are shared between target and drafter."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duodec.backends.window import LEAST_WINDOW
from duodec.errors import BadOption

DEFAULT_TARGET = "smollm2"
DEFAULT_CONTEXT = 8192  # tokens, where the model was trained for as many
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
    """What to load and how; every field is an option of the command line."""

    target: str = DEFAULT_TARGET
    draft: str | None = "auto"  # "auto": the one known to suit the target; None: none
    target_backend: str = "auto"  # what computes the target; auto: what suits its files
    dtype: str = "auto"  # of a torch target; auto: bfloat16 on a GPU, else its files' own
    device: str = "auto"  # a GPU where there is one
    context: int | None = None
    num_slots: int = 1  # texts that a torch target keeps at once; a server's --parallel
    threads: int | None = None
    draft_threads: int | None = None
    draft_window: int | None = None  # tokens of a text that the draft holds at most; None: 8192
    gpu_layers: int = -1  # all that the build can place on a GPU
    exact: bool = False  # bit-identical kernels throughout
    fast: bool = False  # llama.cpp's own choice of kernels throughout
    pace: float = 0.0  # seconds that a target forward takes at least
    datastore: str | None = None  # for `rest`: a file, or "auto", the vocabulary's own
    offline: bool = False

    def __post_init__(self) -> None:
        if self.exact and self.fast:
            raise BadOption("exact and fast exclude each other; choose one")
        for name, known in (("target_backend", BACKENDS), ("dtype", DTYPES)):
            if getattr(self, name) not in known:
                raise BadOption(
                    f"unknown {name.replace('_', ' ')} '{getattr(self, name)}'; choose from: "
                    f"{', '.join(known)}"
                )
        if not _DEVICE.fullmatch(self.device):
            raise BadOption(
                f"unknown device '{self.device}'; use auto, cpu, cuda, one GPU such as cuda:1, "
                "or several as cuda:0,cuda:1"
            )
        if not math.isfinite(self.pace):
            raise BadOption(f"pace is {self.pace}; use a number of seconds")
        for name, least in (
            ("context", 1), ("threads", 1), ("draft_threads", 1), ("pace", 0),
            ("draft_window", LEAST_WINDOW),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not value >= least:
                flag = name.replace("_", "-")
                raise BadOption(f"{flag} is {value}; use {least} or more")

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
