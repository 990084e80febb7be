"""Builds for a GPU: the toolchain is found, or the line says what to install."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from duodec.backends.llamacpp import devices
from duodec.backends.llamacpp.build import cuda_runtime, native, toolchains
from duodec.backends.llamacpp.checks import self_test
from duodec.backends.llamacpp.devices import Device
from duodec.backends.llamacpp.load import llama_devices
from duodec.cli.app import run
from duodec.cli.commands import setup
from duodec.errors import BackendUnavailable, BadOption
from duodec.loading.config import EngineConfig

SMI = """#!/bin/sh
case "$1" in
--query-gpu=compute_cap) echo 9.0; echo 8.9; echo 9.0 ;;
*) echo '| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4  |' ;;
esac
"""
NVCC = """#!/bin/sh
case "$1" in
--version) echo 'Cuda compilation tools, release {version}, V{version}.88' ;;
--list-gpu-arch) for number in 80 86 89 90; do echo compute_$number; done ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it yet, and no toolchain elsewhere."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDACXX", "CUDA_PATH", "CUDA_HOME", "CUDAARCHS", "CMAKE_ARGS", "VULKAN_SDK"):
        monkeypatch.delenv(name, raising=False)
    for module in (toolchains, native.toolchains):
        for name in ("_CUDA_HOMES", "_ROCM_HOME", "_SYSTEM"):
            monkeypatch.setattr(module, name, tmp_path / "local")
    return folder


def add_program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def add_toolkit(home: Path, version: str = "12.4") -> Path:
    """A CUDA toolkit with cuBLAS; its nvcc."""
    for folder in ("bin", "include", "lib64/stubs"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    add_program(home / "bin", "nvcc", NVCC.format(version=version))
    (home / "include" / "cublas_v2.h").touch()
    (home / "lib64" / "libcublas.so").touch()
    (home / "lib64" / "stubs" / "libcuda.so").touch()
    return home / "bin" / "nvcc"


def cuda_args(folder: Path, told: str = "") -> str:
    return toolchains.cmake_args("cuda", told, headers=folder)


def add_headers(usr: Path, minor: int, patch: int) -> Path:
    folder = usr / "include" / "vulkan"
    folder.mkdir(parents=True)
    (folder / "vulkan_core.h").write_text(
        f"#define VK_HEADER_VERSION {patch}\n"
        "#define VK_HEADER_VERSION_COMPLETE "
        f"VK_MAKE_API_VERSION(0, 1, {minor}, VK_HEADER_VERSION)\n"
    )
    return usr


@pytest.mark.parametrize(
    ("gpu", "program", "words", "args"),
    [
        ("rocm", "hipcc", "no HIP compiler.*install ROCm", "-DGGML_HIP=on"),
        ("vulkan", "glslc", "glslc.*apt install glslc", "-DGGML_VULKAN=ON"),
    ],
)
def test_a_toolchain_is_found_or_named(
    gpu: str, program: str, words: str, args: str, programs: Path, tmp_path: Path
) -> None:
    usr = add_headers(tmp_path / "usr", 4, 309)
    with pytest.raises(toolchains.ToolchainMissing, match=words):
        toolchains.cmake_args(gpu, headers=tmp_path, system_headers=usr / "include")
    add_program(programs, program)
    assert toolchains.cmake_args(gpu, headers=tmp_path, system_headers=usr / "include") == args


def test_nvcc_is_found_off_the_path_and_named_to_cmake(programs: Path, tmp_path: Path) -> None:
    """CMake looks on PATH, and in the environment."""
    with pytest.raises(toolchains.ToolchainMissing, match=r"no CUDA compiler.*install the CUDA"):
        cuda_args(tmp_path)
    add_program(programs, "nvidia-smi", SMI)
    cards = "-DCMAKE_CUDA_ARCHITECTURES=89;90"
    for home in ("cuda-11.8", "cuda-12.4", "cuda-12.10"):  # the newest of them
        nvcc = add_toolkit(tmp_path / "local" / home, home.partition("-")[2])
        root = f"-DCUDAToolkit_ROOT={nvcc.parents[1]}"  # or CMake takes another one's libraries
        found = f"-DGGML_CUDA=on -DCMAKE_CUDA_COMPILER={nvcc} {root} {cards}"
        assert cuda_args(tmp_path) == found
    nvcc = add_toolkit(tmp_path / "local" / "cuda")  # which the system chose
    assert f"-DCMAKE_CUDA_COMPILER={nvcc} " in cuda_args(tmp_path)
    told = "-DCMAKE_CUDA_COMPILER=/opt/nvcc -DCMAKE_CUDA_ARCHITECTURES=86"
    assert cuda_args(tmp_path, told) == "-DGGML_CUDA=on"
    (programs / "nvcc").symlink_to(nvcc)
    assert cuda_args(tmp_path) == f"-DGGML_CUDA=on {cards}"


def test_without_a_card_an_architecture_must_be_named(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container's build: CMake would ask a card that is not there."""
    add_toolkit(tmp_path / "local" / "cuda")
    for smi in (None, "#!/bin/sh\necho 'No devices were found'; exit 6\n"):
        if smi:
            add_program(programs, "nvidia-smi", smi)
        with pytest.raises(toolchains.ToolchainMissing, match=r"ARCHITECTURES=89 \(86: RTX 30"):
            cuda_args(tmp_path)
    assert "ARCH" not in cuda_args(tmp_path, "-DCMAKE_CUDA_ARCHITECTURES=90")
    monkeypatch.setenv("CUDAARCHS", "90")
    assert "ARCH" not in cuda_args(tmp_path)


def test_a_driver_older_than_the_toolkit_is_told_with_both_versions(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_program(programs, "nvidia-smi", SMI)
    add_toolkit(tmp_path / "local" / "cuda-12.9", "12.9")
    assert "-DGGML_CUDA=on" in cuda_args(tmp_path)  # runs on any driver for CUDA 12
    monkeypatch.setattr(devices, "every", lambda lib: [])
    with pytest.raises(BackendUnavailable, match=r"550\.54 runs CUDA 12\.4 and .* of CUDA 12\.9"):
        setup.seen_devices("cuda")
    add_toolkit(tmp_path / "local" / "cuda-13.0", "13.0")
    with pytest.raises(toolchains.ToolchainMissing, match=r"driver 550\.54 .*12\.4 .*CUDA 13\.0"):
        cuda_args(tmp_path)


def test_a_card_that_the_toolkit_does_not_know_is_named(programs: Path, tmp_path: Path) -> None:
    add_program(programs, "nvidia-smi", SMI.replace("echo 8.9", "echo 12.0"))
    add_toolkit(tmp_path / "local" / "cuda")
    with pytest.raises(toolchains.ToolchainMissing, match="architecture 120, only 80 to 90"):
        cuda_args(tmp_path)


@pytest.mark.parametrize("lacks", ["include/cublas_v2.h", "lib64/libcublas.so"])
def test_a_toolkit_without_cublas_is_one_line(lacks: str, programs: Path, tmp_path: Path) -> None:
    add_program(programs, "nvidia-smi", SMI)
    home = add_toolkit(tmp_path / "local" / "cuda").parent.parent
    (home / lacks).unlink()
    with pytest.raises(toolchains.ToolchainMissing, match=f"cuBLAS.*{Path(lacks).name}") as caught:
        cuda_args(tmp_path)
    assert "\n" not in str(caught.value)
    for told in ("-DCUDAToolkit_ROOT=/opt/cuda", "-DCMAKE_PREFIX_PATH=/opt/cuda"):
        assert "-DGGML_CUDA=on" in cuda_args(tmp_path, told)
    other = home / "targets" / "x86_64-linux" / Path(lacks).parent.name.replace("lib64", "lib")
    other.mkdir(parents=True)
    (other / Path(lacks).name).touch()  # where conda has it
    assert "-DGGML_CUDA=on" in cuda_args(tmp_path)


def test_builds_for_different_cards_are_kept_apart(programs: Path) -> None:
    """Where nobody names an architecture, CMake builds for the card that it sees."""
    keys = set()
    for capability in ("8.9", "9.0"):
        add_program(programs, "nvidia-smi", f"#!/bin/sh\necho {capability}\n")
        keys |= {native.wheel_key("cpu", args) for args in ("-DGGML_CUDA=ON", "-DGGML_VULKAN=on")}
    assert len(keys) == 3


# --- what a build for CUDA needs when it runs


def test_cuda_libraries_of_wheels_are_found_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libggml-cuda.so"
    library.write_bytes(b"\x7fELF\0libcudart.so.12\0libcublas.so.12\0libc.so.6\0")
    names = ["libcublas.so.12", "libcudart.so.12"]
    assert cuda_runtime.needed(library) == names
    monkeypatch.setattr(cuda_runtime, "linked", lambda: names)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    loaded: list[str] = []

    def dll(path: str, mode: int) -> None:
        if not Path(path).exists():
            raise OSError(f"{path}: cannot open shared object file")
        loaded.append(Path(path).name)

    monkeypatch.setattr(cuda_runtime.ctypes, "CDLL", dll)
    with pytest.raises(
        BackendUnavailable, match=r"pip install nvidia-cublas-cu12 nvidia-cuda-runtime-cu12$"
    ):
        cuda_runtime.load()
    for package, name in (
        ("cublas", "libcublasLt.so.12"), ("cublas", names[0]), ("cuda_runtime", names[1])
    ):  # fmt: skip
        file = tmp_path / "site" / "nvidia" / package / "lib" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    cuda_runtime.load()
    assert loaded == ["libcublasLt.so.12", *names], "what another needs comes first"
    assert cuda_runtime.packages(["libcublas.so.13"]) == ["nvidia-cublas"]


def test_vulkan_headers_that_are_too_old_are_named_and_newer_ones_taken(
    programs: Path, tmp_path: Path
) -> None:
    add_program(programs, "glslc")
    old = add_headers(tmp_path / "old", 3, 239) / "include"
    with pytest.raises(toolchains.ToolchainMissing, match=r"those of 1\.3\.239 are too old"):
        toolchains.cmake_args("vulkan", headers=tmp_path / "own", system_headers=old)
    with pytest.raises(toolchains.ToolchainMissing, match="there are none"):
        toolchains.cmake_args("vulkan", headers=tmp_path / "own", system_headers=tmp_path)
    own = add_headers(tmp_path / "own", 4, 309)
    found = toolchains.cmake_args("vulkan", headers=own, system_headers=old)
    assert f"-DVulkan_INCLUDE_DIR={own / 'include'}" in found


def test_a_name_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(toolchains.ToolchainMissing, match="gpu is voodoo; use one of: cuda"):
        toolchains.cmake_args("voodoo", headers=tmp_path)


def test_wheels_of_the_drivers_cuda_are_looked_for_newest_first(programs: Path) -> None:
    assert toolchains.cuda_wheels() == []
    add_program(programs, "nvidia-smi", SMI)
    names = [index.rpartition("/")[2] for index in toolchains.cuda_wheels()]
    assert names == ["cu124", "cu123", "cu122", "cu121"]


def test_a_wheel_is_taken_from_the_first_index_that_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indices themselves were never reached from here."""
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    fake = tmp_path / "pip.py"
    fake.write_text(
        "import sys\nfrom pathlib import Path\n"
        "words = sys.argv\nindex = words[words.index('--index-url') + 1]\n"
        f"Path({str(tmp_path / 'asked')!r}).open('a').write(index + ' ')\n"
        "if not index.endswith('cu122'): sys.exit(1)\n"
        "folder = Path(words[words.index('--dest') + 1])\nfolder.mkdir(parents=True)\n"
        "(folder / 'llama_cpp_python-0.3.36-py3-none-any.whl').touch()\n"
    )
    pip = [sys.executable, str(fake)]
    indices = [toolchains.WHEELS.format(n) for n in (124, 123, 122, 121)]
    for _ in range(2):  # the second time it is kept
        wheel = native.fetch(pip, indices[2:] if wheel_is_there(tmp_path) else indices, print)
        assert wheel is not None
        assert "cu122" in str(wheel.parent)
    asked = (tmp_path / "asked").read_text().split()
    assert asked == indices[:3]
    assert native.fetch(pip, indices[:1], print) is None


@pytest.mark.parametrize(
    ("runs", "below"),
    [("", "13.1"), ("12.9", ""), ("13.0", "13.1"), ("13.2", "13.3"), ("14.1", "14")],
)
def test_packages_have_a_compiler_that_the_driver_knows(
    runs: str, below: str, programs: Path
) -> None:
    """NVIDIA's packages have had a whole one since CUDA 13."""
    if runs:
        add_program(programs, "nvidia-smi", SMI.replace("12.4", runs))
    wanted = toolchains.packaged_toolkit()
    assert bool(wanted) == bool(below)
    assert all(f">=13,<{below}" in one for one in wanted if "cublas" not in one)


PIP = """import sys
from pathlib import Path
words = sys.argv
if {is_offline}: sys.exit('no index can be reached')
home = Path(words[words.index('-t') + 1]) / 'nvidia' / 'cu13'
for name in ('bin/nvcc', 'include/cublas_v2.h', 'lib/libcublas.so.13', 'lib/libcudart.so.13'):
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).touch(0o755)
print('fetched', *words[-1:])
"""


def test_without_a_compiler_setup_takes_that_of_the_package_index(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_CUDA_ARCHITECTURES=90")
    monkeypatch.setenv("CUDACXX", "")  # the command sets it
    add_program(programs, "c++")
    add_program(programs, "nvidia-smi", SMI.replace("12.4", "13.0"))
    fake, built = tmp_path / "pip.py", []

    def build(pip: object, cpu: str, args: str, say: object) -> Path:
        built.append(args)
        return tmp_path

    @contextmanager
    def fake_pip():  # type: ignore[no-untyped-def]
        yield [sys.executable, str(fake)]

    monkeypatch.setattr("duodec.machine.install.pip_command", fake_pip)
    monkeypatch.setattr(native, "fetch", lambda *_: None)
    monkeypatch.setattr(native, "find_or_build", build)
    monkeypatch.setattr(native, "install", lambda *_: None)
    monkeypatch.setattr(cuda_runtime, "linked", list)
    monkeypatch.setattr(self_test, "check", lambda: None)
    monkeypatch.setattr(devices, "every", lambda lib: [Device("CUDA0", "a GPU")])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    fake.write_text(PIP.format(is_offline=True))
    assert run(["setup", "--gpu", "cuda"]) == 2
    said = capsys.readouterr().err
    assert "no index can be reached" in said
    assert "install the CUDA toolkit" in said
    assert not list((tmp_path / "cache" / "cuda").iterdir()), "nothing is left of the attempt"

    fake.write_text(PIP.format(is_offline=False))
    for is_fetched in (True, False):  # the second time it is kept
        monkeypatch.setenv("CUDACXX", "")
        assert run(["setup", "--gpu", "cuda"]) == 0
        assert ("fetching NVIDIA's CUDA compiler" in capsys.readouterr().err) == is_fetched
    (home,) = tmp_path.glob("cache/cuda/*/nvidia/cu13")
    assert (home / "lib" / "libcublas.so").resolve().name == "libcublas.so.13"
    assert (home / "lib64").resolve() == home / "lib", "nvcc of 13.0 looks there"
    args = f"-DCMAKE_CUDA_COMPILER={home / 'bin' / 'nvcc'} -DCUDAToolkit_ROOT={home}"
    no_driver = "-DGGML_CUDA_NO_VMM=ON"  # there is no library of it to link to
    assert built == [f"-DGGML_CUDA=on {args} {no_driver} -DCMAKE_CUDA_ARCHITECTURES=90"] * 2

    (home / "bin" / "nvcc").unlink()  # what is not whole any more is fetched anew
    monkeypatch.setenv("CUDACXX", "")
    assert run(["setup", "--gpu", "cuda"]) == 0
    assert "fetching" in capsys.readouterr().err
    assert (home / "bin" / "nvcc").exists()


@pytest.mark.parametrize("lacks", ["cards", "c++", "a fitting driver", "a choice"])
def test_nothing_is_fetched_for_a_build_that_cannot_be(
    lacks: str, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    told = "" if lacks == "cards" else "-DCMAKE_CUDA_ARCHITECTURES=90"
    told += " -DCMAKE_CUDA_COMPILER=/opt/nvcc" if lacks == "a choice" else ""
    if lacks == "a fitting driver":
        add_program(programs, "nvidia-smi", SMI)
    if lacks == "c++":
        with pytest.raises(native.BuildFailed, match=r"no C\+\+ compiler"):
            native.fetch_toolkit(["no pip"], told, print)
        return
    add_program(programs, "c++")
    assert native.fetch_toolkit(["no pip"], told, print) is None


def test_a_build_finds_a_toolkit_whose_path_has_a_space(programs: Path, tmp_path: Path) -> None:
    add_program(programs, "nvidia-smi", SMI)
    nvcc = add_toolkit(tmp_path / "local" / "cuda-12.4 of mine")
    assert f"-DCMAKE_CUDA_COMPILER={nvcc}" in shlex.split(cuda_args(tmp_path))


def wheel_is_there(folder: Path) -> bool:
    return bool(list(folder.glob("cache/wheels/*/*.whl")))


def test_setup_for_a_gpu_builds_checks_and_names_the_device(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    nvcc = add_toolkit(tmp_path / "local" / "cuda")
    add_program(programs, "nvidia-smi", SMI)
    built: list[str] = []
    pips: list[Sequence[str]] = []

    def build(pip: object, cpu: str, args: str, say: object) -> Path:
        built.append(args)
        return tmp_path

    @contextmanager
    def no_pip():  # type: ignore[no-untyped-def]
        yield []

    seen = [Device("CUDA0", "a GPU")]
    monkeypatch.setattr("duodec.machine.install.pip_command", no_pip)
    monkeypatch.setattr(native, "find_or_build", build)
    monkeypatch.setattr(native, "install", lambda *_: None)
    monkeypatch.setattr(native, "install_packages", lambda names, pip: pips.append(names))
    monkeypatch.setattr(cuda_runtime, "linked", lambda: ["libcudart.so.9999"])
    monkeypatch.setattr(self_test, "check", lambda: None)
    monkeypatch.setattr(devices, "every", lambda lib: seen)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert run(["setup", "--gpu", "cuda"]) == 0
    cards = "-DCMAKE_CUDA_ARCHITECTURES=89;90"
    root = f"-DCUDAToolkit_ROOT={nvcc.parents[1]}"
    assert built == [f"-DGGML_CUDA=on -DCMAKE_CUDA_COMPILER={nvcc} {root} {cards}"]
    assert pips == [["nvidia-cuda-runtime"]], "the library is in no wheel and not in the system"
    assert "it computes on CUDA0 (a GPU)" in capsys.readouterr().err
    seen.clear()
    assert run(["setup", "--gpu", "cuda"]) == 2
    assert "sees no device of it; install NVIDIA's driver" in capsys.readouterr().err
    (programs / "nvidia-smi").unlink()
    assert run(["setup", "--gpu", "cuda"]) == 2
    assert "name the architecture" in capsys.readouterr().err
    nvcc.unlink()
    assert run(["setup", "--gpu", "cuda"]) == 2
    assert "no CUDA compiler" in capsys.readouterr().err


# --- devices by name


FOUND = [Device("CUDA0", "one"), Device("CUDA1", "two"), Device("Vulkan0", "three")]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cuda", ["CUDA0", "CUDA1"]), ("cuda:1", ["CUDA1"]), ("CUDA1", ["CUDA1"]),
        ("vulkan", ["Vulkan0"]), ("Vulkan0", ["Vulkan0"]),
        ("cuda:0,vulkan:0", ["CUDA0", "Vulkan0"]),
    ],
)  # fmt: skip
def test_devices_are_named_as_users_and_as_llama_cpp_name_them(
    name: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "every", lambda lib: FOUND)
    found = llama_devices(EngineConfig(draft=None, device=name))
    assert [device.name for device in found] == wanted


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("rocm", BackendUnavailable, r"no device rocm: .* has CUDA0, CUDA1, Vulkan0; build one"),
        ("cuda:2", BadOption, r"there are 2 of cuda; choose from: CUDA0, CUDA1"),
        ("cuda:0,CUDA0", BadOption, "names a GPU twice"),
    ],
)
def test_a_device_that_is_missing_is_one_line(
    name: str, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "every", lambda lib: FOUND)
    with pytest.raises(kind, match=words) as caught:
        llama_devices(EngineConfig(draft=None, device=name))
    assert "\n" not in str(caught.value)


def test_names_of_every_backend_are_known() -> None:
    names = {
        "CUDA0": "cuda",
        "ROCm1": "rocm",
        "Vulkan0": "vulkan",
        "MTL0": "metal",
        "SYCL2": "sycl",
    }
    assert {name: Device(name, "").kind for name in names} == names


def test_layers_for_a_gpu_are_refused_by_a_build_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duodec.backends.llamacpp.load.can_offload", lambda: False)
    with pytest.raises(BackendUnavailable, match=r"gpu_layers is 20, .*built without a GPU"):
        llama_devices(EngineConfig(draft=None, gpu_layers=20))
    for layers in (-1, 0):
        assert llama_devices(EngineConfig(draft=None, gpu_layers=layers)) == []


def test_what_no_device_sees_is_said_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "every", lambda lib: [])
    for gpu in toolchains.GPUS:
        with pytest.raises(BackendUnavailable, match=f"built for {gpu} and sees no device"):
            setup.seen_devices(gpu)
