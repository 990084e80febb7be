"""Check once that the installed llama.cpp computes correctly on this processor.

A compiler can miscompile a kernel, and a wheel can come from another processor. The first symptom
would be a dead process or wrong text. So a separate process computes some rows of the draft model
that we ship and compares them with those of its weights in float32. If it dies, it dies alone. It
does so twice, with our kernels and with llama.cpp's, and the faster ones are chosen. The verdict is
kept for exactly these files of the library.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp.build import bundled
from duodec.backends.llamacpp.build.native import PACKAGE, VERSION, cache_folder
from duodec.errors import BackendUnavailable, warn
from duodec.machine.processes import NO_GPU

SWITCH, OFF = "DUODEC_KERNELS", "off"  # read when the library is loaded: whose kernels it uses
CHECKED = "DUODEC_KERNELS_CHECKED"  # in the processes we start: the build that was checked
ANY = "any"  # in the process that checks
REMEDY = "run `duodec setup --rebuild` to build it for this processor"
# This is a row's error as a share of its spread, the median of the rows. Activations rounded to 8
# bits make 0.03 to 0.18 a row, by the text and the processor, and 0.04 to 0.06 of the median.
MOST_DEVIATION = 0.2
# This is the same for single products, by format: the largest error, where rounding makes 0.02.
MOST_PRODUCT_DEVIATION = 0.05
_WORTH = 1.1  # most time of our kernels relative to llama.cpp's: with theirs bits change
_MOVING = "texts of K-quants can differ from plain decoding's in near ties"

PROMPT = tuple(range(100, 48_000, 1499))  # 32 tokens; any will do
STRIDE = 3072  # step between the logits that are compared, of the 49,152 of a row
# fmt: off
REFERENCE = {  # by the prompt's length; transformers computed them in float32, weights dequantised
    4: (5.22, -3.72, 2.47, -0.09, 0.65, -2.25, 1.96, 2.18,
        -2.88, -0.62, -6.27, -6.64, -4.52, -7.51, -7.37, -4.39),
    8: (9.24, 8.92, 12.91, -0.22, 9.16, 6.50, 8.97, 8.98,
        5.25, 2.96, 6.66, 1.31, 2.36, 5.72, 2.30, 6.85),
    12: (5.47, -1.60, 5.58, 4.01, 6.50, -1.69, -0.09, 1.42,
         0.76, 3.47, -5.99, -0.89, 0.10, -1.13, -6.02, -1.67),
    16: (10.60, 8.02, 6.89, 4.21, 7.55, 7.23, 10.89, 5.31,
         5.15, 3.88, 1.66, -1.30, 4.93, 5.53, 0.64, 2.61),
    20: (10.74, 13.35, 13.41, 6.97, 6.91, 10.79, 11.48, 10.01,
         5.18, 6.45, 7.65, 8.12, 9.29, 9.28, 6.30, 4.53),
    24: (10.85, 7.32, 9.49, 6.85, 6.88, 12.48, 7.98, 9.01,
         1.86, 8.31, 5.16, 2.26, 5.42, 7.00, 3.00, 0.23),
    28: (14.74, 14.38, 16.30, 12.00, 11.19, 10.17, 12.77, 15.49,
         8.59, 10.70, 9.47, 11.15, 8.51, 9.94, 6.68, 5.10),
    32: (14.04, 14.73, 19.76, 12.34, 11.34, 9.91, 16.23, 13.72,
         7.64, 7.58, 9.00, 9.78, 13.23, 7.88, 9.21, 5.84),
}
# fmt: on
_LONGEST_S = 120.0


@dataclass(frozen=True)
class Examined:
    """Hold what a process that loads the library finds."""

    rows: list[list[float]]  # logits that are compared
    kernels: str = ""  # instruction set of our kernels; an empty text for llama.cpp's
    product_deviation: float = 0.0  # deviation of our kernels
    seconds: float = 0.0  # time of forward passes of one row and of several


def check() -> None:
    """Choose the kernels for weights on the CPU. Raises BackendUnavailable if llama.cpp is missing,
    of another version, or computes wrongly."""
    folder = _library_folder()
    key = _key(folder)
    if os.environ.get(CHECKED) in (key, ANY):
        return
    note = cache_folder() / "checked" / f"kernels-{key}"
    try:
        chosen = note.read_text(encoding="utf-8").strip()
    except OSError:
        chosen = choose()
        with contextlib.suppress(OSError):  # it is checked again next time
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{chosen}\n", encoding="utf-8")
    if chosen == OFF:
        os.environ.setdefault(SWITCH, OFF)
    os.environ[CHECKED] = key


def choose() -> str:
    """Return the instruction set of our kernels, or OFF for llama.cpp's. Raises
    BackendUnavailable."""
    fault = ""
    try:
        ours = examine({})
        if ours.kernels and not (
            _is_faithful(ours) and ours.product_deviation <= MOST_PRODUCT_DEVIATION
        ):
            fault = f"our kernels for {ours.kernels} compute wrongly here"
    except BackendUnavailable as error:
        fault = str(error)
    if not fault and not ours.kernels:
        _refuse(ours)
        warn(f"llama.cpp is built without our kernels for this CPU: {_MOVING}")
        return OFF
    theirs = examine({SWITCH: OFF})
    _refuse(theirs)
    if fault:
        warn(f"llama.cpp's own kernels are used ({fault}; please report it): {_MOVING}")
        return OFF
    if ours.seconds > _WORTH * theirs.seconds:
        warn(f"llama.cpp's own kernels are faster on this CPU and are used: {_MOVING}")
        return OFF
    return ours.kernels


def deviation(rows: list[list[float]]) -> float:
    """Return the deviation of rows from the reference's, as a share of their spread; not a number
    if they contain none."""
    import numpy as np

    expected = np.array(list(REFERENCE.values()))
    error = np.sqrt(np.mean((np.array(rows) - expected) ** 2, axis=1))
    return float(np.median(error / expected.std(axis=1)))


def _library_folder() -> Path:
    """Return the folder with the library's files. Raises BackendUnavailable."""
    found, spec = installed_version(), importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise _not_built()
    if found != VERSION:
        raise BackendUnavailable(
            f"{PACKAGE} {found} is installed and duodec needs {VERSION}; run `duodec setup`"
        )
    named = os.environ.get("LLAMA_CPP_LIB_PATH")
    return Path(named) if named else Path(spec.origin).parent / "lib"


def installed_version() -> str:
    """Return the version of the bindings. Raises BackendUnavailable if there are none."""
    bundled.find()
    try:
        return version(PACKAGE)
    except PackageNotFoundError as error:
        raise _not_built() from error


def _not_built() -> BackendUnavailable:
    return BackendUnavailable(
        "llama.cpp is not built yet; run `duodec setup` (3 to 8 minutes on two cores, once)"
    )


def _key(folder: Path) -> str:
    """Return a key of these files on this processor."""
    files = sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in folder.glob("*"))
    forced = os.environ.get(bundled.FORCED)
    parts = [cpu_key(), forced, PROMPT, STRIDE, list(REFERENCE.items()), files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def examine(switched: dict[str, str]) -> Examined:
    """Return what a separate process finds in this environment. Raises BackendUnavailable."""
    command = [sys.executable, "-m", "duodec.backends.llamacpp.checks.self_test_child"]
    environment = {**os.environ, **NO_GPU, CHECKED: ANY, **switched}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_LONGEST_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailable(f"llama.cpp cannot be checked ({error}); {REMEDY}") from error
    if done.returncode < 0:
        raise BackendUnavailable(
            f"llama.cpp dies on this processor (signal {-done.returncode}): it was built for "
            f"another one, or its compiler is broken; {REMEDY}"
        )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise BackendUnavailable(f"llama.cpp cannot be loaded ({lines[-1]}); {REMEDY}")
    return Examined(**json.loads(done.stdout))


def _is_faithful(found: Examined) -> bool:
    return deviation(found.rows) <= MOST_DEVIATION


def _refuse(found: Examined) -> None:
    """Raise BackendUnavailable for wrong logits."""
    if not _is_faithful(found):
        raise BackendUnavailable(
            f"llama.cpp computes wrongly here: logits are off by {deviation(found.rows):.0%} of "
            f"their spread; {REMEDY}"
        )
