"""Make the model that is trained: a copy of a small one, fewer layers, the target's vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from duodec.backends.translation.rows import NONE, Correspondence
from duodec.backends.translation.spelling import Spelling
from duodec.core.tokenizers import Speller
from duodec.errors import VocabularyMismatch
from duodec_lab.distill.library import torch
from duodec_lab.distill.source import SourceFile
from duodec_torch.checkpoint.blueprint import Blueprint
from duodec_torch.checkpoint.model import TorchModel


def open_student(source: SourceFile, layers: tuple[int, ...], device: str) -> Any:
    """The model of transformers, in float32, with these layers. Raises ModelUnreadable."""
    model = TorchModel(Blueprint.of(source.path, dtype="float32", device=device))
    causal_lm = model.causal_lm
    model.causal_lm = None
    model.close()
    keep_layers(causal_lm, layers)
    causal_lm.requires_grad_(True)
    return causal_lm.train()


def keep_layers(causal_lm: Any, layers: tuple[int, ...]) -> None:
    """Leave out all other layers."""
    body, config = causal_lm.model, causal_lm.config
    body.layers = torch.nn.ModuleList([body.layers[i] for i in layers])
    for number, layer in enumerate(body.layers):
        layer.self_attn.layer_idx = number
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in layers]


def transplant(causal_lm: Any, own: Speller, target: Speller) -> int:
    """Give a model the target's vocabulary, and return how many tokens both have.

    A token of equal bytes keeps its row of the embedding and of the head; another one's row is the
    mean of those that its bytes are spelled with. Raises VocabularyMismatch if none is shared.
    """
    words = Correspondence(Spelling(target), Spelling(own))
    if not words.num_shared:
        raise VocabularyMismatch(
            "the draft and the target have no token in common; name another draft with --from"
        )
    pieces = [_rows_of(words, token) for token in range(target.num_vocab)]
    embedding, head = causal_lm.get_input_embeddings(), causal_lm.get_output_embeddings()
    is_tied = head.weight is embedding.weight
    embedding = _resized(embedding, pieces)
    causal_lm.set_input_embeddings(embedding)
    if is_tied:
        head.weight = embedding.weight
        head.out_features = target.num_vocab
    else:
        head.weight = _resized(head, pieces).weight
        head.out_features = target.num_vocab
    causal_lm.config.vocab_size = target.num_vocab
    return int((words.of_target != NONE).sum())


def _rows_of(words: Correspondence, token: int) -> tuple[int, ...]:
    """The draft's tokens that a token of the target is made of; none: of all of them."""
    same = int(words.of_target[token])
    if same != NONE:
        return (same,)
    piece = words.target.pieces[token]
    return words.draft.tokens_of(piece) if piece else ()


def _resized(module: Any, pieces: list[tuple[int, ...]]) -> Any:
    """An embedding whose rows are means of this module's."""
    rows = module.weight.detach()
    mean = rows.mean(0)
    new = torch.stack([rows[list(own)].mean(0) if own else mean for own in pieces])
    return torch.nn.Embedding.from_pretrained(new, freeze=False)


def hidden(causal_lm: Any, tokens: Any, positions: Any = None, sees: Any = None) -> Any:
    """The states before the head: (sequences, length, width). Padding comes last, where causal
    attention, or what each token ``sees``, keeps it from all others."""
    return causal_lm.model(
        input_ids=tokens, position_ids=positions, attention_mask=sees, use_cache=False
    ).last_hidden_state


def as_array(parameter: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A weight as numbers."""
    found: np.ndarray[Any, np.dtype[np.float32]] = parameter.detach().float().cpu().numpy()
    return found
