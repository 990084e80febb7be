"""Parts of a long prompt end where the blocks end in which a target reads: none is read twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from benchmarks.made_models import SHAPES, write_gguf

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.padded import LlamaPadded
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.tree_cache import Entry
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.targets import Target
from duodec.core.traits import Widths
from duodec.llm import LLM
from duodec.models import resolve

PROMPT = np.random.default_rng(0).integers(0, 90, 2049).tolist()


@pytest.fixture
def vocabulary() -> Iterator[LlamaModel]:
    """Of some model: nothing is said but tokens."""
    path = resolve("smollm2-draft").path
    with closing(LlamaModel(path, vocabulary_only=True, num_gpu_layers=0)) as model:
        yield model


def read_in_parts(target: Target, vocabulary: LlamaModel, prompt: list[int], chunk: int) -> None:
    llm = LLM(target, vocabulary, len(prompt) + 64)
    llm.scheduler.num_chunk = chunk
    llm.generate([prompt], SamplingParams(max_tokens=1), method="ar")


@pytest.mark.parametrize("chunk", [128, 512])
def test_a_padded_target_reads_a_prompt_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: LlamaModel, chunk: int
) -> None:
    """Its last token is computed with the rows behind it."""
    computed: list[int] = []
    decode = LlamaPadded._decode_of

    def counted(self: LlamaPadded, slot: int, entries: list[Entry]) -> None:
        computed.append(len(entries))
        decode(self, slot, entries)

    monkeypatch.setattr(LlamaPadded, "_decode_of", counted)
    path = write_gguf(tmp_path / "made.gguf", SHAPES["tiny"], "Q8_0")
    with (
        closing(LlamaModel(path)) as model,
        closing(
            LlamaTarget(model, num_context=2200, num_threads=1, widths=Widths.only(8))
        ) as target,
    ):
        read_in_parts(target, vocabulary, PROMPT, chunk)
    num_parts = 5
    assert len(PROMPT) <= sum(computed) <= len(PROMPT) + num_parts * 8, computed


def test_a_torch_target_reads_a_prompt_once(
    monkeypatch: pytest.MonkeyPatch, vocabulary: LlamaModel
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
    pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")
    from fakes.torch_models import target_of

    target = target_of("llama", num_context=600, num_chunk=64)
    computed: list[int] = []
    read = target._forwards.read

    def counted(lines: object, num_rows: int, layout: object) -> object:
        computed.append(num_rows)
        return read(lines, num_rows, layout)  # type: ignore[arg-type]

    monkeypatch.setattr(target._forwards, "read", counted)
    prompt = PROMPT[:330]
    for first, chunk in enumerate((32, 40, 64, 128)):  # less than a block, as in company, or more
        computed.clear()
        read_in_parts(target, vocabulary, [first, *prompt], chunk)
        assert computed == [64] * 5 + [16], chunk
