"""A causal language model of transformers: weights on their devices, vocabulary, facts."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.torch.library import torch, transformers
from duodec.backends.torch.placing import Need, choose_place
from duodec.backends.torch.rope import add_rope
from duodec.backends.torch.tokenizer import FolderTokenizer
from duodec.backends.torch.weights import Source, outline, read_config, read_weights
from duodec.errors import ModelUnreadable

_UNKNOWN_CONTEXT = 2048  # tokens, for the few models that do not say


class TorchModel:
    """A model in a folder with config.json and safetensors, or in a GGUF file, dequantised.

    ``dtype`` and ``device`` are names or auto: on a GPU bfloat16, on the CPU the files' own or
    float32; ``num_context`` tokens of cache must fit beside the weights. Nothing that comes with
    a model is executed. Raises ModelUnreadable, BackendUnavailable and BadOption.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        num_context: int = 0,
    ) -> None:
        self.path = path
        source = Source(path)
        self.place = choose_place(device, dtype, None)  # a GPU that is not there is said at once
        self.config = read_config(source)
        if not source.is_gguf:
            self.place = choose_place(device, dtype, _dtype_of(self.config))
        self.vocabulary: FolderTokenizer | LlamaModel
        if source.is_gguf:
            self.vocabulary = self._gguf_vocabulary()
        else:
            self.vocabulary = FolderTokenizer.open(path, self._num_rows, _ends(path, self.config))
        outlined = outline(self.config)
        self.num_params = sum(parameter.numel() for parameter in outlined.parameters())
        need = Need(
            self.name,
            self.num_params,
            self.cache_bytes_per_token,
            min(num_context, self.num_context_train),
        )
        need.check(self.place)
        self.causal_lm: Any = read_weights(source, self.config, self.place, need)

    def _gguf_vocabulary(self) -> LlamaModel:
        """llama.cpp's own, and what else transformers overlooks in the file."""
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
                "logits; use it with --target-backend llama.cpp"
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
        return int(getattr(self._text_config, "max_position_embeddings", 0) or _UNKNOWN_CONTEXT)

    @property
    def num_layers(self) -> int:
        return int(self._text_config.num_hidden_layers)

    @property
    def num_bytes(self) -> int:
        """Of its weights, as they are computed with."""
        return int(self.num_params * self.place.dtype.itemsize)

    @property
    def is_read(self) -> bool:
        """All weights lie in memory."""
        return True

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of every layer."""
        config = self._text_config
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        return int(2 * self.num_layers * kv_heads * width * self.place.dtype.itemsize)

    @property
    def architecture(self) -> str:
        return str(self.config.model_type)

    @property
    def license(self) -> str | None:
        """Of the weights, where the file names it."""
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
        return Path(getattr(self.config, "_name_or_path", "") or self.path).name or self.path.name

    # Its vocabulary

    @property
    def num_vocab(self) -> int:
        return self.vocabulary.num_vocab

    @property
    def chat_template(self) -> str | None:
        return self.vocabulary.chat_template

    @property
    def bos(self) -> int:
        return self.vocabulary.bos

    @property
    def eos(self) -> int:
        return self.vocabulary.eos

    def is_end(self, token: int) -> bool:
        """Whether a token ends the answer."""
        return self.vocabulary.is_end(token)

    def token_text(self, token: int) -> bytes:
        """The vocabulary's own entry for a token, spelled as llama.cpp spells it."""
        return self.vocabulary.token_text(token)

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        """Tokens of a text; see `LlamaModel.tokenize`."""
        return self.vocabulary.tokenize(text, is_templated=is_templated)

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text; none for control tokens."""
        return self.vocabulary.piece(token)


def _dtype_of(config: Any) -> Any:
    """The number format that a folder's weights are kept in, None where it does not say."""
    dtype = getattr(config, "dtype", None)
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def _ends(folder: Path, config: Any) -> frozenset[int]:
    """Tokens that end an answer, as the model's configurations list them."""
    found: set[int] = set()
    listed = [getattr(config, "eos_token_id", None)]
    if (folder / "generation_config.json").is_file():
        generation = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
        listed.append(generation.eos_token_id)
    for tokens in listed:
        found.update([tokens] if isinstance(tokens, int) else tokens or ())
    return frozenset(found)
