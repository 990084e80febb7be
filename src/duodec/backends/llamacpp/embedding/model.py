"""Read a GGUF model that pools a text into one row, and the tokens of texts and of pairs of
texts."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import cached_property

from duodec.backends.llamacpp.model import LlamaModel, pools
from duodec.core.special_tokens import Spelled
from duodec.core.traits import ENCODERS
from duodec.errors import ModelUnreadable

_QUERY, _DOCUMENT = "{query}", "{document}"  # in a template for pairs
_PLACES = re.compile(f"({re.escape(_QUERY)}|{re.escape(_DOCUMENT)})")
_MATRYOSHKA = re.compile(
    r"qwen-?3-(vl-)?embedding|embedding-?gemma|nomic-embed-text-v(1\.5|2)|jina-embeddings-v[3-9]"
    r"|mxbai-embed|arctic-embed-(m-v1\.5|[ml]-v2)|matryoshka"
)


class Pooling(IntEnum):
    """Name how the rows of a text become one: llama_pooling_type."""

    NONE, MEAN, CLS, LAST, RANK = range(5)


class PooledModel(LlamaModel):
    """Hold an encoder, or a decoder whose file names a pooling. Its row of a text is an embedding,
    or a score of how well a document suits a query."""

    def _refuse_declared(self) -> None:
        """Accept whatever such a file says it is; it is tried."""

    def _refuse_other_kinds(self) -> None:
        if not self.num_vocab:
            raise ModelUnreadable(f"{self.path} has no vocabulary; use a whole model's file")
        if not pools(self):
            raise ModelUnreadable(
                f"{self.path} ({self.architecture}) makes no embeddings: its file names no "
                "pooling; use a model for embeddings, or a reranker"
            )
        if self.pooling is Pooling.NONE:
            raise ModelUnreadable(
                f"{self.path} ({self.architecture}) names no pooling of its own, by which the rows "
                "of a text become one embedding; use a file that was converted with it"
            )

    @cached_property
    def pooling(self) -> Pooling:
        """Return the file's pooling."""
        named = self.metadata(f"{self.architecture}.pooling_type") or "0"
        known = {str(int(kind)): kind for kind in Pooling}
        return known.get(named, Pooling.NONE)

    @property
    def is_matryoshka(self) -> bool:
        """Return whether shorter embeddings were also trained. No field of a file says so; known
        models are recognised by their names."""
        named = (self.name, self.metadata("general.basename") or "", self.path.stem)
        return any(_MATRYOSHKA.search(re.sub(r"[\s_]+", "-", name.lower())) for name in named)

    @property
    def is_decoder(self) -> bool:
        """Return whether it caches keys and values."""
        return self.architecture not in ENCODERS

    @property
    def is_causal(self) -> bool:
        """Return whether a token sees only earlier ones."""
        return self.metadata(f"{self.architecture}.attention.causal") != "false"

    @property
    def num_dims(self) -> int:
        """Return the length of a row."""
        if self.pooling is Pooling.RANK:
            return int(self.lib.llama_model_n_cls_out(self.handle))
        return int(self.lib.llama_model_n_embd_out(self.handle))

    @cached_property
    def last_tokens(self) -> list[int]:
        """Return the tokens that end every text."""
        ends = self._tokens("", is_enclosed=True)
        return ends[int(self.lib.llama_vocab_get_add_bos(self.vocab)) :]

    def pair_tokens(self, query: str, document: str) -> list[int]:
        """Return the tokens of a query and a document, joined as in llama.cpp's server: by the
        file's template for pairs, or with the tokens that end and separate texts."""
        if self._pair_template is not None:
            return self._templated(self._pair_template, query, document)
        lib, vocab = self.lib, self.vocab
        end = [self.eos if self.eos >= 0 else self._separator]
        end = end if lib.llama_vocab_get_add_eos(vocab) else []
        separator = [self._separator] if lib.llama_vocab_get_add_sep(vocab) else []
        begin = [self.bos] if lib.llama_vocab_get_add_bos(vocab) else []
        first, second = self.tokens_around(query, ()), self.tokens_around(document, ())
        return [*begin, *first, *end, *separator, *second, *end]

    @property
    def _separator(self) -> int:
        return int(self.lib.llama_vocab_sep(self.vocab))

    @cached_property
    def _pair_template(self) -> str | None:
        text = self.lib.llama_model_chat_template(self.handle, b"rerank")
        return text.decode("utf-8", "replace") if text else None

    def _templated(self, template: str, query: str, document: str) -> list[int]:
        """Tokenise a template whose control tokens are read as such; users' text stays text."""
        values = {_QUERY: query, _DOCUMENT: document}
        text, controls = "", list[Spelled]()
        for part in _PLACES.split(template):
            if part not in values:
                controls += [
                    Spelled(len(text) + one.begin, len(text) + one.end, one.token)
                    for one in self.controls.find(part)
                ]
            text += values.get(part, part)
        return self.tokens_around(text, controls)
