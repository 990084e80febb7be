"""Keywords of the library are typed: what is misspelled fails in an editor, and in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from duodec import LLM, SamplingParams
from duodec.errors import BadOption
from duodec.inputs import EngineOptions, SamplingOptions
from duodec.loading.config import EngineConfig

SRC = Path(__file__).parents[1] / "src"
PROGRAM = """\
from duodec import LLM, SamplingParams

llm = LLM.load("smollm2", context=512, device="cpu", num_slots=2)
llm.generate("hi", SamplingParams(), method="lookup", temperature=0.5, stop=["."], seed=1)
LLM("smollm2", "none", threads=1)
LLM.load("smollm2", nonsense=3)
LLM("smollm2", thread=1)
llm.generate("hi", temprature=3)
llm.chat("hi", max_token=3)
llm.stream("hi", seed="one")
"""


@pytest.mark.parametrize(
    ("typed", "record", "named"),
    [(EngineOptions, EngineConfig, {"target", "draft"}), (SamplingOptions, SamplingParams, set())],
)
def test_every_field_is_typed(typed: type, record: type, named: set[str]) -> None:
    found, hints = get_type_hints(typed), get_type_hints(record)
    assert list(found) == [name for name in signature(record).parameters if name not in named]
    for name, kind in found.items():  # a call may take more: a path, a schema
        own = {*get_args(hints[name])} if type(None) in get_args(hints[name]) else {hints[name]}
        assert own <= {kind, *get_args(kind)}, name


@pytest.mark.slow
def test_an_editor_finds_a_misspelled_keyword(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path),
         "--config-file", os.devnull, str(program)],
        capture_output=True, text=True, check=False, env={**os.environ, "MYPYPATH": str(SRC)},
    )  # fmt: skip
    wrong = {line.split(":")[1] for line in run.stdout.splitlines() if ": error:" in line}
    first = PROGRAM.splitlines().index('LLM.load("smollm2", nonsense=3)') + 1
    assert wrong == {str(line) for line in range(first, first + 5)}, run.stdout


def test_sampling_params_name_the_field_that_was_meant() -> None:
    with pytest.raises(BadOption, match="has no 'tempreature'; did you mean temperature"):
        SamplingParams(tempreature=1)  # type: ignore[call-arg]
    with pytest.raises(BadOption, match="has no 'treads'; did you mean threads"):
        EngineConfig("smollm2", treads=1)  # type: ignore[call-arg]
    assert SamplingParams(0.5, top_k=3) == SamplingParams(temperature=0.5, top_k=3)


def test_hints_of_the_library_can_be_read() -> None:
    assert "sampling" in get_type_hints(LLM.generate)
