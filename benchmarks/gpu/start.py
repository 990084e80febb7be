"""Measure this card, in the tree beside this folder: python FOLDER --output RESULTS

What a machine with Python, torch and transformers lacks comes with the folder, and is unpacked into
a temporary one: llama.cpp, of the variant that this processor computes, and pure Python packages.
`--help` tells all options.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BROUGHT = ("numpy", "typer")  # by transformers
# instruction sets by variant, as /proc/cpuinfo names them; the first that a processor has is taken
VARIANTS = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    "avx2": ("avx2", "fma", "f16c", "bmi2"),
}


def main() -> None:
    """Unpack, and run the benchmark of the tree."""
    tree = next(filter(is_tree, (Path.cwd(), HERE.parent)), None)
    if tree is None:
        sys.exit("no tree of duodec is here; run this in the one that it was packed in")
    missing = [name for name in BROUGHT if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"{', '.join(missing)} cannot be imported; take a Python with torch and transformers"
        )
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(HERE / "site.tar.xz") as archive:
            archive.extractall(name, filter="data")
        site = Path(name) / "site"
        take_variant(Path(name) / "variants", site, variant_for(flags()))
        bring_inner_loops(Path(name) / "inner-loops", tree)
        ours = sorted(tree.glob("packages/*/src"))
        places = [str(site), *map(str, (tree / "src", *ours, tree))]
        sys.path[:1] = places
        given = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*places, given)))
        own = ["--texts", str(HERE / "texts.json")]
        sys.argv = ["benchmarks", "gpu", *own, *sys.argv[1:]]
        runpy.run_module("benchmarks", run_name="__main__")


def is_tree(path: Path) -> bool:
    return (path / "src" / "duodec").is_dir() and (path / "benchmarks" / "gpu").is_dir()


def flags() -> set[str]:
    """The instruction sets of this processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = (line.partition(":")[2] for line in lines if line.startswith("flags"))
    return set(next(found, "").split())


def variant_for(flags: set[str]) -> str:
    """The fastest variant that a processor computes; ends the program where there is none."""
    for variant, needed in VARIANTS.items():
        if flags.issuperset(needed):
            return variant
    sys.exit("this processor has no AVX2, for which llama.cpp was packed; pack it there")


def take_variant(variants: Path, site: Path, variant: str) -> None:
    """Put the library of a variant where llama.cpp looks for it."""
    for library in (variants / variant).iterdir():
        shutil.copy(library, site / "llama_cpp" / "lib" / library.name)
    print(f"llama.cpp on the CPU: {variant}", flush=True)


def bring_inner_loops(folder: Path, tree: Path) -> None:
    """Put duodec's compiled part into the tree, if it is not there."""
    place = tree / "src" / "duodec" / "native" / "lib"
    place.mkdir(exist_ok=True)
    for library in folder.iterdir():
        if not (place / library.name).exists():
            shutil.copy(library, place / library.name)


if __name__ == "__main__":
    main()
