"""Tests of the llama.cpp that a wheel may bring. `make wheel-bundled` builds one and runs it."""

from __future__ import annotations

import importlib.util
import platform
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from duodec.backends.llamacpp.build import bundled, native
from duodec.errors import BackendUnavailable

ROOT = Path(__file__).parents[3]
X86 = bundled.VARIANTS["x86_64"]
ZEN3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "sse4_2")
ICE_LAKE = (*ZEN3, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
SKYLAKE_X = (*ZEN3, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl")


@pytest.mark.parametrize(
    ("sets", "name"),
    [
        (ZEN3, "avx2"),
        (SKYLAKE_X, "avx2"),
        (ICE_LAKE, "avx512"),
        ((*ZEN3, "avx_vnni"), "avxvnni"),
        ((*ICE_LAKE, "avx_vnni"), "avx512"),
        (("avx", "f16c", "sse4_2"), "sse42"),
        (("sse2", "ssse3"), None),
        ((), None),
    ],
)
def test_a_processor_gets_the_fastest_variant_that_it_has(
    sets: tuple[str, ...], name: str | None
) -> None:
    assert bundled.variant_for(sets, X86) == name


def site() -> Path:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def test_what_is_installed_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("raise SystemExit")
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = site()
    for _ in range(2):
        bundled.find()
    assert sys.path.count(str(tmp_path)) == 1
    assert site() == before
    assert bundled.cpu_backend() is None


@pytest.fixture
def without_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed bindings stand for ours, whose variants are missing."""
    monkeypatch.setattr(bundled, "FOLDER", site())
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(bundled, "instruction_sets", lambda: list(ICE_LAKE))
    monkeypatch.delenv(bundled.FORCED, raising=False)


@pytest.mark.usefixtures("without_variants")
def test_what_cannot_be_loaded_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BackendUnavailable, match=r"avx512.*cannot open.*setup --rebuild"):
        bundled.load(bundled.cpu_backend() or Path())
    monkeypatch.setenv(bundled.FORCED, "sse2")
    with pytest.raises(BackendUnavailable, match="is sse2, and this wheel has avx512, avxvnni"):
        bundled.cpu_backend()


@pytest.mark.usefixtures("without_variants")
@pytest.mark.parametrize("machine", ["x86_64", "riscv64"])
def test_a_processor_without_a_variant_is_told_to_build(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(bundled, "instruction_sets", lambda: ["ssse3"])
    with pytest.raises(BackendUnavailable, match="run `duodec setup --rebuild`"):
        bundled.cpu_backend()


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "scripts" / "bundle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_with(kernels: Callable[[str], str], folder: Path) -> Callable[..., Path]:
    """A build whose files hold their own names and the options that they were built with; in front
    of them its CPU backend holds what ``kernels`` makes of the name of its processor."""

    def build(pip: object, cpu: str, cmake_args: str, say: object) -> Path:
        wheel = folder / f"{cpu}.whl"
        libraries = ("libggml.so", "libggml.so.0", "libggml-cpu.so.0", "libggml-base.so.0.25.3",
                     "libggml-base.so.0", "libllama.so", "libllama.so.0", "libmtmd.so")  # fmt: skip
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in libraries:
                data = (kernels(cpu) if "cpu" in name else "") + f"{name} {cmake_args}"
                archive.writestr(f"lib/{name}", data)
                archive.writestr(f"llama_cpp/lib/{name}", data)
            for name in ("llama_cpp.py", "_ctypes_extensions.py", "__init__.py", "llama.py"):
                archive.writestr(f"llama_cpp/{name}", "import diskcache")
            archive.writestr("llama_cpp_python-0.3.36.dist-info/METADATA", "Version: 0.3.36")
            archive.writestr("llama_cpp_python-0.3.36.dist-info/RECORD", "")
        return wheel

    return build


def test_a_variant_without_our_kernels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graph would leave the writing of a hybrid's states to nobody."""
    build = build_with(lambda cpu: "" if "avxvnni" in cpu else "duodec_kernels", tmp_path)
    monkeypatch.setattr(native, "find_or_build", build)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(SystemExit, match=r"avxvnni.*our kernels do not compile.*newer compiler"):
        script().bundle(tmp_path / "bundle")


def test_a_bundle_has_each_library_once_and_a_backend_for_each_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = script()
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(native, "find_or_build", build_with(lambda cpu: "duodec_kernels", tmp_path))
    monkeypatch.setattr(program, "_run", lambda *command: ran.append(command))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    folder = tmp_path / "bundle"
    program.bundle(folder)

    libraries = folder / "llama_cpp" / "lib"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "llama_cpp/__init__.py", "llama_cpp/llama_cpp.py", "llama_cpp/_ctypes_extensions.py",
        "llama_cpp_python-0.3.36.dist-info/METADATA", "llama_cpp/lib/libggml.so.0",
        "llama_cpp/lib/libggml-base.so.0", "llama_cpp/lib/libggml-cpu.so.0",
        "llama_cpp/lib/libllama.so", "llama_cpp/lib/libllama.so.0", "llama_cpp/lib/libmtmd.so",
        "llama_cpp/lib/avx512/libggml-cpu.so.0", "llama_cpp/lib/avxvnni/libggml-cpu.so.0",
        "llama_cpp/lib/avx2/libggml-cpu.so.0",
    }  # fmt: skip
    for name, variant in X86.items():
        backend = bundled.place_of(name, X86, folder).read_text()
        assert backend.endswith(variant.cmake_args)
        assert "cpu_backend_only.cmake" in backend  # no more is built of a variant
    assert (libraries / "libllama.so").read_text() == "libllama.so "  # of this machine's build
    assert "diskcache" not in (folder / "llama_cpp" / "__init__.py").read_text()
    assert ("patchelf", "--set-rpath", "$ORIGIN", str(libraries / "libggml.so.0")) in ran
    inner = str(libraries / "avx512" / "libggml-cpu.so.0")
    assert ("patchelf", "--set-rpath", "$ORIGIN/..", inner) in ran
