"""Fetch the source packages in which llama.cpp and vLLM ship their tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

# pip asks a package's own build system for its name; this answers in its place, so that nothing is
# built and nothing that a build needs is installed
_BACKEND = """
import re
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    said = Path("PKG-INFO").read_text("utf-8")
    name, version = (re.search(rf"(?m)^{key}: (.+)$", said)[1] for key in ("Name", "Version"))
    info = Path(folder, f"{name}-{version}.dist-info")
    info.mkdir()
    lines = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "")
    (info / "METADATA").write_text("\\n".join(lines), "utf-8")
    return info.name
"""
_BACKENDS = ("setuptools/build_meta.py", "scikit_build_core/build.py")


@dataclass(frozen=True)
class Peer:
    """Another server's tests: the package that holds them, and where they are in it."""

    name: str
    package: str
    version: str
    root: str  # of what is extracted
    suites: tuple[str, ...]  # folders of tests below it

    def fetched(self, folder: Path) -> Path:
        """Its root below ``folder``, fetched once."""
        place = folder / f"{self.package}-{self.version}"
        if not place.exists():
            with TemporaryDirectory(dir=folder) as new:
                self._extract(Path(new))
                Path(new).rename(place)
                Path(new).mkdir()  # for its own removal
        return place / self.root

    def _extract(self, folder: Path) -> None:
        with TemporaryDirectory() as scratch:
            for backend in _BACKENDS:
                file = Path(scratch, "backends", backend)
                file.parent.mkdir(parents=True)
                file.with_name("__init__.py").touch()
                file.write_text(_BACKEND, "utf-8")
            command = [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary",
                ":all:", "--no-build-isolation", "--dest", scratch,
                f"{self.package}=={self.version}",
            ]  # fmt: skip
            env = {**os.environ, "PYTHONPATH": str(Path(scratch, "backends"))}
            subprocess.run(command, check=True, env=env)
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                for member in tar:
                    _, _, path = member.name.partition("/")
                    is_package = path.endswith("/__init__.py") and self.root.startswith(
                        path.removesuffix("/__init__.py")
                    )
                    if member.isfile() and (path.startswith(f"{self.root}/") or is_package):
                        member.name = path
                        tar.extract(member, folder, filter="data")


LLAMA = Peer(
    "llama.cpp", "llama_cpp_python", "0.3.36", "vendor/llama.cpp/tools/server/tests", ("unit",)
)
VLLM = Peer(
    "vllm", "vllm", "0.33.0", "tests/entrypoints",
    ("openai", "anthropic", "serve/tokenize", "pooling/embed", "pooling/scoring"),
)  # fmt: skip
PEERS = {peer.name: peer for peer in (LLAMA, VLLM)}
