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

KERNELS = ["_gate", "_norm", "_pick", "_place", "_split", "_tail"]


@cache
def compiled(which: str) -> dict[str, dict[str, Any]]:
    """What the kernels became: by name, without what all names end with."""
    program = TESTS / "fakes" / "gpu_compiler.py"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, program, which], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)[which.replace(":", " ")]
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
    assert compiled(which)["_pick"]["fused"] == 0


def test_keys_are_loaded_wide_and_ahead() -> None:
    split = compiled("qwen:89")["_split"]
    assert split["wide loads"] >= 16
    assert split["instructions"]["LDGSTS"] >= 16, "while others are computed with"
    assert split["instructions"]["HMMA"] >= 32, "by tensor cores"
