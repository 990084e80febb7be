"""Describe the hardware and software that a figure was measured on."""

from __future__ import annotations

import platform
import shutil
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from duodec.machine.cores import available_cores


def environment() -> dict[str, Any]:
    """Hardware and versions, as JSON."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cpu": _cpu_name(),
        "cores": len(available_cores()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": _gpu_names(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("duodec", "llama-cpp-python", "numpy")},
    }


def _gpu_names() -> str | None:
    """NVIDIA GPUs, as listed by the driver's program; None if there are none."""
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return "; ".join(line.strip() for line in done.stdout.splitlines() if line.strip()) or None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # llama.cpp, if a target on torch is drafted for without a model
        return "not installed"


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            lines = [line.split(":", 1) for line in file if ":" in line]
        found = {key.strip(): value.strip() for key, value in lines}
        return f"{found.get('model name')} (family {found.get('cpu family')})"
    except OSError:
        return platform.processor()
