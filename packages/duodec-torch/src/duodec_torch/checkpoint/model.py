"""Load a causal language model of transformers: weights on their devices, vocabulary, facts."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.translation.recipe import VocabularyRecipe
from duodec.core.special_tokens import SpecialTokens, Spelled
from duodec.errors import ModelUnreadable
from duodec_torch.checkpoint.blueprint import Blueprint, name_of, num_context_train
from duodec_torch.checkpoint.configuration import Source, read_config
from duodec_torch.checkpoint.rope import add_rope
from duodec_torch.checkpoint.tokenizer import FolderTokenizer
from duodec_torch.checkpoint.weights import read_weights
from duodec_torch.library import torch, transformers


class TorchModel:
    """A model in a folder with config.json and safetensors, or in a GGUF file, dequantised, loaded
    according to its blueprint. No code that comes with a model is executed. Raises ModelUnreadable.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        path = self.path = blueprint.source.path
        self.config, self.place, self.need = blueprint.config, blueprint.place, blueprint.need
        self.vocabulary: FolderTokenizer | LlamaModel
        if blueprint.source.is_gguf:
            self.vocabulary = self._gguf_vocabulary()
        else:
            self.vocabulary = FolderTokenizer.open(path, self._num_rows, _ends(path, self.config))
        self.chat_template: str | None = self.vocabulary.chat_template
        self.causal_lm: Any = read_weights(blueprint)

    def _gguf_vocabulary(self) -> LlamaModel:
        """llama.cpp's vocabulary, with the parts of the file that transformers ignores."""
        vocabulary = LlamaModel(self.path, vocabulary_only=True, num_gpu_layers=0)
        kind = vocabulary.metadata("general.architecture")
        add_rope(
            self.path,
            self.config,
            vocabulary.metadata(f"{kind}.rope.scaling.type"),
            vocabulary.metadata(f"{kind}.rope.scaling.factor"),
        )
        if vocabulary.num_vocab != self._num_rows:
            raise ModelUnreadable(
                f"{self.path} has {vocabulary.num_vocab} tokens and {self._num_rows} rows of "
                "logits; use it with `target_backend=llama.cpp`"
            )
        return vocabulary

    def close(self) -> None:
        """Free the weights; no target may be in use. Can be called twice."""
        self.causal_lm = None
        if isinstance(self.vocabulary, LlamaModel):
            self.vocabulary.close()
        gc.collect()
        if not self.place.is_on_cpu:
            torch.cuda.empty_cache()

    # What it is

    @property
    def _text_config(self) -> Any:
        return self.config.get_text_config(decoder=True)

    @property
    def _num_rows(self) -> int:
        return int(self._text_config.vocab_size)

    @property
    def num_context_train(self) -> int:
        """Positions that the model was trained for."""
        return num_context_train(self.config)

    @property
    def num_layers(self) -> int:
        return int(self._text_config.num_hidden_layers)

    @property
    def num_params(self) -> int:
        """The number of weights; shared ones count once."""
        return self.need.sizes.num_params

    @property
    def num_bytes(self) -> int:
        """The weights' bytes, in the number format of the computation."""
        return int(self.num_params * self.place.dtype.itemsize)

    @property
    def is_read(self) -> bool:
        """True: all weights are in memory."""
        return True

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of every layer."""
        return int(self.num_layers * self.need.sizes.cached * self.place.dtype.itemsize)

    @property
    def architecture(self) -> str:
        return str(self.config.model_type)

    @property
    def license(self) -> str | None:
        """The weights' licence, if the file names it."""
        if isinstance(self.vocabulary, LlamaModel):
            return self.vocabulary.license
        return None

    @property
    def description(self) -> str:
        return f"{self.architecture} {self.num_params / 1e6:.0f}M {self.place.dtype_name}"

    @property
    def name(self) -> str:
        if isinstance(self.vocabulary, LlamaModel):
            return self.vocabulary.name
        return name_of(self.config, self.path)

    # Its vocabulary

    def by_value(self) -> VocabularyRecipe:
        """Its vocabulary, for another process to load."""
        return self.vocabulary.by_value()

    @property
    def num_vocab(self) -> int:
        return self.vocabulary.num_vocab

    @property
    def bos(self) -> int:
        return self.vocabulary.bos

    @property
    def eos(self) -> int:
        return self.vocabulary.eos

    def is_end(self, token: int) -> bool:
        """Whether a token ends the completion."""
        return self.vocabulary.is_end(token)

    def token_text(self, token: int) -> bytes:
        """The vocabulary's own entry for a token, spelled as llama.cpp spells it."""
        return self.vocabulary.token_text(token)

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        """Tokens of a text; see `LlamaModel.tokenize`."""
        return self.vocabulary.tokenize(text, is_templated=is_templated)

    def tokenize_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        """Tokens of a templated text in which these are the only control tokens."""
        return self.vocabulary.tokenize_around(text, controls)

    @property
    def controls(self) -> SpecialTokens:
        """Tokens that direct the model: no text of a user may spell them."""
        return self.vocabulary.controls

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text; none for control tokens."""
        return self.vocabulary.piece(token)


def vocabulary_of(folder: Path) -> FolderTokenizer:
    """A folder's vocabulary, without its weights. Raises ModelUnreadable."""
    config = read_config(Source(folder))
    num_rows = int(config.get_text_config(decoder=True).vocab_size)
    return FolderTokenizer.open(folder, num_rows, _ends(folder, config))


def _ends(folder: Path, config: Any) -> frozenset[int]:
    """Tokens that end a completion, as the model's configurations list them."""
    found: set[int] = set()
    listed = [getattr(config, "eos_token_id", None)]
    if (folder / "generation_config.json").is_file():
        generation = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
        listed.append(generation.eos_token_id)
    for tokens in listed:
        found.update([tokens] if isinstance(tokens, int) else tokens or ())
    return frozenset(found)
