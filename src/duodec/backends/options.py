"""Declare the options of any target, whichever library computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from duodec.core.sampling.parameters import Parameter

DTYPES = {
    "auto": "auto",
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float16", "fp16", "half"), "float16"),
    **dict.fromkeys(("float32", "fp32", "float"), "float32"),
}


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Hold the options of every backend. Described fields are options of the command line."""

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
    threads: Annotated[
        int | None,
        Parameter(
            "Threads of the target; by default one for each fast core that this process may use.",
            "Machine",
            ("--threads", "-t"),
            ge=1,
        ),
    ] = None
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
    num_slots: int = 1  # requests that share forward passes; --parallel of serve

    @property
    def dtype_name(self) -> str:
        """Return the name in full: `bf16` is bfloat16."""
        return DTYPES[self.dtype]
