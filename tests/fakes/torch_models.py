"""Build tiny random torch models, and the rows that transformers computes of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec_torch.forward.fusing import fuse
from duodec_torch.forward.network import Network
from duodec_torch.target import MAX_WIDTH, TorchScores, TorchTarget

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
_ONE_OF_EACH = ["sliding_attention", "full_attention"]
CHANGES: dict[str, dict[str, Any]] = {  # windows within the tail that a row lists, and beyond it
    "gemma2": {"head_dim": 8, "sliding_window": 60, "attn_logit_softcapping": 3.0},
    "gemma3_text": {"head_dim": 8, "sliding_window": 20, "layer_types": _ONE_OF_EACH},
    "mistral": {"sliding_window": 300},
}
WINDOWED = tuple(CHANGES)
LARGE = [  # ways to draw from large vocabularies
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(temperature=1.5, min_p=0.02),
    SamplingParams(temperature=1.0, top_k=4000, top_p=0.99),
    SamplingParams(temperature=0.8, top_k=50, repetition_penalty=1.2),
    SamplingParams(temperature=3.0),
]


def build(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A random model of a kind that transformers knows."""
    config = transformers.AutoConfig.for_model(
        kind, **{**SIZES, **CHANGES.get(kind, {}), **changes}
    )
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@cache
def oracle(kind: str) -> Any:
    """The same in float64, computed by transformers alone."""
    return build(kind).double()


def target_of(kind: str, **options: Any) -> TorchTarget:
    """A target over a model of its own, always with the same weights, fused as on a GPU."""
    settings = {"num_context": 400, "widths": Widths.only(16), "num_chunk": 32, **options}
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
