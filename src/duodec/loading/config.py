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
from duodec.backends.llamacpp.options import LlamaOptions
from duodec.core.sampling.parameters import Parameter, check, fields_of, shown, strict, whole
from duodec.errors import BadOption
from duodec.machine import plugins
from duodec.machine.cores import available_cores
from duodec.models.modelfile import Modelfile

DEFAULT_TARGET = "smollm2"
AUTO, LLAMA_CPP = "auto", "llama.cpp"
# None: llama.cpp's name for it.
DRAFT_DEVICES = {"auto": "auto", "cpu": "cpu", "none": "cpu", "gpu": "gpu"}
_KIND = r"(cuda|rocm|vulkan|metal|sycl)(:\d+)?|(CUDA|ROCm|Vulkan|MTL|Metal|SYCL)\d*"
_DEVICE = re.compile(rf"auto|cpu|({_KIND})(,({_KIND}))*")
# A path is accepted for these.
_PATHS = ("target", "draft", "heads", "mmproj", "datastore", "chat_template")


@strict
@dataclass(frozen=True)
class EngineConfig(LlamaOptions):
    """Say what to load and how. Every described field is an option of the command line."""

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
        ),
    ] = AUTO
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

    def __post_init__(self) -> None:
        with suppress(ValueError, TypeError):  # the command line gives a text
            object.__setattr__(self, "pace", float(self.pace))
        for name in _PATHS:
            object.__setattr__(self, name, _name_of(name, getattr(self, name)))
        check(self)
        self._check_backend()
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

    def _check_backend(self) -> None:
        own = (AUTO, LLAMA_CPP)
        if self.target_backend in own or plugins.is_known(plugins.BACKENDS, self.target_backend):
            return
        names = ", ".join([*own, *plugins.installed(plugins.BACKENDS)])
        raise BadOption(f"unknown target backend '{self.target_backend}'; choose from: {names}")

    @property
    def pace_curve(self) -> CostCurve | None:
        """Return the least time of the target's forward passes; None if it is not slowed."""
        if isinstance(self.pace, str):
            return CostCurve.parse(self.pace, "pace")
        return CostCurve.constant(self.pace) if self.pace else None

    @property
    def template_text(self) -> str | None:
        """Return the chat template that the user names. Raises BadOption."""
        if self.chat_template is None:
            return None
        try:
            return Path(self.chat_template).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise BadOption(
                f"chat_template is '{self.chat_template}', which cannot be read ({error}); name a "
                "file with a Jinja template"
            ) from error


def _name_of(field: str, value: object) -> str | None:
    """Return a name or a path as a text; None where the field may be None. Raises BadOption."""
    name = fspath(value) if isinstance(value, PathLike) else value
    if isinstance(name, str) or (name is None and fields_of(EngineConfig)[field].is_optional):
        return name
    flags = fields_of(EngineConfig)[field].flags
    raise BadOption(
        f"{field} is {shown(value)}; give a name or a path, as a text", option=field, flags=flags
    )
