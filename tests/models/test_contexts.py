"""How long a context is: what the model was trained for, as far as memory holds it."""

from __future__ import annotations

import ctypes
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duodec.backends.llamacpp import devices, library
from duodec.backends.llamacpp import load as llama
from duodec.backends.llamacpp.footprint import Footprint
from duodec.backends.llamacpp.gguf.header import Header, ggml
from duodec.backends.llamacpp.gguf.overrides import experts
from duodec.backends.llamacpp.load import llama_context
from duodec.backends.llamacpp.model import LlamaModel, open_context
from duodec.backends.llamacpp.target.caches import CACHE_TYPES, CacheTypes
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.core.draft import Draft
from duodec.core.targets import Query
from duodec.errors import BadOption, ContextExceeded
from duodec.loading import backends
from duodec.loading.config import EngineConfig
from duodec.loading.load import load_target
from duodec.loading.resolve import resolve_target
from duodec.machine import memory
from duodec.models import resolve

GIB = 1 << 30
# 4 GiB of weights, 131,072 bytes of cache a token in fp16
LARGE = Header("llama", 1000, 131072, (128, 128), (8,) * 32, {"blk.0.ffn_up_exps": 4 * GIB})


def header_of(name: str = "smollm2-draft") -> Header:
    header = Header.read(library.load(), resolve(name).path)
    assert header is not None
    return header


def context(
    free_bytes: int, *, asked: int | None = None, num_slots: int = 1, **cache: str
) -> tuple[int, list[str]]:
    said: list[str] = []
    footprint = Footprint.of(library.load(), LARGE, CacheTypes(**cache), num_slots)
    return llama_context(asked, LARGE, footprint, free_bytes, said.append), said


# --- how long


def test_a_context_is_as_long_as_the_model_was_trained_for_where_memory_is_ample() -> None:
    assert context(64 * GIB) == (131072, [])


def test_short_memory_cuts_it_and_says_so_in_one_line() -> None:
    num_context, (line,) = context(12 * GIB)
    assert 30000 < num_context < 32768, "half of what weights leave"
    assert num_context % 256 == 0
    assert f"the context is {num_context} tokens of the 131072" in line
    assert "`context`" in line
    assert context(2 * GIB)[0] == 2048, "weights of a file are read again at need"


def test_smaller_formats_hold_more_and_slots_hold_less() -> None:
    plain, _ = context(12 * GIB)
    assert context(12 * GIB, keys="q8_0", values="q8_0")[0] > 1.8 * plain
    assert context(12 * GIB, num_slots=4)[0] == pytest.approx(plain / 5, abs=256)


def test_a_context_that_does_not_fit_is_refused_with_what_would() -> None:
    assert context(12 * GIB, asked=65536) == (65536, [])
    with pytest.raises(ContextExceeded, match=r"memory holds caches of \d+ tokens; use \d+ or"):
        context(12 * GIB, asked=131072)
    with pytest.raises(ContextExceeded, match="trained for 131072 tokens"):
        context(900 * GIB, asked=131073)


def test_it_is_refused_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "available_bytes", lambda: 50_000_000)
    monkeypatch.setattr(llama, "LlamaModel", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ContextExceeded, match="memory holds"):
        load_target(resolve_target(EngineConfig(target="smollm2-draft", draft=None, context=8000)))


GPUS = {"CUDA0": 9 * GIB, "CUDA1": 11 * GIB, "CUDA2": 3 * GIB}  # free bytes


class Loaded(Exception):
    """That weights would be read now, on these devices."""


def loaded_on(
    monkeypatch: pytest.MonkeyPatch,
    free: dict[str, int] = GPUS,
    integrated: tuple[str, ...] = (),
    **options: Any,
) -> list[str]:
    """The devices that a model of 4 GiB is loaded on; an empty list leaves it to llama.cpp."""
    found = [devices.Device(name, "", name in integrated) for name in free]

    def load(*_: Any, on: list[devices.Device], **__: Any) -> None:
        raise Loaded([device.name for device in on])

    monkeypatch.setattr(devices, "every", lambda lib: found)
    monkeypatch.setattr(
        devices, "free_bytes",
        lambda lib, chosen=(): sum(free[device.name] for device in chosen or found),
    )  # fmt: skip
    monkeypatch.setattr(llama, "can_offload", lambda: True)
    monkeypatch.setattr(llama.Header, "read", lambda lib, path: LARGE)
    monkeypatch.setattr(llama, "LlamaModel", load)
    with pytest.raises(Loaded) as caught:
        llama.load(Path("model.gguf"), EngineConfig(draft=None, **options), lambda line: None)
    (names,) = caught.value.args
    return list(names)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_one_card_is_taken_where_it_is_enough(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded_on(monkeypatch, device=device) == ["CUDA1"], "that with most free memory"
    assert loaded_on(monkeypatch, device=device, context=65536) == ["CUDA1", "CUDA0"]
    both = {"CUDA0": 3 * GIB, "CUDA1": 3 * GIB}
    every = [] if device == "auto" else ["CUDA0", "CUDA1"]
    assert loaded_on(monkeypatch, both, device=device) == every, "it needs all"
    untold = {"CUDA0": 0, "CUDA1": 0}
    assert loaded_on(monkeypatch, untold, device=device) == every, "no driver tells"


def test_cards_that_are_named_are_all_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded_on(monkeypatch, device="cuda:0,cuda:1") == ["CUDA0", "CUDA1"]
    assert loaded_on(monkeypatch, device="CUDA0") == ["CUDA0"]


def test_a_card_comes_before_what_shares_the_machines_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {"Vulkan0": 60 * GIB, "Vulkan1": 9 * GIB, "Vulkan2": 8 * GIB}
    assert loaded_on(monkeypatch, both, ("Vulkan0",)) == ["Vulkan1"]
    assert loaded_on(monkeypatch, {"Vulkan0": 60 * GIB}, ("Vulkan0",)) == []


def test_a_context_that_a_gpu_does_not_hold_besides_the_weights_is_refused_before_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = {"CUDA0": 9 * GIB}
    assert loaded_on(monkeypatch, one, context=32768) == []
    with pytest.raises(
        ContextExceeded, match=r"GPU memory holds caches of (\d+) tokens; use \1 or"
    ):
        loaded_on(monkeypatch, one, context=65536)
    with pytest.raises(ContextExceeded, match=r"hold no caches besides 4.3 GB.*`gpu_layers`"):
        loaded_on(monkeypatch, {"CUDA0": 3 * GIB}, context=4096)
    assert loaded_on(monkeypatch, {"CUDA0": 3 * GIB}, context=4096, gpu_layers=8) == []
    assert loaded_on(monkeypatch, one, context=9200, num_slots=4) == [], "four caches, not five"


def test_a_gpu_holds_what_is_placed_on_it() -> None:
    whole = Footprint.of(library.load(), LARGE, CacheTypes())
    assert whole.on_gpu(LARGE, [], -1) == replace(whole, fixed_bytes=4 * GIB)
    half = whole.on_gpu(LARGE, [], 16)
    assert half.weight_bytes == 2 * GIB
    assert half.cache_bytes_per_token == whole.cache_bytes_per_token // 2
    assert whole.on_gpu(LARGE, experts(None), -1).weight_bytes == 0


def test_the_estimate_of_a_cache_is_llama_cpps() -> None:
    header = header_of()
    cache = CacheTypes().bytes_per_token(library.load(), header)
    with closing(LlamaModel(resolve("smollm2-draft").path, num_gpu_layers=0)) as model:
        assert cache == model.cache_bytes_per_token


# --- memory


def limit(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in files.items():
        (folder / name.replace("__", ".")).write_text(words)


def test_a_containers_limit_counts_and_what_is_kept_of_files_is_free(tmp_path: Path) -> None:
    membership, groups = tmp_path / "membership", tmp_path / "groups"
    machine = memory.available_bytes(membership, groups)
    membership.write_text("0::/pod/box\n")
    limit(groups / "pod", memory__max="9000", memory__current="8000", memory__stat="file 7500\n")
    limit(groups / "pod/box", memory__max="max", memory__current="1")
    assert memory.available_bytes(membership, groups) == 8500
    limit(groups / "pod/box", memory__max="1000", memory__current="400")
    assert memory.available_bytes(membership, groups) == 600
    membership.write_text("3:cpu:/a\n4:cpuset,memory:/b\n")
    limit(
        groups / "memory/b",
        memory__limit_in_bytes="5000",
        memory__usage_in_bytes="4000",
        memory__stat="cache 1\ntotal_cache 500\n",
    )
    assert memory.available_bytes(membership, groups) == 1500
    membership.write_text("")
    assert memory.available_bytes(membership, groups) == pytest.approx(machine, rel=0.2)


# --- formats


def rows(width: int, **cache: str) -> np.ndarray:
    """The last rows of a text, so many in each forward pass."""
    path, num_tokens = resolve("smollm2-draft").path, 48
    with closing(LlamaModel(path, num_gpu_layers=0, cache=CacheTypes(**cache))) as model:
        text = model.tokenize("One, two, three, four, five. " * 9, is_templated=False)[:num_tokens]
        with closing(LlamaTarget(model, num_context=256, num_threads=1)) as target:
            found: list[np.ndarray] = []
            for i in range(num_tokens - 16, num_tokens, width):
                draft = Draft.chain(text[i + 1 : i + width])
                (scores,) = target.score([Query(0, np.array(text[: i + 1], np.int32), draft)])
                assert isinstance(scores, LlamaScores)
                found += [row.copy() for row in scores.rows]
    return np.stack(found)


@pytest.mark.parametrize(
    "cache", [{}, {"keys": "q8_0", "values": "q8_0"}, {"keys": "q4_0", "values": "f16"}], ids=str
)
def test_bits_are_the_same_at_every_width_in_formats_that_are_said_to_be_exact(
    cache: dict[str, str],
) -> None:
    alone = rows(1, **cache)
    for width in (2, 4, 8, 16):
        assert (rows(width, **cache) == alone).all(), width


def test_a_format_that_is_asked_for_is_used() -> None:
    assert (rows(1) == rows(1, keys="bf16", values="f16")).all()
    other = [rows(1, keys=name, values=name) for name in ("f16", "q8_0", "q4_0", "iq4_nl")]
    for i, found in enumerate(other):
        assert all((found != later).any() for later in other[i + 1 :])


@pytest.mark.parametrize(
    ("cache", "change", "words"),
    [
        ({"keys": "q8_0"}, {"head_sizes": (80, 80)}, "cache_type_k is q8_0, whose blocks of 32"),
        ({"values": "q4_0"}, {"head_sizes": (64, 40)}, "cache_type_v is q4_0, whose blocks"),
        ({"values": "q8_0"}, {"architecture": "grok"}, "needs flash attention.*use f16"),
    ],
)
def test_what_attention_cannot_use_is_one_line(
    cache: dict[str, str], change: dict[str, Any], words: str
) -> None:
    header = Header(**{**vars(LARGE), **change})
    with pytest.raises(BadOption, match=words):
        CacheTypes(**cache).check(library.load(), header)
    CacheTypes(keys="f16").check(library.load(), header)


def test_quantised_values_without_flash_attention_are_refused() -> None:
    cache = CacheTypes(values="q8_0")
    path = resolve("smollm2-draft").path
    with (
        closing(LlamaModel(path, num_gpu_layers=0, cache=cache)) as model,
        pytest.raises(BadOption, match="cache_type_v is q8_0, which needs flash attention"),
    ):
        open_context(
            model, num_context=64, num_sequences=1, num_threads=1, num_batch=64, max_rows=1,
            is_width_exact=False, uses_flash_attention=False,
        )  # fmt: skip


def test_formats_are_ggmls() -> None:
    name = ggml(library.load(), "ggml_type_name", ctypes.c_char_p, ctypes.c_int)
    for kind in CACHE_TYPES[1:]:
        assert name(CacheTypes(kind, kind).numbers()[0]) == kind.encode()


def test_torch_refuses_what_only_llama_cpp_has() -> None:
    for fields in ({"cache_type_k": "q8_0"}, {"cpu_moe": True}, {"override_tensor": ("a=CPU",)}):
        config = EngineConfig(target_backend="torch", **fields)  # type: ignore[arg-type]
        with pytest.raises(BadOption, match=r"which only llama\.cpp can serve"):
            backends.named("torch").check(config)
