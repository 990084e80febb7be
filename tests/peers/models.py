"""Make the small models that stand in for those of other suites: one that reasons, a draft that is
never right, models for embeddings and for ranks, and one that sees pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from fakes.pooled_models import CLS, RANK, write_bert
from fakes.tiny_models import finish, vocabulary, write_dense
from fakes.vision_models import write_seeing

_THINK, _END, _STOP = 3, 4, 2  # control tokens of the vocabulary, the first two renamed
_WIDTH = 128
_SURE, _RANKED = 4.0, 1.0  # weights of the logits, which RMSNorm scales by 8

# as Qwen 3's: the model begins its reasoning itself, unless that is switched off
_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Call functions with JSON between <tool_call> and </tool_call>:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""
_THOUGHTS = (
    "The user asks for something. First, I need to think about it for a while; then I can say what "
    "I found, or call a function, so that somebody else finds it."
)
_WORDS = """

I will have a look.
<tool_call>
{"name": "get_current_weather", "arguments": {"country": "Germany", "unit": "celsius"}}
</tool_call>"""
_EMBEDDED = "i believe the meaning of life is this a test"  # a token a word, as in theirs
_SEEING_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_CLOSING = ('"', "}", "]", ",")  # what a grammar allows is closed at the first chance


def write_reasoning_model(path: Path) -> Path:
    """A model whose next token depends on the last one alone: it thinks, says something and calls
    a function, each time the same. Its texts are spelled in tokens of their own, at the end of the
    vocabulary."""
    known = set(vocabulary()["tokenizer.ggml.tokens"][0])
    first = len(known)
    thoughts, words = _parts(_THOUGHTS, known), _parts(_WORDS, known)
    first -= len(thoughts) + len(words)
    thinking = range(first, first + len(thoughts))
    saying = range(thinking.stop, thinking.stop + len(words))
    chain = [_THINK, *thinking, _END, *saying, _STOP]
    assert len(chain) + 1 < _WIDTH
    tokens = dict(zip(chain, ["<think>", *thoughts, "</think>", *words, "<|im_end|>"], strict=True))
    return _write(path, tokens, chain)


def write_wrong_draft(path: Path) -> Path:
    """A draft model of random weights, with SmolLM2's whole vocabulary."""
    return write_dense(path, num_vocab=len(vocabulary()["tokenizer.ggml.tokens"][0]))


def write_embedder(path: Path) -> Path:
    """An encoder of random weights."""
    return write_bert(path, CLS, num_context=512, words=_EMBEDDED.split())


def write_reranker(path: Path) -> Path:
    """The same with a head that ranks."""
    return write_bert(path, RANK, num_context=512)


def write_seeing_model(folder: Path) -> Path:
    """A model of random weights that sees pictures: a folder with ``model.gguf``, its mmproj file
    and its template."""
    folder.mkdir(exist_ok=True)
    write_seeing(folder, "Gemma 3")
    (folder / "template.jinja").write_text(_SEEING_TEMPLATE, "utf-8")
    return folder


def _parts(text: str, known: set[str]) -> list[str]:
    """A text in pieces that are no tokens yet, as byte-level vocabularies spell them; they become
    known."""
    parts = [""]
    for sign in text.replace(" ", "Ġ").replace("\n", "Ċ"):
        if parts[-1] and parts[-1] not in known:
            known.add(parts[-1])
            parts.append("")
        parts[-1] += sign
    if parts[-1] in known:
        parts[-2:] = [parts[-2] + parts[-1]]
    known.add(parts[-1])
    return parts


def _write(path: Path, named: dict[int, str], chain: Sequence[int]) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // 2)
    tokens = [named.get(i, text) for i, text in enumerate(vocabulary()["tokenizer.ggml.tokens"][0])]
    own = {"tokenizer.ggml.tokens": tokens, "tokenizer.chat_template": _TEMPLATE}
    for key, (value, kind) in vocabulary().items():
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, own.get(key, value))
        else:
            writer.add_key_value(key, own.get(key, value), kind)
    for name, matrix in _tensors(tokens, chain):
        writer.add_tensor(name, matrix.astype(np.float32 if matrix.ndim == 1 else np.float16))
    return finish(writer, path)


def _tensors(tokens: Sequence[str], chain: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Column 0 is 1 for all tokens, column 1 for those outside of the chain, each further one for a
    token of the chain. The layer between adds nothing."""
    embedding = np.zeros((len(tokens), _WIDTH))
    embedding[:, :2] = 1
    output = np.zeros_like(embedding)
    output[chain[0], 1] = _SURE
    for column, (token, then) in enumerate(pairwise(chain), start=2):
        embedding[token, 1], embedding[token, column] = 0, 1
        output[then, column] = _SURE
    for rank, text in enumerate(_CLOSING):
        output[tokens.index(text), 0] = _RANKED - rank / 8
    yield "token_embd.weight", embedding
    yield "output.weight", output
    for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        yield f"{norm}.weight", np.ones(_WIDTH)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        yield f"blk.0.{part}.weight", np.zeros((_WIDTH, _WIDTH))
