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
from typing import Any

from benchmarks.cpu import obtain, prepare
from benchmarks.cpu.decoders import Decoder, server, worker
from benchmarks.cpu.obtain import Unavailable
from benchmarks.serving import servers
from duodec.backends.llamacpp.build import native

PLAIN, REPACKED = "plain", "repacked"
_CONTEXT = 4096
_NUM_DRAFTED = 3  # llama.cpp's default, for all who need a number
_WITHOUT_UI = ("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF")  # which is downloaded
_OPENVINO_TYPES = frozenset((0, 1, 2, 3, 8, 12, 14))  # F32, F16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K
_OPENVINO_NEAREST = "Q4_0"


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
    rows: Sequence[Rows] = ()


@dataclass(frozen=True)
class Rival:
    """A program beside ours, or ours."""

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
    served = partial(_llama_server, bin_, setup, "--no-webui")
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
    bin_ = obtain.built(source)
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
        ways.append(Way("draft", partial(decoder, draft=str(readable(setup.draft)))))
    return Found(
        obtain.version(python, "openvino-genai"), _made_of(model, setup, _OPENVINO_NEAREST), ways
    )


def mistralrs(setup: Setup) -> Found:
    """mistral.rs on a CPU."""
    python = obtain.environment("mistralrs", ["mistralrs"])
    given = {"model": str(setup.model), "threads": setup.threads}

    def decoder(**more: object) -> AbstractContextManager[Decoder]:
        return worker(
            python, "mistralrs", {**given, **more}, RAYON_NUM_THREADS=str(setup.threads)
        )  # fmt: skip

    ways = [Way(PLAIN, decoder)]
    if setup.draft:
        ways.append(Way("draft", partial(decoder, draft=str(setup.draft))))
    return Found(obtain.version(python, "mistralrs"), setup.model.name, ways)


def kt_kernel(setup: Setup) -> Found:
    """KTransformers' kernels for experts on a CPU."""
    raise Unavailable("computes experts, and nothing else of a model: SGLang decodes with it")


def _llama_server(bin_: Path, setup: Setup, *options: str) -> AbstractContextManager[Decoder]:
    threads = str(setup.threads)
    common = ("-m", str(setup.model), "-c", str(_CONTEXT), "-np", "1", "-t", threads,
              "-tb", threads)  # fmt: skip
    return server(servers.native(bin_ / "llama-server", *common, *options))


def _made_of(model: Path, setup: Setup, nearest: str) -> str:
    name = setup.model.name
    return name if model == setup.model else f"{nearest}, made of {name}"


RIVALS = (
    Rival("duodec", "pip install duodec", ours),
    Rival("llama.cpp", "its sources in the package llama-cpp-python", llama_cpp),
    Rival("ik_llama.cpp", "git clone https://github.com/ikawrakow/ik_llama.cpp", ik_llama),
    Rival("OpenVINO GenAI", "pip install openvino-genai", openvino),
    Rival("mistral.rs", "pip install mistralrs", mistralrs),
    Rival("kt-kernel", "pip install kt-kernel", kt_kernel),
)
