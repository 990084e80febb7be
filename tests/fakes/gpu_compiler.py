"""Our kernels compiled for GPUs that are not there, as the target launches them: which registers
and memory they take, and which instructions they are made of.

Run as a program, since a process of the tests has Triton's interpreter; prints what it saw as JSON.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from duodec_torch.forward import attention, kernels, layer_kernels
from duodec_torch.sampling.summaries import NUM_COLUMNS
from duodec_torch.sampling.summary_kernel import fused_summarise

BIN = Path(triton.__file__).parent / "backends/nvidia/bin"
FOUND: dict[str, dict[str, Any]] = {}
SHARED: dict[str, int] = {}  # bytes of a program's shared memory
LOOKS_INSIDE = "--shared" not in sys.argv
_launch = JITFunction.run


def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """In place of a launch."""
    kernel = _launch(self, *args, grid=grid, warmup=True, **options)
    SHARED[self.__name__] = kernel.metadata.shared
    if not LOOKS_INSIDE:
        return
    FOUND.setdefault(self.__name__, facts(kernel.asm["cubin"]))


def facts(binary: bytes) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        usage = output("cuobjdump", "-res-usage", file.name)
        code = output("nvdisasm", "-c", file.name)
    found = re.search(r"STACK:(\d+)", usage)
    assert found, usage
    names = re.findall(
        r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?([A-Z0-9_.]+)(.*?);", code, re.MULTILINE
    )
    kinds = Counter(name.split(".")[0] for name, _ in names)
    # one that adds -0 is a product
    fused = sum(name.startswith("FFMA") and "-RZ" not in rest for name, rest in names)
    wide = sum("128" in name for name, _ in names if name.startswith("LDG"))
    return {
        "spilled": int(found[1]),  # bytes a thread
        "fused": fused,  # products and sums in one rounding
        "wide loads": wide,  # of 16 bytes
        "instructions": dict(kinds),
    }


def output(program: str, *args: str) -> str:
    done = subprocess.run([BIN / program, *args], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def compile_on(capability: int) -> None:
    """Let Triton take this machine for one with such a GPU."""
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: capability,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: GPUTarget("cuda", capability, 32),
        )
    )


def shared_bytes(capability: int) -> dict[str, int]:
    """What attention and draws take of shared memory at most, by the numbers of a head and their
    type, and by the tokens of a vocabulary."""
    compile_on(capability)
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        for size in (64, 80, 128, 192, 256):
            inputs = torch.zeros(32, 87, dtype=torch.int64)
            query = torch.zeros(4, 4, 32, size, dtype=dtype)
            cache = torch.zeros(2, 4, 4 * kernels.SPLIT, size, dtype=dtype)
            plan = kernels.Splits(4).plan(kernels.Rows(inputs[:, 1], inputs[:, 3], inputs[:, 7:]))
            plan.attend(query, *cache, attention.Scoring(size**-0.5))
            found[f"{dtype} {size}"] = max(SHARED.values())
            SHARED.clear()
    for num_vocab in (32_000, 128_256, 151_936, 262_144):
        summarise(num_vocab)
        found[f"draws {num_vocab}"] = max(SHARED.values())
        SHARED.clear()
    return found


def compile_for(capability: int, shape: tuple[int, int, int, int]) -> dict[str, dict[str, Any]]:
    """All kernels, for a model of so many key heads, heads in a group, numbers of a head and of a
    row."""
    num_kv_heads, group, size, width = shape
    FOUND.clear()
    compile_on(capability)
    like = {"dtype": torch.bfloat16}
    num_rows, num_cells, num_heads = 32, 4 * kernels.SPLIT, num_kv_heads * group
    inputs = torch.zeros(num_rows, 87, dtype=torch.int64)
    cache = torch.zeros(2, num_kv_heads, num_cells, size, **like)
    rows = torch.zeros(num_rows, (num_heads + 2 * num_kv_heads) * size, **like)
    turn, norm = torch.zeros(num_rows, size, **like), torch.zeros(size, **like)
    norms = (norm, norm, 1e-6)
    query = layer_kernels.placed(rows, turn, turn, inputs[:, 2], *cache, norms)
    by_group = query.unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)
    plan = kernels.Splits(4).plan(kernels.Rows(inputs[:, 1], inputs[:, 3], inputs[:, 7:]))
    plan.attend(by_group, *cache, attention.Scoring(size**-0.5))
    stream = torch.zeros(num_rows, width, **like)
    layer_kernels.normed(stream, stream[0], 1e-6)
    layer_kernels.gated(stream)
    summarise(151_936)
    return dict(FOUND)


def summarise(num_vocab: int) -> None:
    """Launched as in a target's forward pass."""
    lines = torch.zeros(32, 87, dtype=torch.int64)
    summaries = torch.zeros(32, NUM_COLUMNS, dtype=torch.float64)
    fused_summarise(torch.zeros(32, num_vocab), lines[:, 4:7], summaries)


if __name__ == "__main__":
    JITFunction.run = compiled
    torch.cuda.device_of = lambda tensor: torch.inference_mode()  # a context that does nothing here
    if not LOOKS_INSIDE:
        json.dump(shared_bytes(int(sys.argv[2])), sys.stdout)
        sys.exit()
    shapes = {"llama": (32, 1, 128, 4096), "qwen": (4, 7, 128, 3584), "smollm": (3, 3, 64, 576)}
    json.dump(
        {
            f"{name} {capability}": compile_for(int(capability), shapes[name])
            for name, capability in (which.split(":") for which in sys.argv[1:])
        },
        sys.stdout,
    )
