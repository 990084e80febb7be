"""What a target takes of memory, and what would fit where it does not: arithmetic, no weights."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import torch
from fakes.torch_models import build
from fakes.torch_peak import peak_bytes

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query
from duodec.errors import ModelUnreadable
from duodec_torch.checkpoint.memory import Extent, Need, sizes_of
from duodec_torch.checkpoint.placing import DevicePlacement
from duodec_torch.forward.attention import Rows, Scoring, TextWindow
from duodec_torch.forward.network import Network
from duodec_torch.forward.spreading import Block, blocks
from duodec_torch.sampling.draws import draw
from duodec_torch.target import TorchTarget

GB = 10**9
LAYERS = [Block((f"layer{i}",), 233_000_000, 1) for i in range(28)]
SIZES = replace(  # of Qwen2.5-7B
    sizes_of(build("llama").config, ()),
    blocks=(Block(("embed",), 545_000_000, 0), *LAYERS, Block(("head",), 545_000_000, 0)),
    cached=1024,
    width=3584,
    inner=18944,
    group=7,
    num_vocab=152_064,
)
NEED = Need("toy", SIZES, num_context=8192)
ONE, TWO = (
    DevicePlacement(("cuda:0",), torch.bfloat16),
    DevicePlacement(("cuda:0", "cuda:1"), torch.bfloat16),
)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Toy")


def free_memory(monkeypatch: pytest.MonkeyPatch, **free: float) -> None:
    """So many GB on each device: ``cuda_1=...``."""
    monkeypatch.setattr(
        DevicePlacement,
        "free_bytes",
        property(lambda place: tuple(int(free[d.replace(":", "_")] * GB) for d in place.devices)),
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(24, 24, {"cuda:0"}), (5, 24, {"cuda:1"}), (10, 12, {"cuda:0", "cuda:1"})],
)
def test_a_model_goes_to_as_few_gpus_as_hold_it(
    monkeypatch: pytest.MonkeyPatch, first: float, second: float, expected: set[str]
) -> None:
    free_memory(monkeypatch, cuda_0=first, cuda_1=second)
    place, layout = NEED.settle([ONE, DevicePlacement(("cuda:1",), torch.bfloat16), TWO])
    assert set(layout.values()) == set(place.devices) == expected
    assert (layout["embed"], layout["head"]) == (min(expected), max(expected))


def test_a_list_of_gpus_is_filled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, cuda_0=80, cuda_1=80)
    _, layout = NEED.settle([TWO])
    counts = [list(layout.values()).count(device) for device in TWO.devices]
    assert min(counts) >= 12


@pytest.mark.parametrize(
    ("free", "changes", "dtype", "remedy"),
    [
        (16.5, {"num_context": 32768}, torch.bfloat16, r"use `context=\d+` or less$"),
        (18.0, {"num_slots": 8}, torch.bfloat16, r"use `num_slots=[2-6]`$"),
        (16.2, {"num_slots": 8}, torch.bfloat16, r"`context=\d+` or less and `num_slots=1`$"),
        (20.0, {}, torch.float32, "use `dtype=bfloat16`$"),
        (9.0, {}, torch.float32, "take a smaller model, or a quantised GGUF"),
    ],
)
def test_too_little_memory_says_what_would_fit(
    monkeypatch: pytest.MonkeyPatch, free: float, changes: dict[str, int], dtype: torch.dtype,
    remedy: str,
) -> None:  # fmt: skip
    free_memory(monkeypatch, cuda_0=free)
    need, place = replace(NEED, **changes), replace(ONE, dtype=dtype)  # type: ignore[arg-type]
    with pytest.raises(ModelUnreadable) as caught:
        need.settle([place])
    words = str(caught.value)
    assert re.search(remedy, words), words
    assert f"{free:.2f} GB free" in words
    if found := re.search(r"`context=(\d+)`", words):  # it is the most that fits
        most = int(found[1])
        assert replace(need, num_slots=1, num_context=most).layout(place)
        assert not replace(need, num_slots=1, num_context=most + 256).layout(place)
    elif found := re.search(r"`num_slots=(\d+)`", words):
        assert replace(need, num_slots=int(found[1])).layout(place)


def test_beside_weights_that_are_loaded_only_the_rest_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free_memory(monkeypatch, cuda_0=1.0)
    words = replace(NEED, num_context=32768).beside_weights().complaint(ONE)
    assert words.startswith("toy needs 1.92 GB for 32768 tokens of context and 0.")
    found = re.search(r"use `context=(\d+)` or less$", words)
    assert found is not None, words
    assert 4096 < int(found[1]) < 16384


def test_heads_take_their_weights_and_a_state_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, cuda_0=17.5)
    with_heads = replace(NEED, num_head_params=1_500_000_000)
    assert NEED.layout(ONE)
    assert not with_heads.layout(ONE)
    words = with_heads.complaint(ONE)
    assert " 3.06 GB for its heads, " in words  # 2 bytes each, and of 3,584 of some 8,800 cells
    assert words.endswith("use no heads")
    free_memory(monkeypatch, cuda_0=21)
    assert with_heads.layout(ONE)


@pytest.mark.parametrize("what", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}])
def test_draws_take_no_more_than_is_set_aside(what: dict[str, float]) -> None:
    num_rows, num_vocab = 8, 20_000
    sampler = Sampler(SamplingParams(seed=1, **what))  # type: ignore[arg-type]
    draft = Draft.chain(list(range(num_rows - 1)))
    query = Query(0, np.array([5, 9], dtype=np.int32), draft, sampler, 8)
    logits = torch.randn(num_rows, num_vocab)
    peak = peak_bytes(lambda: draw(logits, [query], lambda tensor: np.asarray(tensor)))
    need = Need("toy", replace(SIZES, num_vocab=num_vocab), 512)
    place = DevicePlacement(("cpu",), torch.float32)
    assert 0.3 < (peak + logits.nbytes) / need._draw_bytes(place) <= 1


@pytest.mark.parametrize("has_sinks", [False, True])
def test_capped_scores_take_no_more_than_is_set_aside(has_sinks: bool) -> None:
    num_kv_heads, group, num_rows, num_cells, size = 4, 2, 64, 1024, 8
    query = torch.randn(num_kv_heads, group, num_rows, size)
    keys, values = torch.randn(2, num_kv_heads, num_cells, size)
    places = torch.arange(num_rows)
    rows = Rows(places, torch.zeros_like(places), places[:, None])
    sinks = torch.zeros(num_kv_heads, group) if has_sinks else None
    plan = TextWindow(0, num_cells).plan(rows)
    peak = peak_bytes(lambda: plan.attend(query, keys, values, Scoring(0.3, 20, 5.0, sinks)))
    sizes = sizes_of(build("gemma2").config, ())
    assert sizes.num_masks == 2
    scores = group * num_rows * num_cells
    assert 0.4 < peak / (scores * (sizes.score_bytes + 1 + 4)) <= 1
    assert sizes_of(build("llama").config, ()).score_bytes == 0
    assert sizes_of(build("gpt_oss", num_local_experts=4).config, ()).score_bytes > 0


def test_a_cache_has_the_cells_that_are_counted() -> None:
    model = build("llama")
    extent = Extent.on("cpu", 300, 3)
    target = TorchTarget(Network(model), num_context=300, num_slots=3)
    sizes = sizes_of(model.config, blocks(model))
    need = Need("toy", sizes, 300, 3)
    held = sum(buffer.nbytes for buffer in target._cache.buffers.values())
    counted = sizes.num_layers * need._layer_cache_bytes(DevicePlacement(("cpu",), torch.float32))
    assert held == counted
    assert extent.num_region * 3 + extent.num_chunk == target._cache.num_cells
    target.close()
