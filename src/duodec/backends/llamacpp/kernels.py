"""Check once that the installed llama.cpp computes what it should on this processor.

A compiler can miscompile a kernel, and a wheel can come from another processor: the first
symptom would be a dead process or wrong text. So a process of its own computes some rows of the
draft model that we ship and compares them with those of its weights in float32; whatever it does,
even dying, it does alone. The verdict is kept for these very files of the library.
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
# A row's error as a share of its spread, the median of the rows. Activations rounded to 8 bits make
# 0.03 to 0.18 a row, by the text and the processor, and 0.04 to 0.06 of the median.
MOST_DEVIATION = 0.2

_PROMPT = tuple(range(100, 48_000, 1499))  # 32 tokens; any do
_STRIDE = 3072  # of the logits that are compared, of the 49,152 of a row
# fmt: off
_REFERENCE = {  # by the prompt's length; transformers computed them in float32, weights dequantised
    4: (17.95, 9.84, 11.35, 8.12, 14.57, 6.03, 7.53, 12.91,
        7.21, 7.39, 7.11, 2.40, 5.82, 2.35, 2.20, 3.69),
    8: (21.40, 16.22, 17.36, 13.46, 17.63, 13.61, 17.93, 18.85,
        13.55, 10.61, 14.38, 8.50, 12.09, 16.55, 15.93, 13.57),
    12: (4.81, 1.31, -1.53, -1.17, 1.48, -5.08, 0.40, 4.08,
         2.76, 3.06, -2.06, 1.07, 5.18, 2.24, -4.47, 5.75),
    16: (8.40, 5.72, 1.73, 4.48, 6.64, 5.77, 8.88, 7.03,
         2.82, 4.96, 1.88, 1.72, 5.35, 11.64, 1.37, 2.43),
    20: (13.83, 20.79, 13.10, 11.52, 14.00, 12.55, 14.02, 13.34,
         12.42, 7.72, 10.25, 11.75, 12.14, 20.17, 8.89, 14.77),
    24: (11.69, 10.78, 7.89, 11.94, 11.34, 14.69, 12.56, 10.77,
         7.49, 7.57, 5.29, 6.49, 9.67, 16.37, 1.08, 5.84),
    28: (15.71, 16.20, 14.40, 15.54, 13.85, 13.20, 11.42, 15.15,
         8.93, 7.60, 14.55, 11.21, 10.11, 15.44, 5.02, 10.51),
    32: (22.66, 23.35, 18.42, 18.78, 18.69, 14.74, 23.18, 22.25,
         15.13, 9.62, 13.63, 14.38, 19.29, 22.16, 8.64, 17.02),
}
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


def deviation(rows: list[list[float]]) -> float:
    """How far rows are from the reference's, as a share of their spread; not a number where they
    are none."""
    import numpy as np

    expected = np.array(list(_REFERENCE.values()))
    error = np.sqrt(np.mean((np.array(rows) - expected) ** 2, axis=1))
    return float(np.median(error / expected.std(axis=1)))


def compute_rows() -> list[list[float]]:
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
    found = []
    for length in _REFERENCE:
        for end in (length - 1, length):  # several tokens at once, then one: other kernels
            ((row,),) = context.rows([RowQuery(0, text[:end], Draft(), (0,))])
        found.append([float(x) for x in row[::_STRIDE]])
    return found


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
    print(json.dumps(compute_rows()))
