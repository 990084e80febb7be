"""Models of transformers as targets: which are taken, and which are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import numpy as np
import torch
import transformers
from fakes.torch_models import (
    NUM_VOCAB,
    WINDOWED,
    build,
    logits,
    query_of,
    random_text,
    random_tree,
)

from duodec.errors import BadOption, DuodecError, ModelUnreadable
from duodec_torch.forward.network import Network
from duodec_torch.target import TorchTarget

# --- what is refused

REFUSED = {
    "chunks of attention": (
        "qwen2",
        {"layer_types": ["chunked_attention", "full_attention"]},
        "chunked_attention",
    ),
    "a window that its attention is not told": (
        "llama",
        {"sliding_window": 64},
        "windows of 64, 64 and tells its attention none",
    ),
    "recurrent layers": ("mamba", {}, "mamba"),
    "a rotation that follows the length": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "dynamic rotary",
    ),
    "an attention of its own": ("bloom", {}, "AttentionInterface"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_models_that_cannot_be_scored_as_trees_are_refused(what: str) -> None:
    kind, changes, words = REFUSED[what]
    with pytest.raises(ModelUnreadable, match=words) as error:
        Network(build(kind, **changes))
    assert "\n" not in str(error.value)


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=1)
    config.num_heads = 4
    model = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(ModelUnreadable, match="encoder-decoder"):
        Network(model)


def test_a_mixture_of_experts_has_no_exact_widths() -> None:
    model = build("mixtral", sliding_window=None, num_local_experts=4)
    network = Network(model)
    with pytest.raises(BadOption, match="`fast=True`"):
        TorchTarget(network, num_context=64)
    TorchTarget(network, num_context=64, is_width_exact=False, num_chunk=32).close()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gpt2", "phi", *WINDOWED])
def test_attention_is_taken_and_given_back(kind: str) -> None:
    model = build(kind)
    before = model.config._attn_implementation
    network = Network(model)
    assert network.num_layers == 2
    assert network.num_vocab == NUM_VOCAB
    assert model.config._attn_implementation != before
    network.close()
    assert model.config._attn_implementation == before


def test_windows_in_some_layers_and_sinks_are_scored_as_the_model_does() -> None:
    """gpt-oss, whose mixture of experts allows no exact widths."""
    model = build("gpt_oss", num_local_experts=4, head_dim=8, sliding_window=60)
    oracle = build("gpt_oss", num_local_experts=4, head_dim=8, sliding_window=60)
    for own in (model, oracle):
        for layer in own.model.layers:
            layer.self_attn.sinks.data = torch.linspace(-1, 2, 4).to(own.dtype)
    target = TorchTarget(Network(model), num_context=400, is_width_exact=False, num_chunk=32)
    text, draft = random_text(150), random_tree(np.random.default_rng(3), 4, 5)
    (rows,) = logits(target, query_of(text, draft, num_prompt=140))
    with torch.inference_mode():
        for node in range(-1, len(draft)):
            own = oracle(torch.tensor([[*text, *draft.path_tokens(node)]])).logits[0, -1]
            assert (rows[node + 1] - own).abs().max() < 1e-3
    target.close()


def test_layers_of_different_shapes_are_refused() -> None:
    model = build("llama")
    attention = model.model.layers[1].self_attn
    attention.k_proj, attention.v_proj = (torch.nn.Linear(32, 32, bias=False) for _ in range(2))
    attention.num_key_value_groups = 1
    with pytest.raises(ModelUnreadable, match="layers of different shapes"):
        Network(model)


def test_a_refused_model_keeps_its_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    before = model.config._attn_implementation
    monkeypatch.setattr(Network, "check_logits", lambda self, expected: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Network(model)
    assert model.config._attn_implementation == before


def test_other_logits_than_the_models_own_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scaling that gets lost, say."""
    from duodec_torch.forward import attention

    right = attention.Masked.attend
    monkeypatch.setattr(
        attention.Masked,
        "attend",
        lambda self, *cells: right(self, *cells[:3], attention.Scoring(1.0)),
    )
    with pytest.raises(ModelUnreadable, match="different logits"):
        Network(build("llama"))
    assert issubclass(ModelUnreadable, DuodecError)
