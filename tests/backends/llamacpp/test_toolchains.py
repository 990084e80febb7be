"""Builds for a GPU: the toolchain is found, or the line says what to install."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from duodec.backends.llamacpp import devices, native, self_test, toolchains
from duodec.backends.llamacpp.devices import Device
from duodec.backends.llamacpp.load import llama_devices
from duodec.cli.app import run
from duodec.cli.commands import setup
from duodec.errors import BackendUnavailable, BadOption
from duodec.loading.config import EngineConfig

SMI = "#!/bin/sh\necho '| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4  |'\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it yet, and no toolchain elsewhere."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDACXX", "CUDA_PATH", "VULKAN_SDK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("_CUDA_HOME", "_ROCM_HOME"):
        monkeypatch.setattr(toolchains, name, tmp_path / "none")
    return folder


def add_program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


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
        ("cuda", "nvcc", "no CUDA compiler.*install the CUDA toolkit", "-DGGML_CUDA=on"),
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


def wheel_is_there(folder: Path) -> bool:
    return bool(list(folder.glob("cache/wheels/*/*.whl")))


def test_setup_for_a_gpu_builds_checks_and_names_the_device(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    add_program(programs, "nvcc")
    built: list[str] = []

    def build(pip: object, cpu: str, args: str, say: object) -> Path:
        built.append(args)
        return tmp_path

    @contextmanager
    def no_pip():  # type: ignore[no-untyped-def]
        yield []

    seen = [Device("CUDA0", "a GPU", 1 << 30)]
    monkeypatch.setattr("duodec.machine.pip.pip_command", no_pip)
    monkeypatch.setattr(native, "find_or_build", build)
    monkeypatch.setattr(native, "install", lambda *_: None)
    monkeypatch.setattr(self_test, "check", lambda: None)
    monkeypatch.setattr(devices, "every", lambda lib: seen)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert run(["setup", "--gpu", "cuda"]) == 0
    assert built == ["-DGGML_CUDA=on"]
    assert "it computes on CUDA0 (a GPU)" in capsys.readouterr().err
    seen.clear()
    assert run(["setup", "--gpu", "cuda"]) == 2
    assert "sees no device of it; install NVIDIA's driver" in capsys.readouterr().err
    (programs / "nvcc").unlink()
    assert run(["setup", "--gpu", "cuda"]) == 2
    assert "no CUDA compiler" in capsys.readouterr().err


# --- devices by name


FOUND = [Device("CUDA0", "one", 8), Device("CUDA1", "two", 8), Device("Vulkan0", "three", 8)]


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
    assert {name: Device(name, "", 0).kind for name in names} == names


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
