"""A tiny random model in safetensors, with the vocabulary of the shipped draft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from duodec.backends.llamacpp.model import LlamaModel
from duodec.models import resolve

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[LlamaModel]:
    """llama.cpp's, of the shipped draft."""
    model = LlamaModel(resolve("smollm2-draft").path, vocabulary_only=True, num_gpu_layers=0)
    yield model
    model.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: LlamaModel) -> Path:
    """A tiny random model with the vocabulary of the shipped draft, in bfloat16."""
    import torch
    import transformers
    from tokenizers import pre_tokenizers

    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=vocabulary.num_vocab, **SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = [2, 5]
    model.save_pretrained(path)
    draft = resolve("smollm2-draft").path
    tokenizer = transformers.AutoTokenizer.from_pretrained(draft.parent, gguf_file=draft.name)
    # as in SmolLM2's own tokenizer.json; a GGUF file tells transformers nothing of it
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.save_pretrained(path)
    return path
