"""Who may import whom: the arrows of the design, read off the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from fakes import ROOT

import duodec
from duodec.loading.load import Loaded

ENGINE = ROOT / "src" / "duodec"
PURE = ("core", "native", "methods", "drafting", "planning", "scheduler")

# what each part of the package may import of the package; anything outside is the engine's ring
ARROWS = {
    "errors": set(),
    "core": {"core", "native", "errors"},
    "native": {"native", "errors"},
    "drafting": {"drafting", "native", "core", "errors"},
    "planning": {"planning", "drafting", "native", "core", "errors"},
    "methods": {"methods", "drafting", "planning", "core", "errors"},
    "scheduler": {"scheduler", "methods", "planning", "core", "errors"},
    "machine": {"machine", "core", "errors"},
    "backends": {"backends", "machine", "core", "errors"},
    "models": {"models", "machine", "core", "errors"},
    "loading": {
        "loading",
        "backends",
        "models",
        "datastores",
        "chat",
        "planning",
        "drafting",
        "machine",
        "core",
        "errors",
    },
    "chat": {"chat", "machine", "core", "errors"},
}
ARROWS["duodec_torch"] = ARROWS["backends"] | {"loading", "models"}  # as a package's backend may
OUTER = {"cli", "server", "testing"}
READERS = {("methods/registry", "duodec.machine.plugins")}  # one reads what packages add, for all

# packages beside the engine, and which of the others each may import
SATELLITES: dict[str, set[str]] = {
    "duodec_lab": {"duodec_torch"},
    "duodec_torch": set(),
    "duodec_vllm": {"duodec_torch"},  # reads the vocabulary of a folder
}
FOLDERS = {name: ROOT / "packages" / name.replace("_", "-") / "src" / name for name in SATELLITES}

# third-party libraries, and the only places where they are imported
HOMES = {
    "numpy": (
        *PURE,
        "backends",
        "llm",
        "inputs",
        "server",
        "cli",
        "models",
        "datastores",
        "testing",
        "loading",
        *SATELLITES,
    ),
    "llama_cpp": ("backends/llamacpp/library",),
    "llguidance": (
        "backends/grammar/llguidance",
        "backends/grammar/library",
        "backends/grammar/child",
    ),
    "torch": ("duodec_torch", "duodec_lab/distill"),
    "transformers": ("duodec_torch",),
    "triton": (
        "duodec_torch/forward/kernels",
        "duodec_torch/forward/layer_kernels",
        "duodec_torch/sampling/summary_kernel",
    ),
    "safetensors": ("duodec_torch/heads", "duodec_lab/distill/library"),
    "accelerate": ("duodec_torch",),
    "gguf": ("duodec_torch", "duodec_lab/distill/library"),
    "huggingface_hub": ("models",),
    "jinja2": ("chat/jinja", "duodec_lab/bench"),
    "PIL": ("chat/picture_decoder",),
    "matplotlib": ("duodec_lab/bench/figures",),
    "pydivsufsort": ("duodec_lab/datastores",),
    "typer": ("cli", "duodec_lab/commands", "duodec_vllm/command"),
    "typing_extensions": ("llm",),
    "click": ("cli",),
    "prompt_toolkit": ("cli",),
    "rich": ("cli", "models", "duodec_lab/commands/tables"),
    "psutil": (
        "machine",
        "cli",
        "duodec_lab/bench",
        "backends/drafter/process",
        "duodec_torch/checkpoint/placing",
    ),
    "scipy": ("duodec_lab/bench",),
    "pydantic": ("server/api",),
    "pydantic_core": ("server/api/fields",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "httptools": ("server/http/connections",),
    "prometheus_client": ("server", "duodec_vllm"),
    "yaml": ("duodec_vllm", "cli/config_file"),
    "markdown_it": ("cli/markdown",),
}


def _files(folder: Path, within: Path) -> list[str]:
    return [path.relative_to(within).with_suffix("").as_posix() for path in folder.rglob("*.py")]


@cache
def sources() -> tuple[str, ...]:
    """Every file of our packages, as ``core/draft`` of the engine and ``duodec_lab/bench/run``."""
    others = (name for folder in FOLDERS.values() for name in _files(folder, folder.parent))
    return tuple(sorted([*_files(ENGINE, ENGINE), *others]))


def path_of(source: str) -> Path:
    """A file by its name in `sources`."""
    folder = FOLDERS.get(source.partition("/")[0])
    return (folder.parent if folder else ENGINE) / f"{source}.py"


def as_source(module: str) -> str:
    """A module of ours by its name in `sources`, without its ``__init__``."""
    return module.removeprefix("duodec.").replace(".", "/")


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in {"duodec", *SATELLITES}


@cache  # one for all tests of this file
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path_of(source).read_text("utf-8"))))


@cache
def imports(source: str) -> tuple[str, ...]:
    """Modules that a file imports, also those inside of functions, by their full names."""
    found: list[str] = []
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: imports are absolute"
            assert node.module
            folder = path_of(as_source(node.module)).with_suffix("")
            if node.module == "duodec" or (is_ours(node.module) and folder.is_dir()):
                found += (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                found.append(node.module)
    return tuple(found)


def is_in(source: str, place: str) -> bool:
    return source == place or source.startswith(f"{place}/")


def satellite_of(source: str) -> str | None:
    return next((name for name in SATELLITES if is_in(source, name)), None)


def test_arrows_point_inwards() -> None:
    for source in sources():
        part = source.split("/")[0]
        for name in imports(source):
            package, _, rest = name.partition(".")
            if package != "duodec":
                continue
            other = rest.split(".")[0]
            if part in ARROWS:
                is_inwards = other in ARROWS[part] or (source, name) in READERS
                assert is_inwards, f"{source} imports {name}"
            elif part not in {*OUTER, *SATELLITES, "__main__"}:
                assert other not in OUTER, f"{source} imports {name}"


def test_no_satellite_is_imported_by_the_engine_or_by_another() -> None:
    """Not even inside of functions: what is not installed cannot be missed."""
    for source in sources():
        own = satellite_of(source)
        allowed = {own} | SATELLITES[own] if own else set()
        for name in imports(source):
            other = satellite_of(as_source(name))
            assert other is None or other in allowed, f"{source} imports {name}"


# where the engine spells such a name: the table of who adds what, an option that asks for the
# checks of one, what `doctor` calls a check, and what transformers calls a field and an option
NAMED = {
    "machine/plugins": {"torch", "vllm", "lab", "bench", "distill"},
    "cli/commands/doctor": {"vllm"},
    "cli/checks/pair": {"exactness"},
    "cli/spelling": {"torch"},
    "models/metadata": {"torch"},
}


def test_the_engine_names_no_satellite() -> None:
    """In sentences for people it may."""
    for source in sources():
        if satellite_of(source):
            continue
        names: set[str] = set(imports(source))
        for node in nodes(source):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= {node.value} if re.fullmatch(r"[\w.:/-]+", node.value) else set()
            else:
                words = (getattr(node, of, None) for of in ("id", "attr", "arg", "name"))
                names |= {str(word) for word in words if word is not None}
        parts = {part for name in names for part in re.split(r"[._:/-]", name.lower())}
        found = parts & (NAMED["machine/plugins"] | {"exactness"})
        assert found == NAMED.get(source, set()) & found, f"{source} names {found}"


TOP = {"__init__", "__main__", "errors", "inputs", "llm"}


def test_the_top_of_the_package_is_its_public_interface() -> None:
    assert {source for source in sources() if "/" not in source} == TOP
    assert set(FOLDERS) == {folder.name for folder in ROOT.glob("packages/*/src/*")}


# modules that a single other one imports join it, but for these
ALONE = {
    "backends/drafter/requests": "the drafter's process is mirrored by what asks it",
    "backends/grammar/child": "it is the program of another process",
    "backends/llamacpp/build/": "scripts load it by its path, without the package",
    "backends/llamacpp/checks/": "it is the program of another process, or what `doctor` asks",
    "backends/llamacpp/drafts/": "what a draft model does in addition to drafting has a file each",
    "backends/llamacpp/embedding/": "a backend loads each kind of model by a file of its own",
    "backends/llamacpp/gguf/": "it reads files that nobody has vetted",
    "backends/llamacpp/target/": "a kind of target has a file",
    "backends/llamacpp/vision/": "it is the only place that knows the library for pictures",
    "backends/translation/": "a way to translate has a file",
    "chat/": "it runs in other processes, or sends what they made",
    "cli/": "commands, the program, and what they import late, have a file each",
    "drafting/jacobi": "sources of drafts have a file each",
    "loading/llamacpp": "a backend is found by its name",
    "methods/": "a method reads like its paper; `stream` has its selector beside it",
    "models/": "where names lead to has a file each",
    "native/build": "the build of the package loads it by its path",
    "planning/": "the economies of one request and of a batch have a file each",
    "scheduler/": "each is one duty of the scheduler, with tests of its own",
    "server/api/": "what an interface reads and writes has a file; so has a notation of tools",
    "server/app": "the routes are the map of the server",
    "server/http/": "a limit has a file, with attackers of its own",
    "server/models/": "each is one duty of a loaded model, with tests of its own",
    "server/page": "it puts together what lies in `web`",
    "server/prompt_log": "what is written to disk has a file",
    "testing/": "its package exports it",
}


def test_a_module_that_one_other_imports_stands_alone_for_a_reason() -> None:
    known = {source.removesuffix("/__init__") for source in sources()}
    importers: dict[str, set[str]] = {module: set() for module in known}
    for source in sources():
        own = source.removesuffix("/__init__")
        for name in map(as_source, filter(is_ours, imports(source))):
            found = name if name in known else name.rpartition("/")[0]
            importers.get(found, set()).add(own)
    alone = {m for m, who in importers.items() if len(who - {m}) == 1 and not satellite_of(m)}
    used = {place for place in ALONE for module in alone if module.startswith(place)}
    assert not {module for module in alone if not module.startswith(tuple(ALONE))}
    assert used == ALONE.keys(), "reasons without a module"
    assert len(alone) <= 83, "a room is not where small files go"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even inside of functions, or for types only."""
    known = {source.removesuffix("/__init__"): source for source in sources()}
    left: dict[str, set[str]] = {}
    for module, source in known.items():
        names = (as_source(name) for name in imports(source) if is_ours(name))
        found = {name if name in known else name.rpartition("/")[0] for name in names}
        left[module] = (found & known.keys()) - {module}
    while free := {module for module, others in left.items() if not others}:
        left = {module: others - free for module, others in left.items() if module not in free}
    assert not left, f"among these modules some import each other: {', '.join(sorted(left))}"


def test_an_llm_is_made_of_few_parts() -> None:
    assert len(fields(Loaded)) <= 13


def test_nobody_changes_an_llm_that_is_made() -> None:
    """What it is made of comes from `duodec.loading`; copies are made with `replace`."""
    for source in sources():
        for node in nodes(source):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            for target in targets:
                if isinstance(target, ast.Attribute):
                    assert ast.unparse(target.value) not in ("llm", "engine", "self.llm"), source


def test_libraries_are_imported_in_their_places_only() -> None:
    for source in sources():
        for name in imports(source):
            library = name.split(".")[0]
            if is_ours(name) or library in sys.stdlib_module_names:
                continue
            assert library in HOMES, f"{source} imports {library}: give it a home in this test"
            is_home = any(is_in(source, place) for place in HOMES[library])
            assert is_home, f"{source} imports {library}, which belongs to {HOMES[library]}"


def test_the_core_needs_numpy_and_nothing_else() -> None:
    for source in sources():
        if source.split("/")[0] in PURE:
            others = {name.split(".")[0] for name in imports(source)} - sys.stdlib_module_names
            assert others <= {"duodec", "numpy"}, source


def test_methods_mention_no_caches_threads_devices_or_modes() -> None:
    """A method is what it drafts and the loop it uses."""
    words = ("cache", "thread", "device", "cuda", "llama", "mode", "flag")
    for path in (ENGINE / "methods").glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        parts = {part for name in names for part in name.lower().split("_")}
        assert not parts & set(words), path.name


IMPORT_BLOCKED = """
import importlib, pkgutil, sys

packages, blocked = (set(argument.split()) for argument in sys.argv[1:])

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
for package in packages:
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), package + "."):
        importlib.import_module(found.name)
assert not blocked & {name.split(".")[0] for name in sys.modules}
"""


def import_blocked(packages: list[str], blocked: set[str]) -> subprocess.CompletedProcess[str]:
    """Import packages and all their modules in a process where some libraries are missing."""
    command = [sys.executable, "-c", IMPORT_BLOCKED, " ".join(packages), " ".join(blocked)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


HEAVY = {
    "llama_cpp", "torch", "transformers", "starlette", "uvicorn", "httptools", "prometheus_client",
    "scipy", "matplotlib", "llguidance", "gguf",
}  # fmt: skip


def test_the_engine_and_all_below_it_import_without_heavy_libraries() -> None:
    packages = [*(f"duodec.{part}" for part in PURE), "duodec.llm"]
    done = import_blocked(packages, HEAVY | {"huggingface_hub"})
    assert done.returncode == 0, done.stderr


def test_the_core_imports_without_any_library_but_numpy() -> None:
    done = import_blocked(["duodec.core.verify"], HEAVY)
    assert done.returncode == 0, done.stderr
    assert import_blocked(["duodec.core"], {"numpy"}).returncode != 0


def test_the_package_exports_what_it_lists() -> None:
    assert sorted(duodec.__all__) == list(duodec.__all__)
    assert set(duodec._HOMES) == set(duodec.__all__)
    assert all(getattr(duodec, name) is not None for name in duodec.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Motor'"):
        _ = duodec.Motor
