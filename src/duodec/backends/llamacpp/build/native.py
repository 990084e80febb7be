"""Build llama.cpp for this processor, once, with a bar that shows the time left.

It uses only the standard library: `scripts/setup.py` loads this file by its path before anything is
installed, and `duodec setup` imports it. Wheels are kept in duodec's own cache, never in pip's: pip
does not know on which processor a wheel was built, and a wheel from another one dies of an illegal
instruction.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
# AMX kernels of llama.cpp crash if GCC 12 or older compiles them (its issue 20824, PR 26954).
ALWAYS = "-DLLAVA_BUILD=ON -DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__"
LIBRARY_ONLY = Path(__file__).with_name("library_only.cmake")
# Our kernels, compiled into llama.cpp's CPU backend.
KERNELS = Path(__file__).parents[1] / "kernels"
CUDA_WIDTHS = Path(__file__).with_name("cuda_widths.cmake")  # our changes to its CUDA backend

_WITHOUT_KERNELS = "-DDUODEC_KERNELS=OFF"
_LOG_LINES_SHOWN = 25
_BUILDING = "building-"
_ABANDONED_AFTER_S = 24 * 3600
SAYS_EVERY_S = 30.0  # off a terminal
_FEWEST_STEPS = 5  # steps before the time left is estimated
_BAR = 24
_STEP = re.compile(rb"\[ *(\d+)/(\d+)\]|\[ *(\d+)(%)\]")  # printed by Ninja, by Make
_TOLD = re.compile(r"-- duodec: (.+)")  # printed by our CMake files


def _file(path: Path) -> ModuleType:
    """Load a file of the package, which need not be installed yet."""
    spec = importlib.util.spec_from_file_location(f"duodec_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ownership: Any = _file(Path(__file__).parents[3] / "machine" / "ownership.py")
toolchains: Any = _file(Path(__file__).with_name("toolchains.py"))


class BuildFailed(Exception):
    """Raised if llama.cpp cannot be built here: one line, with the remedy."""


class _KernelsFailed(Exception):
    """Raised for a build that failed in a file of our kernels."""


def cache_folder() -> Path:
    """Return where `duodec.models` keeps downloads; it may not exist yet."""
    if os.environ.get("DUODEC_CACHE"):
        return Path(os.environ["DUODEC_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "duodec"


def cached(cpu: str, cmake_args: str) -> Path | None:
    """Return the wheel of llama.cpp that was built for this processor with these options, or
    None."""
    return next(_folder(cpu, cmake_args).glob("*.whl"), None)


def _folder(cpu: str, cmake_args: str) -> Path:
    return cache_folder() / "wheels" / wheel_key(cpu, cmake_args)


def find_or_build(
    pip: Sequence[str], cpu: str, cmake_args: str, report: Callable[[str], None]
) -> Path:
    """Return the wheel of llama.cpp for this processor, from the cache or built into it.

    ``pip`` is a command that runs pip, ``cpu`` names the processor, ``cmake_args`` are the
    user's. Raises BuildFailed.
    """
    if (wheel := cached(cpu, cmake_args)) is not None:
        _check_owned(wheel)
        return wheel
    folder = _folder(cpu, cmake_args)
    check_compiler(cmake_args)
    scratch = _scratch_beside(folder)
    try:
        log = folder.with_name(f"{folder.name}.log")
        try:
            _build(pip, scratch, log, cmake_args, report)
        except _KernelsFailed:
            told = log.rename(log.with_suffix(".kernels.log"))
            report(f"our kernels do not compile here; please report it with {told}")
            report("building llama.cpp with its own kernels instead")
            _build(pip, scratch, log, f"{_WITHOUT_KERNELS} {cmake_args}".strip(), report)
        _keep(scratch / "wheel", folder, "*.whl")
    except KeyboardInterrupt:
        _remove_later(scratch)
        raise
    finally:
        shutil.rmtree(str(scratch), ignore_errors=True)
    return next(folder.glob("*.whl"))


def _remove_later(scratch: Path) -> None:
    """Remove a folder of some hundred megabytes in a separate process: an interrupted one ends
    sooner than that."""
    program = "import shutil, sys; shutil.rmtree(sys.argv[1], True)"
    subprocess.Popen(
        [sys.executable, "-c", program, str(scratch)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _scratch_beside(folder: Path) -> Path:
    """Return a new folder next to ``folder``, for its content. Raises BuildFailed."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _check_owned(folder.parent)
        _remove_abandoned(folder.parent)
        return Path(tempfile.mkdtemp(prefix=_BUILDING, dir=str(folder.parent)))
    except OSError as error:
        raise BuildFailed(
            f"cannot write {folder.parent}: {error.strerror}; set DUODEC_CACHE to a folder"
        ) from error


def _keep(made: Path, folder: Path, wanted: str) -> None:
    """Move a finished folder to its place in one step, so that there is never half of it. It
    replaces a folder without the ``wanted`` file. Nothing is moved if another process was
    faster."""
    if folder.exists() and not any(folder.glob(wanted)):
        shutil.rmtree(str(folder))
    try:
        made.rename(folder)
    except OSError:
        if not any(folder.glob(wanted)):
            raise


def fetch(pip: Sequence[str], indices: Sequence[str], report: Callable[[str], None]) -> Path | None:
    """Return a wheel that someone else built, from the first of some package indices that has one
    of our version for this machine; None if no index has one."""
    for index in indices:
        folder = cache_folder() / "wheels" / f"{PACKAGE}-{VERSION}-{index.rpartition('/')[2]}"
        if not (wheels := list(folder.glob("*.whl"))):
            command = [
                *pip, "download", "-qq", "--no-deps", "--only-binary", ":all:", "--dest",
                str(folder), "--index-url", index, f"{PACKAGE}=={VERSION}",
            ]  # fmt: skip
            subprocess.run(
                command, env=pip_environment(), stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            wheels = list(folder.glob("*.whl"))
        if wheels:
            report(f"{wheels[0].name} of {index} suits this machine")
            return wheels[0]
    return None


def fetch_toolkit(
    pip: Sequence[str], cmake_args: str, report: Callable[[str], None]
) -> Path | None:
    """Fetch NVIDIA's CUDA compiler from the package index for a build with these options, and keep
    it in the cache. Return None if it is not needed, if there is none for this machine's driver, or
    if it cannot be fetched. Raises BuildFailed if there is no C++ compiler, or if other users may
    change what was kept."""
    wanted = toolchains.packaged_toolkit()
    if not wanted or not toolchains.can_build_cuda(cmake_args):
        return None
    check_compiler("")
    named = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:8]
    folder = cache_folder() / "cuda" / named
    if toolchains.packaged_nvcc(folder) is None:
        report("fetching NVIDIA's CUDA compiler and cuBLAS, once; some 600 MB")
        scratch = _scratch_beside(folder)
        try:
            (scratch / "tmp").mkdir()
            install_packages(
                ["-t", str(scratch / "toolkit"), *wanted], pip, TMPDIR=str(scratch / "tmp")
            )
            _keep(scratch / "toolkit", folder, toolchains.PACKAGED_NVCC)
        except (BuildFailed, OSError) as error:
            report(f"it is not to be had: {error}")
        except KeyboardInterrupt:
            _remove_later(scratch)
            raise
        finally:
            shutil.rmtree(str(scratch), ignore_errors=True)
    nvcc: Path | None = toolchains.packaged_nvcc(folder)
    if nvcc is not None:
        _check_owned(nvcc)
        toolchains.complete_toolkit(folder)
    return nvcc


def forget(cpu: str, cmake_args: str) -> None:
    """Remove the kept build, so that the next `find_or_build` builds."""
    shutil.rmtree(cache_folder() / "wheels" / wheel_key(cpu, cmake_args), ignore_errors=True)


def _check_owned(path: Path) -> None:
    """Raise BuildFailed if other users could change what is installed and run."""
    try:
        ownership.check_owned(path)
    except ownership.Unsafe as error:
        raise BuildFailed(str(error)) from error


def install(wheel: Path, pip: Sequence[str]) -> None:
    """Install a wheel of `find_or_build` or `fetch` in place of the installed one. Raises
    BuildFailed."""
    _check_owned(wheel)
    install_packages(["--force-reinstall", "--no-deps", str(wheel)], pip)
    install_packages([str(wheel)], pip)  # what it depends on; nothing is replaced


def install_packages(arguments: Sequence[str], pip: Sequence[str], **environment: str) -> None:
    """Install what is missing of these packages, or as pip's options say. Raises BuildFailed."""
    done = subprocess.run(
        [*pip, "install", "-qq", *arguments], env=pip_environment() | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        words = " ".join(done.stdout.decode(errors="replace").split()) or "no reason given"
        raise BuildFailed(f"pip cannot install {Path(arguments[-1]).name}: {words}")


def wheel_key(cpu: str, cmake_args: str) -> str:
    """Return the name of a build. The wheel is for any Python 3, so Python's version is not part of
    it."""
    system = [platform.system(), platform.machine(), *platform.libc_ver()]
    # By default CMake builds for the cards that it sees.
    cards = toolchains.architectures() if toolchains.is_for_cuda(cmake_args) else []
    built_how = [*system, ALWAYS, cmake_args, *cards, sources_digest(cmake_args)]
    digest = hashlib.sha256("\n".join(built_how).encode()).hexdigest()[:8]
    return f"{PACKAGE}-{VERSION}-{cpu}-{digest}"


def sources_digest(cmake_args: str) -> str:
    """Return the name of what we add to llama.cpp's own sources in a build with these options."""
    files = [*_included(cmake_args).values(), *sorted(KERNELS.iterdir())]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _included(cmake_args: str) -> dict[str, Path]:
    """Return our CMake files, by the project that includes them."""
    if toolchains.is_for_cuda(cmake_args):
        return {"llama.cpp": LIBRARY_ONLY, "ggml": CUDA_WIDTHS}
    return {"llama.cpp": LIBRARY_ONLY}


def check_compiler(cmake_args: str) -> None:
    """Raise BuildFailed, with the package to install, if a compiler is missing."""
    told = ("CMAKE_CUDA_COMPILER", "CUDAToolkit_ROOT")  # CMake finds it there
    if (
        toolchains.is_for_cuda(cmake_args)
        and not any(name in cmake_args for name in told)
        and toolchains.find_nvcc() is None
    ):
        raise BuildFailed(
            f"CMAKE_ARGS={cmake_args}: no CUDA compiler (nvcc) found; install the CUDA toolkit and "
            "put its bin folder on PATH"
        )
    named = shlex.split(os.environ.get("CXX", ""))[:1]
    if named and shutil.which(named[0]) is None:
        raise BuildFailed(f"CXX={named[0]}: no such C++ compiler; correct CXX or unset it")
    if not named and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise BuildFailed(
            "no C++ compiler found; install one: apt install build-essential (Debian, Ubuntu), "
            "dnf install gcc-c++ (Fedora), xcode-select --install (macOS)"
        )


def pip_environment() -> dict[str, str]:
    """Return the environment that pip runs in: none of Python's own variables, and no questions."""
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}


# --- the build


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed builds have left."""
    for scratch in folder.glob(f"{_BUILDING}*"):
        if time.time() - scratch.stat().st_mtime > _ABANDONED_AFTER_S:
            shutil.rmtree(str(scratch), ignore_errors=True)


def _build(
    pip: Sequence[str], scratch: Path, log: Path, cmake_args: str, report: Callable[[str], None]
) -> None:
    """Build the wheel into `scratch/wheel`, with all output in `log`."""
    own = f" with {cmake_args}, which can take longer" if cmake_args else ""
    report(f"building llama.cpp for this processor, once{own}; 3 to 8 minutes on two cores")
    # fmt: off
    command = [
        *pip, "wheel", "--verbose", "--no-deps", "--no-cache-dir",
        "--no-binary", PACKAGE, "--wheel-dir", str(scratch / "wheel"), f"{PACKAGE}=={VERSION}",
    ]
    # fmt: on
    (scratch / "tmp").mkdir(exist_ok=True)
    included = _included(cmake_args).items()
    files = [shlex.quote(f"-DCMAKE_PROJECT_{name}_INCLUDE={file}") for name, file in included]
    environment = {
        **pip_environment(),
        "CMAKE_ARGS": " ".join([ALWAYS, *files, cmake_args]).strip(),
        "TMPDIR": str(scratch / "tmp"),  # removed with `scratch`, whatever happens to pip
    }
    # With it, ggml would assume a build for distribution and not use this processor's instructions.
    environment.pop("SOURCE_DATE_EPOCH", None)
    with log.open("wb") as output:
        status = _run(command, environment, output.fileno(), log, report)
    words = log.read_text(encoding="utf-8", errors="replace")
    for line in _TOLD.findall(words):
        report(line)
    if status:
        lines = words.splitlines()
        is_ours = any(f"{KERNELS}/" in line and " error: " in line for line in lines)
        if is_ours and _WITHOUT_KERNELS not in cmake_args:
            raise _KernelsFailed
        print("\n".join(lines[-_LOG_LINES_SHOWN:]), file=sys.stderr)
        raise BuildFailed(
            f"building llama.cpp failed; the end of its log is above, all of it is in {log}"
        )


def _run(
    command: Sequence[str],
    environment: dict[str, str],
    output: int,
    log: Path,
    report: Callable[[str], None],
) -> int:
    """Run a command to its end and show its progress; its children end with it."""
    is_seen = sys.stderr.isatty()
    progress = Progress()
    said_s = time.monotonic()
    running = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # so that the compilers can be ended with pip
    )
    try:
        while True:
            try:
                return running.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                words = progress.words(_end_of(log), time.monotonic())
                if is_seen:
                    print(f"\r\033[K  {words}", end="", file=sys.stderr, flush=True)
                elif time.monotonic() - said_s >= SAYS_EVERY_S:
                    said_s = time.monotonic()
                    report(f"  {words}")
    finally:
        if is_seen:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


class Progress:
    """Read the progress of a build from the end of its log."""

    def __init__(self, start_s: float | None = None) -> None:
        self._start_s = time.monotonic() if start_s is None else start_s
        self._first: tuple[int, float] | None = None  # the first step seen, and its time

    def words(self, log: bytes, now_s: float) -> str:
        """Return a bar and the time left, from the last steps in ``log``; before the first step,
        what is done instead, and the time passed."""
        steps = _STEP.findall(log)
        if not steps:
            return f"fetching the sources, {_clock(now_s - self._start_s)}"
        ninja_done, ninja_all, percent, _ = steps[-1]
        done, num_steps = (int(percent), 100) if percent else (int(ninja_done), int(ninja_all))
        if self._first is None or done < self._first[0]:
            self._first = (done, now_s)
        filled = _BAR * done // max(1, num_steps)
        bar = "█" * filled + "░" * (_BAR - filled)
        since = done - self._first[0]
        if since < _FEWEST_STEPS:
            return f"{bar} {done}/{num_steps}"
        left_s = (now_s - self._first[1]) / since * (num_steps - done)
        return f"{bar} {done}/{num_steps}, about {_clock(left_s)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes}:{rest:02d}"


def _end_of(log: Path) -> bytes:
    """Return the last lines of a file that is being written."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - (1 << 16)))
        return file.read()
