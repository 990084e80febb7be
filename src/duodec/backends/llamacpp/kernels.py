"""Check once that the installed llama.cpp computes what it should on this processor.

A compiler can miscompile a kernel, and a wheel can come from another processor: the first
symptom would be a dead process or wrong text. So a process of its own computes one row of the
draft model that we ship and compares it with the row that was recorded; whatever it does, even
dying, it does alone. The verdict is kept for these very files of the library.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp.native import PACKAGE, VERSION, cache_folder
from duodec.errors import BackendUnavailable

CHECKED = "DUODEC_KERNELS_CHECKED"  # in the processes we start: the build that was checked
ANY = "any"  # in the process that checks
REMEDY = "run `duodec setup --rebuild` to build it for this processor"
MOST_DEVIATION = 0.05  # of the row's own spread; kernels that differ in rounding stay below 0.02

_PROMPT = (504, 6330, 314, 4461, 1421, 282, 253, 1581)  # any tokens do
_STRIDE = 768  # of the recorded logits in the row
# fmt: off
_RECORDED = (
    23.85, 23.52, 22.18, 20.41, 16.14, 19.45, 23.76, 21.25, 22.48, 16.92, 18.36, 19.62,
    14.34, 22.55, 18.52, 17.91, 13.91, 20.00, 19.23, 20.42, 17.40, 21.14, 19.45, 16.10,
    21.77, 13.99, 14.88, 17.25, 18.83, 20.90, 17.02, 16.15, 20.73, 21.01, 16.78, 14.52,
    16.86, 17.13, 17.71, 20.43, 18.48, 16.67, 17.63, 15.71, 19.79, 17.21, 18.59, 16.65,
    14.95, 18.63, 16.82, 17.19, 16.42, 11.37, 17.19, 26.77, 18.30, 19.60, 15.07, 13.82,
    18.16, 11.56, 17.46, 16.85,
)
# fmt: on
_LONGEST_S = 120.0


def check() -> None:
    """Raises BackendUnavailable where llama.cpp is missing, of another version, or computes
    wrongly."""
    folder = _library_folder()
    key = _key(folder)
    if os.environ.get(CHECKED) in (key, ANY):
        return
    note = cache_folder() / "checked" / f"kernels-{key}"
    if not note.is_file():
        _examine()
        with contextlib.suppress(OSError):  # it is checked again next time
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text("faithful\n", encoding="utf-8")
    os.environ[CHECKED] = key


def deviation(row: list[float]) -> float:
    """How far a row is from the recorded one, as a share of its spread; not a number where the
    row is none."""
    import numpy as np

    recorded = np.array(_RECORDED)
    error = np.sqrt(np.mean((np.array(row) - recorded) ** 2))
    return float(error / recorded.std())


def compute_row() -> list[float]:
    """The logits that are compared, of the draft model that we ship."""
    import numpy as np

    from duodec.backends.llamacpp.context import LlamaContext
    from duodec.backends.llamacpp.model import LlamaModel
    from duodec.core.draft import Draft
    from duodec.core.protocols import RowQuery

    path = Path(__file__).parents[2] / "data" / "smollm2-135m-draft-q4_0.gguf"
    context = LlamaContext(
        LlamaModel(path, num_gpu_layers=0),
        num_context=64, num_sequences=1, num_threads=1, max_rows=1,
    )  # fmt: skip
    text = np.array(_PROMPT, np.int32)
    for end in (-1, len(text)):  # several tokens at once, then one: other kernels
        ((row,),) = context.rows([RowQuery(0, text[:end], Draft(), (0,))])
    return [float(x) for x in row[::_STRIDE]]


def library_key() -> str:
    """Names the installed library on this processor. Raises BackendUnavailable."""
    return _key(_library_folder())


def _library_folder() -> Path:
    """Where the library's files are. Raises BackendUnavailable."""
    spec = importlib.util.find_spec("llama_cpp")
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        found = None
    if spec is None or spec.origin is None or found is None:
        raise BackendUnavailable(
            "llama.cpp is not built yet; run `duodec setup` (about 3 minutes, once)"
        )
    if found != VERSION:
        raise BackendUnavailable(
            f"{PACKAGE} {found} is installed and duodec needs {VERSION}; run `duodec setup`"
        )
    named = os.environ.get("LLAMA_CPP_LIB_PATH")
    return Path(named) if named else Path(spec.origin).parent / "lib"


def _key(folder: Path) -> str:
    """Names these files on this processor."""
    files = sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in folder.glob("*"))
    parts = [cpu_key(), _PROMPT, _STRIDE, files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _examine() -> None:
    command = [sys.executable, "-m", "duodec.backends.llamacpp.kernels"]
    environment = {**os.environ, CHECKED: ANY}
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
    found = deviation(json.loads(done.stdout))
    if not found <= MOST_DEVIATION:
        raise BackendUnavailable(
            f"llama.cpp computes wrongly here: logits are off by {found:.0%} of their spread; "
            f"{REMEDY}"
        )


if __name__ == "__main__":
    print(json.dumps(compute_row()))
