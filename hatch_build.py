"""Compile the inner loops when hatchling builds duodec; a wheel carries their library, and
llama.cpp where DUODEC_BUNDLE names a folder of `scripts/bundle.py`."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags


class InnerLoops(BuildHookInterface):
    """The wheel fits every Python on its platform: ctypes loads the library."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = _build_of(Path(self.root))
        try:
            library = build.build()
        except build.BuildFailed as error:
            sys.exit(f"duodec: {error}")
        if version == "editable":  # it lies where it is looked for
            return
        places = (tag.platform for tag in sys_tags())
        place = next(name for name in places if not name.startswith(("manylinux", "musllinux")))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{place}"
        build_data["force_include"][str(library)] = f"duodec/native/lib/{library.name}"
        if bundle := os.environ.get("DUODEC_BUNDLE"):
            build_data["force_include"][bundle] = "duodec/backends/llamacpp/bundled"


def _build_of(root: Path) -> ModuleType:
    """`duodec.native.build`, which cannot be imported yet."""
    path = root / "src" / "duodec" / "native" / "build.py"
    spec = importlib.util.spec_from_file_location("duodec_native_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
