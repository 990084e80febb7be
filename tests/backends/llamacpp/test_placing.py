"""Tensors placed by name, as llama.cpp's options place them."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes.tiny_models import write_mixture

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.gguf import overrides
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.load import placed_tensors
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.padded import MOST_ROWS, NUM_PIECE
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.backends.placement import Placement
from duodec.core.draft import Draft
from duodec.core.targets import Query
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec.loading.load import load_target
from duodec.loading.resolve import resolve_target
from duodec.models import resolve

MOE = EngineConfig(draft=None, cpu_moe=True)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("models") / "mixture.gguf")


def greedy(model: LlamaModel, num_tokens: int = 12) -> tuple[list[int], np.ndarray]:
    """A text and the logits of its last token."""
    text = model.tokenize("Once upon a time", is_templated=False)
    with closing(LlamaTarget(model, num_context=256, num_threads=1)) as target:
        for _ in range(num_tokens):
            (scores,) = target.score([Query(0, np.array(text, np.int32), Draft())])
            assert isinstance(scores, LlamaScores)
            text.append(scores.draw(0).token)
        return text, scores.rows[0].copy()


def test_a_header_tells_sizes_without_weights(mixture: Path) -> None:
    header = Header.read(library.load(), mixture)
    assert header is not None
    assert (header.architecture, header.num_context_train) == ("llama", 512)
    assert (header.head_sizes, header.kv_heads) == ((32, 32), (2, 2, 2))
    with closing(LlamaModel(mixture, num_gpu_layers=0)) as model:
        assert (header.num_bytes, header.num_vocab) == (model.num_bytes, model.num_vocab)
    assert Header.read(library.load(), Path(__file__)) is None


def test_experts_kept_on_the_cpu_give_the_same_text(mixture: Path) -> None:
    with closing(LlamaModel(mixture, num_gpu_layers=0)) as model:
        text, row = greedy(model)
    for config in (MOE, EngineConfig(n_cpu_moe=2), EngineConfig(override_tensor=("exps=CPU",))):
        placed = placed_tensors(config)
        with closing(LlamaModel(mixture, placed=placed)) as model:
            same, logits = greedy(model)
        assert same == text
        assert (logits == row).all()


def test_one_text_or_several_are_parsed() -> None:
    assert overrides.parse("a=CPU") == overrides.parse(["a=CPU"])
    assert [o.pattern for o in overrides.parse(["a=CPU,b=CPU", "c=CPU"])] == ["a", "b", "c"]


def test_a_target_on_the_cpu_loads_with_overrides(mixture: Path) -> None:
    loaded = load_target(
        resolve_target(EngineConfig(target=str(mixture), draft=None, cpu_moe=True))
    )
    with closing(loaded.model):
        assert (loaded.placement, loaded.num_context) == (Placement.CPU, 512)


def test_llama_cpp_gets_a_list_that_ends_with_an_empty_entry(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the options: of several patterns that match, the first counts."""
    lib = library.load()
    seen: list[Any] = []

    def load(path: bytes, params: Any) -> None:
        address = params.tensor_buft_overrides
        entries = (overrides._Entry * 5).from_address(address)
        seen.extend((entry.pattern, bool(entry.buft)) for entry in entries)

    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    config = EngineConfig(override_tensor=("up=CPU,down=CPU",), n_cpu_moe=2)
    with pytest.raises(Exception, match="cannot be loaded"):
        LlamaModel(mixture, placed=placed_tensors(config))
    first, second, *layers, end = seen
    assert (first, second) == ((b"up", True), (b"down", True))
    assert end == (None, False)
    for i, (pattern, _) in enumerate(layers):
        assert re.search(pattern.decode(), f"blk.{i}.ffn_gate_up_exps.weight")
        assert not re.search(pattern.decode(), f"blk.{i}.ffn_up_shexp.weight")
        assert not re.search(pattern.decode(), f"blk.1{i}.ffn_up_exps.weight")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cpu_moe": True}, "cpu_moe keeps experts on the CPU, and .* has none"),
        ({"n_cpu_moe": 3}, "n_cpu_moe keeps experts on the CPU"),
        ({"override_tensor": ("exsp=CPU",)}, "names 'exsp', which no tensor of .* matches"),
        ({"override_tensor": ("blk=CUDA7",)}, "names the device 'CUDA7'; choose from: CPU"),
        ({"override_tensor": ("blk",)}, "is 'blk'; write PATTERN=DEVICE"),
        ({"override_tensor": ("(a=CPU",)}, "no regular expression"),
        ({"n_cpu_moe": -1}, "n_cpu_moe is -1; use 0 or more"),
    ],
)
def test_what_cannot_be_placed_is_one_line(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        load_target(resolve_target(EngineConfig(target="smollm2-draft", draft=None, **fields)))


def test_a_pattern_that_matches_nothing_is_said_before_weights_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(library.load(), "llama_model_load_from_file", lambda *a: loaded.append(a))
    config = EngineConfig(target="smollm2-draft", override_tensor=("exsp=CPU",))
    with pytest.raises(BadOption, match="exsp"):
        load_target(resolve_target(config))
    assert not loaded


def test_a_target_partly_on_the_cpu_is_a_state_of_its_own(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = placed_tensors(MOE)
    with closing(LlamaModel(mixture, num_gpu_layers=-1, placed=placed)) as model:
        assert model.placement is Placement.CPU, "this build has no GPU"
        offloading = SimpleNamespace(
            llama_supports_gpu_offload=lambda: True, llama_model_n_layer=lambda handle: 3
        )
        lib, model.lib = model.lib, offloading
        try:
            assert model.placement is Placement.SPLIT
            model._placed = ()
            assert model.placement is Placement.ELSEWHERE
            model._num_gpu_layers = 2
            assert model.placement is Placement.SPLIT
            model._num_gpu_layers = 0
            assert model.placement is Placement.CPU
        finally:
            model.lib = lib


def test_the_struct_is_two_pointers() -> None:
    assert ctypes.sizeof(overrides._Entry) == 2 * ctypes.sizeof(ctypes.c_void_p)
    assert resolve("smollm2-draft").path.exists()


@pytest.mark.parametrize("own", [None, "32"])
def test_weights_on_the_cpu_go_to_a_gpu_for_prompts_only(
    own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp's limit of rows, read as its devices are opened, unless the user has set one."""
    name = "GGML_OP_OFFLOAD_MIN_BATCH"
    monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(name, own)
    library._prepare_environment()
    found = os.environ[name]
    assert found == own if own else MOST_ROWS < int(found) <= NUM_PIECE
