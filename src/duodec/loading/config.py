"""Define what to load and how, and how target and drafter share the machine's cores."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated

from duodec.backends.curves import CostCurve
from duodec.backends.drafter.window import DEFAULT_WINDOW, LEAST_WINDOW
from duodec.backends.grammar import trial
from duodec.backends.llamacpp.drafts.parallel import MOST_PARALLEL
from duodec.backends.llamacpp.target.caches import CACHE_TYPES
from duodec.backends.llamacpp.target.padded import MOST_ROWS
from duodec.core.sampling.parameters import Parameter, check, fields_of, shown, strict, whole
from duodec.errors import BadOption
from duodec.machine.cores import available_cores
from duodec.models.modelfile import Modelfile

DEFAULT_TARGET = "smollm2"
LLAMA_CPP, TORCH = "llama.cpp", "torch"
BACKENDS = ("auto", LLAMA_CPP, TORCH)
DTYPES = {
    "auto": "auto",
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float16", "fp16", "half"), "float16"),
    **dict.fromkeys(("float32", "fp32", "float"), "float32"),
}
DRAFT_DEVICES = {"auto": "auto", "cpu": "cpu", "none": "cpu", "gpu": "gpu"}  # none: llama.cpp's
_KIND = r"(cuda|rocm|vulkan|metal|sycl)(:\d+)?|(CUDA|ROCm|Vulkan|MTL|Metal|SYCL)\d*"
_DEVICE = re.compile(rf"auto|cpu|({_KIND})(,({_KIND}))*")
_PATHS = ("target", "draft", "heads", "mmproj", "datastore", "chat_template")  # a path will do


@strict
@dataclass(frozen=True)
class EngineConfig:
    """What to load and how. Every described field is an option of the command line."""

    target: Annotated[
        str,
        Parameter(
            "The model whose text is generated: a GGUF file, a folder of safetensors, "
            "hf:owner/repo[:quant], an alias or a name of Ollama's (see `duodec list`), or a "
            "Modelfile.",
            "Models",
            ("--target", "-m"),
            "MODEL",
        ),
    ] = DEFAULT_TARGET
    draft: Annotated[
        str | None,
        Parameter(
            "The smaller model that drafts for it; auto: the one known to suit the target, or the "
            "smallest of its vocabulary on this machine; none: no draft.",
            "Models",
            ("--draft", "-md"),
            "MODEL",
        ),
    ] = "auto"
    target_backend: Annotated[
        str,
        Parameter(
            "The target's backend: llama.cpp or torch; auto: llama.cpp for GGUF files, torch "
            "for safetensors.",
            "Models",
            metavar="NAME",
            choices=BACKENDS,
        ),
    ] = "auto"
    heads: Annotated[
        str | None,
        Parameter(
            "Heads trained for the target, which propose tokens from its hidden states: for torch "
            "a folder, or hf:owner/repo, of Medusa, Hydra or EAGLE; for llama.cpp a GGUF file of "
            "EAGLE-3, DFlash, DFlash2 or DSpark. See docs/methods.md.",
            "Models",
            metavar="MODEL",
        ),
    ] = None
    mmproj: Annotated[
        str | None,
        Parameter(
            "The file by which a GGUF target sees pictures (llama.cpp's mmproj-*.gguf); auto: the "
            "one beside its file, in its repository or of Ollama's, if there is one; none: it "
            "reads text only. See docs/images.md.",
            "Models",
            ("--mmproj", "-mm"),
            "FILE",
        ),
    ] = "auto"
    datastore: Annotated[
        str | None,
        Parameter(
            "Datastore of `rest`; auto: the one that `duodec datastore build` made for this "
            "vocabulary.",
            "Models",
            metavar="FILE",
        ),
    ] = None
    offline: Annotated[bool, Parameter("Use only models that are on the disk.", "Models")] = False
    exact: Annotated[
        bool,
        Parameter(
            "No bit of a target depends on what is drafted, or on other requests: the default, "
            "which --fast gives up.",
            "Decoding",
        ),
    ] = False
    fast: Annotated[
        bool,
        Parameter(
            "Some per cent faster: on a CPU keys are cached in f16 and accepted branches stay in "
            "their cells, on a GPU requests share forward passes. Near ties may be decided "
            "differently than in plain decoding.",
            "Decoding",
        ),
    ] = False
    pace: Annotated[
        float | str,
        Parameter(
            "Least time of a forward pass of the target, to imitate a slower or larger model: "
            "seconds, or a curve as in `duodec bench --help` (milliseconds by rows, a published "
            "one's name, or a roofline).",
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
            "Read control tokens spelled in prompts and messages as control tokens; without it, "
            "they are text.",
            "Decoding",
        ),
    ] = False
    chat_template: Annotated[
        str | None,
        Parameter(
            "A file with a chat template (Jinja) in place of the model's own.",
            "Models",
            ("--chat-template", "--chat-template-file"),
            "FILE",
        ),
    ] = None
    context: Annotated[
        int | None,
        Parameter(
            "Most tokens of prompt and completion together; by default what the model was "
            "trained for, as far as memory allows.",
            "Machine",
            ("--context", "-c"),
            ge=1,
        ),
    ] = None
    no_mmap: Annotated[
        bool,
        Parameter(
            "Read a GGUF target whole into memory in place of mapping its file, which must not "
            "become shorter while it is used.",
            "Machine",
        ),
    ] = False
    threads: Annotated[
        int | None,
        Parameter(
            "Threads of the target; by default one for each fast core that this process may use.",
            "Machine",
            ("--threads", "-t"),
            ge=1,
        ),
    ] = None
    draft_threads: Annotated[
        int | None,
        Parameter(
            "Threads of the draft model; by default a share of the fast cores.",
            "Machine",
            ("--draft-threads", "-td"),
            ge=1,
        ),
    ] = None
    draft_device: Annotated[
        str,
        Parameter(
            "Where the draft model computes: cpu, on cores; gpu, on the target's device, in turns "
            "with it; auto: on the device, where its memory has room and a step there is expected "
            "to pay more.",
            "Machine",
            ("--draft-device", "--device-draft", "-devd"),
            "NAME",
            choices=DRAFT_DEVICES,
        ),
    ] = "auto"
    draft_window: Annotated[
        int | None,
        Parameter(
            f"Most tokens of a text in the draft model's cache, {LEAST_WINDOW} or more; by "
            f"default {DEFAULT_WINDOW}. It drafts from the end of a long prompt at once and adds "
            "older text while that pays.",
            "Machine",
            metavar="TOKENS",
            ge=LEAST_WINDOW,
        ),
    ] = None
    draft_head: Annotated[
        int | None,
        Parameter(
            "Most frequent tokens that the draft model chooses from, in addition to those of the "
            "text, for shorter steps; 0: all. By default a third of a vocabulary of more than "
            "40000, 32768 at most.",
            "Machine",
            metavar="TOKENS",
            ge=0,
        ),
    ] = None
    draft_weights: Annotated[
        str,
        Parameter(
            "Compute the draft model with 4.5 bits a weight where its file has more than 5, for "
            "shorter steps (auto), or as its file has them (file).",
            "Machine",
            choices=("auto", "file"),
        ),
    ] = "auto"
    draft_parallel: Annotated[
        int | None,
        Parameter(
            "Tokens that a step of the draft model drafts at once, where it was trained for that "
            "with mask tokens (PARD); 1: one. By default as many as it was trained for.",
            "Machine",
            metavar="TOKENS",
            ge=1,
            le=MOST_PARALLEL,
            remedy=f"use 1 to {MOST_PARALLEL}",
        ),
    ] = None
    rows: Annotated[
        int | None,
        Parameter(
            "Rows of each text in every forward pass of a GGUF target on a GPU, padding included; "
            "by default those widths whose rows have equal bits, found once and kept.",
            "Machine",
            metavar="N",
            ge=2,
            le=MOST_ROWS,
            remedy=f"use 2 to {MOST_ROWS}",
        ),
    ] = None
    gpu_layers: Annotated[
        int,
        Parameter(
            "Layers of the target to place on a GPU; -1: all, if llama.cpp was built for it.",
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
    no_repack: Annotated[
        bool,
        Parameter(
            "Compute weights on the CPU as they lie in the mapped file, without a packed copy in "
            "memory: slower, above all for several tokens at once. The default where memory is "
            "short.",
            "Machine",
            ("--no-repack", "-nr"),
        ),
    ] = False
    mtp: Annotated[
        str,
        Parameter(
            "Draft with the layer of multi-token prediction that a GGUF file brings, where it pays "
            "(auto), or leave that layer out of memory (off).",
            "Machine",
            choices=("auto", "off"),
        ),
    ] = "auto"
    override_tensor: Annotated[
        tuple[str, ...],
        Parameter(
            "Keep tensors whose names match a regular expression on a device, such as exps=CPU; "
            "comma-separated, or given several times. The first match counts.",
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
            "The same for its cached values; auto: f16.",
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
            "cuda:0,cuda:1; of a GGUF file vulkan, rocm, metal and sycl too, or a device as "
            "llama.cpp names it, such as Vulkan0; auto: a GPU if there is one.",
            "Machine",
            metavar="NAME",
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        Parameter(
            "Format of a torch target: bfloat16, float16 or float32; auto: bfloat16 on a GPU, "
            "the files' own on the CPU.",
            "Machine",
            metavar="NAME",
            choices=DTYPES,
        ),
    ] = "auto"
    grammar_s: Annotated[
        float,
        Parameter(
            "Seconds of processor time to compile a JSON schema or another grammar in.",
            "Limits",
            ("--grammar-timeout",),
            ge=0.001,
            lt=math.inf,
        ),
    ] = trial.SECONDS
    grammar_bytes: Annotated[
        int,
        Parameter(
            "Bytes of memory that compiling it may take.",
            "Limits",
            ("--grammar-memory",),
            ge=1 << 20,
        ),
    ] = trial.NUM_BYTES
    num_slots: int = 1  # requests that share forward passes; --parallel of serve

    def __post_init__(self) -> None:
        with suppress(ValueError, TypeError):  # the command line gives a text
            object.__setattr__(self, "pace", float(self.pace))
        for name in _PATHS:
            object.__setattr__(self, name, _name_of(name, getattr(self, name)))
        check(self)
        if modelfile := Modelfile.read(self.target):
            object.__setattr__(self, "target", modelfile.target)
            if self.draft == "auto" and modelfile.draft:
                object.__setattr__(self, "draft", modelfile.draft)
        object.__setattr__(self, "num_slots", whole("num_slots", self.num_slots))
        if self.num_slots < 1:
            raise BadOption(f"num_slots is {shown(self.num_slots)}; use 1 or more")
        _ = self.pace_curve, self.template_text
        if self.exact and self.fast:
            raise BadOption("exact and fast exclude each other; choose one")
        if not _DEVICE.fullmatch(self.device):
            raise BadOption(
                f"unknown device '{self.device}'; use auto, cpu, cuda (vulkan, rocm, metal, sycl), "
                "one GPU such as cuda:1, or several as cuda:0,cuda:1"
            )

        num_cores = len(available_cores())
        for name in ("threads", "draft_threads"):
            if (getattr(self, name) or 0) > num_cores:
                raise BadOption(
                    f"{name} is {getattr(self, name)} and this process may use "
                    f"{num_cores} cores: more threads than cores slow each other down tenfold; "
                    f"use {num_cores} or less"
                )

    @property
    def pace_curve(self) -> CostCurve | None:
        """What a forward pass of the target takes at least; None if it is not slowed."""
        if isinstance(self.pace, str):
            return CostCurve.parse(self.pace, "pace")
        return CostCurve.constant(self.pace) if self.pace else None

    @property
    def template_text(self) -> str | None:
        """The chat template that the user names. Raises BadOption."""
        if self.chat_template is None:
            return None
        try:
            return Path(self.chat_template).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise BadOption(
                f"chat_template is '{self.chat_template}', which cannot be read ({error}); name a "
                "file with a Jinja template"
            ) from error

    @property
    def dtype_name(self) -> str:
        """Spelled out: `bf16` is bfloat16."""
        return DTYPES[self.dtype]


def _name_of(field: str, value: object) -> str | None:
    """A name or a path as a text; None where the field may be None. Raises BadOption."""
    name = fspath(value) if isinstance(value, PathLike) else value
    if isinstance(name, str) or (name is None and fields_of(EngineConfig)[field].is_optional):
        return name
    flags = fields_of(EngineConfig)[field].flags
    raise BadOption(
        f"{field} is {shown(value)}; give a name or a path, as a text", option=field, flags=flags
    )
