"""Models of transformers as targets: which are taken, and which are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import transformers
from fakes.torch_models import NUM_VOCAB, build

from duodec.backends.torch.network import Network
from duodec.backends.torch.target import TorchTarget
from duodec.errors import BadOption, DuodecError, ModelUnreadable

# --- what is refused

REFUSED = {
    "a sliding window": ("mistral", {"sliding_window": 64}, "SlidingWindow"),
    "windows in some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        "sliding",
    ),
    "soft-capped attention": (
        "gemma2",
        {"layer_types": ["full_attention"] * 2, "head_dim": 8},
        "soft-caps",
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
    with pytest.raises(BadOption, match="--fast"):
        TorchTarget(network, num_context=64)
    TorchTarget(network, num_context=64, is_width_exact=False, num_chunk=32).close()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gpt2", "phi"])
def test_full_attention_is_taken_and_given_back(kind: str) -> None:
    changes = {"sliding_window": None} if kind == "mistral" else {}
    model = build(kind, **changes)
    before = model.config._attn_implementation
    network = Network(model)
    assert network.num_layers == 2
    assert network.num_vocab == NUM_VOCAB
    assert model.config._attn_implementation != before
    network.close()
    assert model.config._attn_implementation == before


def test_a_refused_model_keeps_its_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    before = model.config._attn_implementation
    monkeypatch.setattr(Network, "_check_logits", lambda self, expected: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Network(model)
    assert model.config._attn_implementation == before


def test_other_logits_than_the_models_own_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scaling that gets lost, say."""
    from duodec.backends.torch import attention

    right = attention.Masked.attend
    monkeypatch.setattr(
        attention.Masked, "attend", lambda self, q, k, v, scaling: right(self, q, k, v, 1.0)
    )
    with pytest.raises(ModelUnreadable, match="different logits"):
        Network(build("llama"))
    assert issubclass(ModelUnreadable, DuodecError)
