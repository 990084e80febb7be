"""Declare the options of a target that llama.cpp computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from duodec.backends.llamacpp.target.caches import CACHE_TYPES
from duodec.backends.llamacpp.target.padded import MOST_ROWS
from duodec.backends.options import TargetOptions
from duodec.core.sampling.parameters import Parameter


@dataclass(frozen=True, kw_only=True)
class LlamaOptions(TargetOptions):
    """Hold the options that llama.cpp serves and other backends refuse
    (`duodec.loading.backends`)."""

    @classmethod
    def own(cls) -> tuple[str, ...]:
        """Return the names of these options, without those that every backend has."""
        return tuple(LlamaOptions.__annotations__)

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
    no_mmap: Annotated[
        bool,
        Parameter(
            "Read a GGUF target whole into memory in place of mapping its file, which must not "
            "become shorter while it is used.",
            "Machine",
        ),
    ] = False
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
