"""Models of transformers as targets: which are taken, and tiny ones for the other tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import torch
import transformers

from duodec.backends.torch.fusing import fuse
from duodec.backends.torch.network import Network
from duodec.backends.torch.target import MAX_WIDTH, TorchScores, TorchTarget
from duodec.core.draft import Draft
from duodec.core.protocols import Query
from duodec.core.sampling import Sampler, SamplingParams
from duodec.errors import BadOption, DuodecError, ModelUnreadable

NUM_VOCAB = 96
SIZES = {
    "vocab_size": NUM_VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
KINDS = ("llama", "qwen2")


def build(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A random model of a kind that transformers knows."""
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@cache
def oracle(kind: str) -> Any:
    """The same in float64, computed by transformers alone."""
    return build(kind).double()


def target_of(kind: str, **options: Any) -> TorchTarget:
    """A target over a model of its own, always with the same weights, fused as on a GPU."""
    settings = {"num_context": 400, "num_rows": 16, "num_chunk": 32, **options}
    model = build(kind)
    fuse(model)
    return TorchTarget(Network(model), **settings)


def logits(target: TorchTarget, *queries: Query) -> list[torch.Tensor]:
    """The rows of each query: (rows, vocab)."""
    answers = []
    for scores in target.score(queries):
        assert isinstance(scores, TorchScores)
        answers.append(scores.logits)
    return answers


def query_of(text: Any, draft: Draft | None = None, *, num_prompt: int = 0, slot: int = 0) -> Query:
    """A query whose sampler says where the prompt ends."""
    sampler = Sampler(SamplingParams(), num_prompt_tokens=num_prompt)
    return Query(slot, np.array(text, dtype=np.int32), draft or Draft(), sampler)


def random_text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(NUM_VOCAB, size=length).tolist()


def random_tree(rng: np.random.Generator, num_paths: int, depth: int, num_tokens: int = 4) -> Draft:
    """Paths over few tokens, so that they share beginnings."""
    return Draft.sequences(
        rng.integers(num_tokens, size=rng.integers(1, depth + 1)).tolist() for _ in range(num_paths)
    ).within(MAX_WIDTH, depth)


def oracle_rows(kind: str, text: list[int], draft: Draft) -> np.ndarray:
    """Logits after the text and after each node, each branch as a plain sequence, in float64."""
    rows = []
    with torch.inference_mode():
        for node in range(-1, len(draft)):
            tokens = torch.tensor([[*text, *draft.path_tokens(node)]])
            rows.append(oracle(kind)(tokens).logits[0, -1].numpy())
    return np.stack(rows)


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
    with pytest.raises(ModelUnreadable, match="other logits"):
        Network(build("llama"))
    assert issubclass(ModelUnreadable, DuodecError)
