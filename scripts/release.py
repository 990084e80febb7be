"""Build sdists and wheels into dist/, and try them as users will: python scripts/release.py

Needs `build`, of the extra `dev`. The wheel is made from the sdist, so that this is whole, and goes
into an environment of its own, where no compiler is found; then come those of packages/, whose
commands join. With ``--bundled`` it brings llama.cpp,
in a variant for each kind of processor, which needs `auditwheel` and `patchelf`, too.
docs/release.md is the checklist.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from duodec.backends.cpu import instruction_sets
from duodec.backends.llamacpp.build import bundled

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PACKAGES = sorted(ROOT.glob("packages/*"))  # beside the engine
_VERSIONS = {
    "CITATION.cff": r"(?m)^version: (.+)$",
    "CHANGELOG.md": r"(?ms)\A.*?^## (\d\S*)",  # the first
}
_IN_PROJECT = r'(?m)(?:^version = "|"duodec-?\w*==)(.+?)"'  # its own, and what it needs of ours
# hatchling is in this environment
_BUILD = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST))
_NO_COMPILER = "/nowhere/c++"
_USES_INNER_LOOPS = "from duodec.native.library import library; library()"


def main() -> None:
    """Raises SystemExit with one line for what is wrong."""
    version = the_version()
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "--bundled" in sys.argv:
            from bundle import bundle  # beside this file

            bundle(folder / "bundle")
            _build(folder / "bundle")
            made = _made()
            _run(sys.executable, "-m", "auditwheel", "repair", "-w", str(DIST), str(made))
            made.unlink()  # the other one's tag says on which systems it runs
            wheel, check = _made(), check_bundled
        else:
            _build()
            wheel, check = _made(), check_wheel
        check_engine_files(wheel)
        venv.create(folder / "venv", with_pip=True)
        _run(str(folder / "venv/bin/pip"), "install", "--quiet", str(wheel), CXX=_NO_COMPILER)
        check(folder, version)
        (sdist,) = DIST.glob("*.tar.gz")
        check_sdist_without_compiler(sdist, folder)
        check_packages(folder)
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.0f} MB) and {sdist.name} are in order")


def the_version() -> str:
    """The version that all files name."""
    projects = [path / "pyproject.toml" for path in (ROOT, *PACKAGES)]
    patterns = {**_VERSIONS, **{str(path.relative_to(ROOT)): _IN_PROJECT for path in projects}}
    named: list[tuple[str, str]] = [
        (name, version)
        for name, pattern in patterns.items()
        for version in re.findall(pattern, (ROOT / name).read_text("utf-8")) or ["none"]
    ]
    if len({version for _, version in named}) > 1:
        told = ", ".join(f"{version} in {name}" for name, version in named)
        sys.exit(f"the versions differ: {told}; make them one")
    return named[0][1]


def check_files(wheel: Path, sources: str = "src") -> None:
    """The wheel has every file of its package that git knows."""
    tracked = _run("git", "-C", str(ROOT), "ls-files", sources).split()
    names = _names(wheel)
    missing = {name.removeprefix(f"{sources}/") for name in tracked} - names
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    if "LICENSE" not in {Path(name).name for name in names}:
        sys.exit(f"{wheel.name} lacks LICENSE")


def check_engine_files(wheel: Path) -> None:
    """It has these, the compiled inner loops once, and NOTICE."""
    check_files(wheel)
    names = _names(wheel)
    loops = [name for name in names if name.startswith("duodec/native/lib/")]
    if len(loops) != 1:
        sys.exit(f"{wheel.name} has {len(loops)} builds of the inner loops, where one belongs")
    if "NOTICE" not in {Path(name).name for name in names}:
        sys.exit(f"{wheel.name} lacks NOTICE")


def _names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}


def check_wheel(folder: Path, version: str) -> None:
    """Installed there without a compiler, its command starts, and says what is still to be
    built."""
    programs = folder / "venv" / "bin"
    alone = {"PATH": str(programs), "CXX": _NO_COMPILER, "HOME": str(folder)}
    told = _run(str(programs / "duodec"), "--version", only=alone)
    if told.strip() != f"duodec {version}":
        sys.exit(f"duodec --version says {told.strip()!r}, and the files {version}")
    _run(str(programs / "python"), "-c", _USES_INNER_LOOPS, only=alone)
    said = _refusal(str(programs / "duodec"), "run", "smollm2", "hi", only=alone)
    if "duodec setup" not in said or len(said.splitlines()) != 1:
        sys.exit(f"without llama.cpp `duodec run` does not name `duodec setup` in one line: {said}")


def check_bundled(folder: Path, version: str) -> None:
    """Installed there without a compiler, each variant that this processor has completes a text."""
    programs = folder / "venv" / "bin"
    alone = {"PATH": str(programs), "CXX": _NO_COMPILER, "HOME": str(folder)}
    command = (str(programs / "duodec"), "run", "smollm2-draft", "Hello", "--max-tokens", "8")
    sets = set(instruction_sets())
    for name, variant in bundled.VARIANTS[platform.machine()].items():
        if sets.issuperset(variant.sets):
            text = _run(*command, only={**alone, bundled.FORCED: name})
            print(f"{name}: {text.strip()!r}")
        else:
            print(f"{name}: not tried, this processor lacks its instruction sets")
    if not _run(*command, only=alone).strip():
        sys.exit(f"{' '.join(command)} says nothing")


def _build(bundle: Path | None = None) -> None:
    _run(*_BUILD, str(ROOT), DUODEC_BUNDLE=str(bundle or ""))


def _made() -> Path:
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check_packages(folder: Path) -> None:
    """Built and installed beside the engine, without what they need: their commands join."""
    programs = folder / "venv" / "bin"
    for package in PACKAGES:
        _run(*_BUILD, str(package))
        (wheel,) = DIST.glob(f"{package.name.replace('-', '_')}-*.whl")
        check_files(wheel, f"packages/{package.name}/src")
        _run(str(programs / "pip"), "install", "--quiet", "--no-deps", str(wheel))
    listed = _run(str(programs / "duodec"), "--help")
    for command in ("bench", "distill", "verify", "vllm"):
        if not re.search(rf"(?m)^  {command} +[A-Z]", listed):
            sys.exit(f"duodec --help does not list {command}, whose package is installed: {listed}")


def check_sdist_without_compiler(sdist: Path, folder: Path) -> None:
    """To build from source says which compiler to install where there is none."""
    pip = str(folder / "venv" / "bin" / "pip")
    said = _refusal(pip, "install", "--no-deps", "--force-reinstall", str(sdist), CXX=_NO_COMPILER)
    if "which duodec is built with; install one" not in said:
        sys.exit(f"pip install of {sdist.name} without a compiler does not name one: {said}")


def _run(*command: str, only: dict[str, str] | None = None, **env: str) -> str:
    done = _done(command, only, env)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
    return done.stdout


def _refusal(*command: str, only: dict[str, str] | None = None, **env: str) -> str:
    done = _done(command, only, env)
    if not done.returncode:
        sys.exit(f"{' '.join(command)} ended with 0, and must not")
    return done.stderr.strip()


def _done(
    command: tuple[str, ...], only: dict[str, str] | None, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """``only`` is the whole environment; else ``env`` is added to ours."""
    whole = {**os.environ, **env} if only is None else only
    # in a folder where no sources are found in place of what is installed
    return subprocess.run(
        command, env=whole, cwd=tempfile.gettempdir(), check=False, capture_output=True, text=True
    )


if __name__ == "__main__":
    main()
