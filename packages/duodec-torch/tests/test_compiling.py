"""Our kernels as a compiler for GPUs takes them; no GPU is needed for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from fakes import TESTS

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")
pytest.importorskip("triton", reason="triton is not installed: it comes with torch for CUDA")

# KiB of shared memory that a program may take: A100, RTX 30, RTX 40, H100, RTX 50
SHARED = {"80": 163, "86": 99, "89": 99, "90": 227, "120": 99}
KERNELS = ["_gate", "_merge", "_norm", "_part", "_place", "_split", "_tail"]


def output(*arguments: str) -> Any:
    """What the compiler says."""
    program = TESTS / "fakes" / "gpu_compiler.py"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def compiled(which: str) -> dict[str, dict[str, Any]]:
    """What the kernels became: by name, without what all names end with."""
    found: dict[str, dict[str, Any]] = output(which)[which.replace(":", " ")]
    return {name.removesuffix("_kernel"): facts for name, facts in found.items()}


@pytest.mark.parametrize("which", ["qwen:89", "qwen:120"])
def test_kernels_compile(which: str) -> None:
    found = compiled(which)
    assert sorted(found) == KERNELS
    for facts in found.values():
        assert facts["spilled"] == 0, "bytes of what a thread should hold in registers"


@pytest.mark.parametrize("which", ["qwen:89", "qwen:120"])
def test_no_product_of_a_draw_is_fused_with_a_sum(which: str) -> None:
    """One rounding in place of two, and a token would be another than NumPy's."""
    assert compiled(which)["_part"]["fused"] == 0


def test_keys_are_loaded_wide_and_ahead() -> None:
    split = compiled("qwen:89")["_split"]
    assert split["wide loads"] >= 16
    assert split["instructions"]["LDGSTS"] >= 16, "while others are computed with"
    assert split["instructions"]["HMMA"] >= 32, "by tensor cores"


@pytest.mark.parametrize(
    "capability",
    ["89", *(pytest.param(c, marks=pytest.mark.soak) for c in SHARED if c != "89")],
)
def test_kernels_fit_the_shared_memory_of_every_gpu(capability: str) -> None:
    """A kernel that does not fit cannot be launched, and decoding would be slower."""
    found = output("--shared", capability)
    assert len(found) == 14
    assert max(found.values()) <= SHARED[capability] << 10, found
