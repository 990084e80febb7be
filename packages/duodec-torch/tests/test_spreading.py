"""A model over several GPUs, as far as a machine without one can tell.

Where layers go is arithmetic. That everything crosses with them is shown on fake tensors (see
fakes/gpus.py). That real GPUs give the same numbers is left to test_gpu.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from fakes import TESTS
from fakes.decoding import proven
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import torch
from fakes.torch_models import NUM_VOCAB, build

from duodec_torch.forward.forwards import Forwards
from duodec_torch.forward.graphs import Queue
from duodec_torch.forward.network import Network
from duodec_torch.forward.spreading import blocks, spread

# --- where layers go


def test_the_blocks_of_a_model_are_its_layers_and_what_is_around_them() -> None:
    model = build("llama")
    first, *layers, last = blocks(model)
    assert first.names == ("model.embed_tokens", "model.rotary_emb")
    assert [block.names for block in layers] == [("model.layers.0",), ("model.layers.1",)]
    assert last.names == ("model.norm", "lm_head")
    assert [block.num_layers for block in (first, *layers, last)] == [0, 1, 1, 0]
    assert sum(block.num_params for block in blocks(model)) == model.num_parameters()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_weights_of_both_ends_lie_with_the_last_and_count_once(kind: str) -> None:
    model = build(kind, tie_word_embeddings=True)
    first, *_, last = blocks(model)
    assert first.num_params == 0
    assert "lm_head" in last.names
    assert last.num_params >= model.get_input_embeddings().weight.numel()
    assert sum(block.num_params for block in blocks(model)) == model.num_parameters()


@pytest.mark.parametrize(
    ("sizes", "free", "expected"),
    [
        ([5, 5, 5, 5], [100], (0, 0, 0, 0)),
        ([5, 5, 5, 5], [20, 20], (0, 0, 1, 1)),
        ([5, 5, 5, 5], [30, 10], (0, 0, 0, 1)),
        ([5, 5, 5, 5], [0, 20], (1, 1, 1, 1)),
        ([5, 5, 5, 5], [10, 9], None),
        ([5, 50], [40, 40], None),
    ],
)
def test_layers_go_where_there_is_room(sizes: Any, free: Any, expected: Any) -> None:
    assert spread(sizes, free) == expected


@proven
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=12),
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_no_device_is_overfilled_and_the_order_is_kept(sizes: list[int], free: list[int]) -> None:
    found = spread(sizes, free)
    if found is None:
        assert sum(sizes) > min(free) or max(sizes) > max(free)
        return
    assert list(found) == sorted(found)
    for device, room in enumerate(free):
        assert sum(s for s, d in zip(sizes, found, strict=True) if d == device) <= room


# --- what crosses with them


@pytest.fixture(scope="module")
def seen() -> Any:
    """What `fakes.gpus` saw."""
    done = subprocess.run(
        [sys.executable, "-m", "fakes.gpus"],
        cwd=TESTS,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "phi"])
def test_all_that_a_layer_needs_crosses_with_it(kind: str, seen: Any) -> None:
    assert seen["forward"][kind] == {
        "devices": ["toy:0", "toy:1"],
        "layers": ["toy:0", "toy:1", "toy:1"],
        "logits": ["toy:1", 2, NUM_VOCAB],
        "layers in few launches": 3 if kind in ("llama", "qwen2") else 0,
    }


def test_without_the_movers_devices_are_mixed(seen: Any) -> None:
    assert "same device" in seen["without movers"]


def test_each_tensor_crosses_once_a_forward(seen: Any) -> None:
    # tokens and positions to the first; hidden states, cosines, sines and positions to the last
    assert seen["crossings"] <= 6


def test_the_host_waits_once_a_round(seen: Any) -> None:
    """For the draws, and not before their result is wanted: until then the device was only told
    what to do. Nothing else is looked at, or copied from device to device."""
    assert len(seen["waits"]) == 8
    once = ["copy", "launched", "to_host"]
    assert all(waits == once for waits in seen["waits"].values()), seen["waits"]


def test_a_closed_network_leaves_no_movers(seen: Any) -> None:
    assert seen["hooks left"] == 0


def test_a_layer_that_is_split_itself_is_refused(seen: Any) -> None:
    assert "model.layers.0 on 2 devices; spread whole layers" in seen["split layer"]


def test_no_graph_is_tried_across_devices_and_one_line_says_so() -> None:
    model, warnings = build("llama"), list[str]()
    network, queue = Network(model), Queue(torch.device("cpu"))
    cache = network.cache(64)
    network.devices = (network.device, torch.device("cuda:1"))
    queue.is_cuda = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
        patch.setattr(torch.cuda, "Event", object)
        patch.setattr(torch, "zeros", lambda *_, **__: torch.empty(1))
        forwards = Forwards(
            network, cache, queue, max_rows=8, max_logits=8, on_warning=warnings.append
        )
    assert warnings == [
        "CUDA graphs are off, decoding will be slower: the model is spread over 2 GPUs"
    ]
    runs: list[int] = []
    forwards._graphs.run("key", lambda: runs.append(1))
    assert runs == [1]
