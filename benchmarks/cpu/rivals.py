"""Say for each program how it is obtained, what it can be asked, and how it decodes.

`RIVALS` lists them in the order of the table. A program that cannot be had, or does not read the
weights, raises Unavailable, and its line has the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cpu import obtain, prepare
from benchmarks.cpu.decoders import WORKER, Decoder, server, worker
from benchmarks.cpu.obtain import Unavailable
from benchmarks.serving import servers
from duodec.backends.llamacpp.build import native

PLAIN, REPACKED = "plain", "repacked"
_CONTEXT = 4096
_NUM_DRAFTED = 3  # llama.cpp's default, for all who need a number
_WITHOUT_UI = ("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF")  # which is downloaded
_WITH_FEW_CACHES = ("-DGGML_IQK_FA_ALL_QUANTS=OFF",)  # of many formats, which take long to compile
_OPENVINO_TYPES = frozenset((0, 1, 2, 3, 8, 12, 14))  # F32, F16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K
_OPENVINO_NEAREST = "Q4_0"
_SAVE = """
import sys, openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""


@dataclass(frozen=True)
class Setup:
    """What all are given."""

    facts: prepare.Facts
    threads: int
    ik_llama: Path | None = None

    @property
    def model(self) -> Path:
        return Path(self.facts.path)

    @property
    def draft(self) -> Path | None:
        return Path(self.facts.draft) if self.facts.draft else None


@dataclass(frozen=True)
class Rows:
    """A program of rows.cpp: forward passes through a library's llama.h."""

    name: str  # of the way that it computes: plain or repacked
    program: Path
    words: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def measure(self, setup: Setup, repeats: int, start: int, *, compares: bool) -> dict[str, Any]:
        """Its line of JSON, which has how far logits move if it ``compares`` them. Raises
        Unavailable."""
        numbers = map(str, (setup.threads, repeats, start))
        command = [str(self.program), str(setup.model), *numbers, *self.words]
        command += ["compare"] if compares else []
        tokens = " ".join(map(str, setup.facts.tokens))
        found: dict[str, Any] = json.loads(
            obtain.run(command, tokens, **self.variables).splitlines()[-1]
        )
        return found


@dataclass(frozen=True)
class PackagedRows:
    """Forward passes of a package, which worker.py computes in another environment."""

    name: str
    python: Path
    asked: str  # of worker.py
    model: Callable[[], Path]  # a file

    def measure(self, setup: Setup, repeats: int, start: int, *, compares: bool) -> dict[str, Any]:
        """As of `Rows`. Raises Unavailable."""
        settings = {
            "model": str(self.model()), "threads": setup.threads,
            "tokens": setup.facts.tokens, "repeats": repeats, "start": start, "compares": compares,
        }  # fmt: skip
        command = [str(self.python), str(WORKER), self.asked, json.dumps(settings)]
        found: dict[str, Any] = json.loads(obtain.run(command).splitlines()[-1])
        return found


class Passes(Protocol):
    """What can be asked for forward passes: `Rows`, or `PackagedRows`."""

    @property
    def name(self) -> str:
        """Of the way that they are computed: plain or repacked."""

    def measure(
        self, setup: Setup, repeats: int, start: int, *, compares: bool
    ) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Way:
    """A way to decode, in a process of its own."""

    name: str
    open: Callable[[], AbstractContextManager[Decoder]]
    plain: str = PLAIN  # the way whose texts it should repeat


@dataclass(frozen=True)
class Found:
    """A program that can be had here."""

    version: str
    weights: str  # the file's name, or what they were made of
    ways: Sequence[Way]
    rows: Sequence[Passes] = ()


@dataclass(frozen=True)
class Rival:
    """A program that is compared: ours, or another."""

    name: str
    source: str  # where anyone gets it
    find: Callable[[Setup], Found]


def ours(setup: Setup) -> Found:
    """This tree: plain decoding, its default alone, and its default with a draft model."""
    program = obtain.FOLDER / "ours" / "rows"
    obtain.compile_rows(obtain.llama_cpp_source(), [Path(setup.facts.libraries)], program)

    def served(draft: str, body: dict[str, Any]) -> AbstractContextManager[Decoder]:
        options = ("-m", str(setup.model), "-md", draft, "-c", str(_CONTEXT), "--parallel", "1",
                   "--threads", str(setup.threads))  # fmt: skip
        return server(servers.ours(*options), body)

    ways = [
        Way(PLAIN, partial(served, "none", {"speculation": {"method": "ar"}})),
        Way("default", partial(served, "none", {})),
    ]
    if setup.draft:
        ways.append(Way("draft", partial(served, str(setup.draft), {})))
    kernels = setup.facts.kernels or "llama.cpp's"
    rows = (Rows(PLAIN, program, variables=setup.facts.variables),)
    return Found(f"this tree, kernels: {kernels}", setup.model.name, ways, rows)


def llama_cpp(setup: Setup) -> Found:
    """llama.cpp from the sources that our build pins, without our kernels."""
    bin_ = obtain.built(obtain.llama_cpp_source(), _WITHOUT_UI)
    served = partial(_llama_server, bin_, setup)
    ways = [
        Way(PLAIN, served),
        Way("n-grams", partial(served, "--spec-type", "ngram-simple")),
    ]
    if setup.draft:
        drafting = ("-md", str(setup.draft), "--spec-type", "draft-simple",
                    "--spec-draft-n-max", str(_NUM_DRAFTED))  # fmt: skip
        ways.append(Way("draft", partial(served, *drafting)))
    version = f"of {native.PACKAGE} {native.VERSION}"
    return Found(version, setup.model.name, ways, (Rows(PLAIN, bin_ / "rows"),))


def ik_llama(setup: Setup) -> Found:
    """ik_llama.cpp: as the file lies, and with its run-time repacking."""
    source = obtain.ik_llama_source(setup.ik_llama)
    bin_ = obtain.built(source, _WITH_FEW_CACHES)
    served = partial(_llama_server, bin_, setup, "--jinja")
    ways = [
        Way(PLAIN, served),
        Way(REPACKED, partial(served, "-rtr"), REPACKED),
        Way("n-grams", partial(served, "-rtr", "--spec-type", "ngram-simple:n_max=64"), REPACKED),
    ]
    if setup.draft:
        drafting = ("-rtr", "-md", str(setup.draft), "--spec-type", f"draft:n_max={_NUM_DRAFTED}")
        ways.append(Way("draft", partial(served, *drafting), REPACKED))
    rows = (Rows(PLAIN, bin_ / "rows"), Rows(REPACKED, bin_ / "rows", ("repack",)))
    return Found(obtain.commit(source), setup.model.name, ways, rows)


def openvino(setup: Setup) -> Found:
    """OpenVINO GenAI, which reads GGUF files of some architectures and types itself."""
    python = obtain.environment("openvino", ["openvino-genai"])
    readable = partial(prepare.weights, types=_OPENVINO_TYPES, nearest=_OPENVINO_NEAREST)
    model = readable(setup.model)
    given = {"model": str(model), "threads": setup.threads}

    def decoder(**more: object) -> AbstractContextManager[Decoder]:
        return worker(python, "openvino", {**given, **more})

    ways = [Way(PLAIN, decoder), Way("n-grams", partial(decoder, lookup=5))]
    if setup.draft:
        draft = partial(_in_openvino_format, python, readable(setup.draft))
        ways.append(Way("draft", lambda: decoder(draft=str(draft()))))
    rows = (PackagedRows(PLAIN, python, "passes", partial(_openvino_file, python, model)),)
    weights = _made_of(model, setup, _OPENVINO_NEAREST)
    return Found(obtain.version(python, "openvino-genai"), weights, ways, rows)


def _in_openvino_format(python: Path, model: Path) -> Path:
    """The folder of a model in OpenVINO's own format, made once: of drafts nothing else is read."""
    folder = obtain.FOLDER / "openvino-format" / model.stem
    if not (folder / "openvino_detokenizer.bin").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        linked = folder / model.name
        linked.unlink(missing_ok=True)
        linked.symlink_to(model)
        obtain.run([str(python), "-c", _SAVE, str(linked)])
    return folder


def _openvino_file(python: Path, model: Path) -> Path:
    return _in_openvino_format(python, model) / "openvino_model.xml"


def mistralrs(setup: Setup) -> Found:
    """mistral.rs on a CPU. Its package drafts with layers of the target's own only."""
    python = obtain.environment("mistralrs", ["mistralrs"])
    given = {"model": str(setup.model)}

    def decoder() -> AbstractContextManager[Decoder]:
        return worker(python, "mistralrs", given, RAYON_NUM_THREADS=str(setup.threads))

    return Found(obtain.version(python, "mistralrs"), setup.model.name, [Way(PLAIN, decoder)])


def kt_kernel(setup: Setup) -> Found:
    """KTransformers' kernels for experts on a CPU: they compute nothing else of a model, so that
    its passes are those of experts alone, and SGLang, which decodes with it, needs a GPU."""
    if not setup.facts.has_experts:
        raise Unavailable("computes experts, and nothing else of a model")
    python = obtain.environment("kt-kernel", ["kt-kernel"])
    rows = (PackagedRows("experts alone", python, "experts", lambda: setup.model),)
    return Found(obtain.version(python, "kt-kernel"), setup.model.name, [], rows)


def _llama_server(bin_: Path, setup: Setup, *options: str) -> AbstractContextManager[Decoder]:
    program, threads = bin_ / obtain.SERVER, str(setup.threads)
    if not program.is_file():
        raise Unavailable(f"its {obtain.SERVER} could not be built")
    common = ("-m", str(setup.model), "-c", str(_CONTEXT), "-np", "1", "-t", threads,
              "-tb", threads)  # fmt: skip
    return server(servers.native(program, *common, *options))


def _made_of(model: Path, setup: Setup, nearest: str) -> str:
    name = setup.model.name
    return name if model == setup.model else f"{nearest}, made of {name}"


RIVALS = (
    Rival("duodec", "this tree", ours),
    Rival("llama.cpp", "its sources in the package llama-cpp-python", llama_cpp),
    Rival("ik_llama.cpp", "git clone https://github.com/ikawrakow/ik_llama.cpp", ik_llama),
    Rival("OpenVINO GenAI", "pip install openvino-genai", openvino),
    Rival("mistral.rs", "pip install mistralrs", mistralrs),
    Rival("kt-kernel", "pip install kt-kernel", kt_kernel),
)
