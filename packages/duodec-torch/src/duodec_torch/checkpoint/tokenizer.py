"""Read the vocabulary of a folder of safetensors in llama.cpp's spelling of a GGUF file's.

So a target of transformers and a draft in a GGUF file can be compared token by token, and a text
has the same tokens and bytes on both sides.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from duodec.backends.translation.spelling import SpelledVocabulary
from duodec.core.special_tokens import SpecialTokens, Spelled
from duodec.errors import ModelUnreadable
from duodec_torch.library import transformers

_LONGEST = 160  # characters of a library's message
_SPACE = "\u2581"  # how sentencepiece spells a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# llama.cpp's converter treats these as control tokens, whatever the folder declares
_LOOKS_SPECIAL = re.compile(r"<\|.*\|>|<｜.*｜>|<pad>|<mask>|<2mass>|\[@BOS@\]|<unused\d+>")  # noqa: RUF001
# tokens that end a completion in llama.cpp, by their text
_ENDS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
     "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
     "<end_of_utterance>", "<turn|>", "<|fim_pad|>", "<|repo_name|>", "<reponame>",
     "<|file_sep|>"}
)  # fmt: skip


@dataclass(frozen=True)
class FolderTokenizer:
    """A fast tokenizer of transformers, with the model's vocabulary size.

    Make it with `open`, which raises ModelUnreadable.
    """

    tokenizer: Any  # of transformers
    num_vocab: int  # rows of logits: a vocabulary may be padded
    ends: frozenset[int]  # end tokens, according to the model's files

    @classmethod
    def open(cls, folder: Path, num_vocab: int, ends: frozenset[int]) -> FolderTokenizer:
        """Raises ModelUnreadable if the folder has no tokenizer that we can read."""
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            raise ModelUnreadable(
                f"{folder} has no tokenizer that transformers can load ({one_line(error)}); "
                "fetch tokenizer.json and tokenizer_config.json again"
            ) from error
        if not getattr(tokenizer, "is_fast", False):
            raise ModelUnreadable(
                f"{folder} has no tokenizer.json, only a vocabulary for slow tokenizers; save it "
                "once with transformers' AutoTokenizer, or use a GGUF file of the model"
            )
        found = cls(tokenizer, num_vocab, ends)
        found._prepare(folder)
        _ = found._plain  # here, while no other thread tokenises
        return found

    def _prepare(self, folder: Path) -> None:
        backend = self._backend
        backend.encode_special_tokens = False
        backend.no_truncation()
        backend.no_padding()
        if not self._kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
            raise ModelUnreadable(
                f"{folder} has a tokenizer that is neither byte-level nor sentencepiece's "
                f"({', '.join(sorted(self._kinds)) or 'no decoder'}); use another model"
            )
        # a prompt's own text must not become control tokens, even if they are not marked as such
        unmarked = [
            token
            for token in backend.get_added_tokens_decoder().values()
            if not token.special and _LOOKS_SPECIAL.fullmatch(token.content)
        ]
        for token in unmarked:
            token.special = True
        backend.add_special_tokens(unmarked)

    def close(self) -> None:
        """There is nothing to free."""

    @property
    def _backend(self) -> Any:
        return self.tokenizer.backend_tokenizer

    @cached_property
    def _kinds(self) -> set[str]:
        """The types of decoders that turn its tokens into text."""
        decoder = self._backend.decoder
        return set(_kinds(json.loads(decoder.__getstate__()))) if decoder else set()

    @cached_property
    def _added(self) -> dict[int, Any]:
        return dict(self._backend.get_added_tokens_decoder())

    @cached_property
    def _ends(self) -> frozenset[int]:
        texts = set(_ENDS)
        if self._backend.token_to_id("<|call|>") is not None:
            texts.discard("<|end|>")  # of gpt-oss: ends a message, and another may follow
        named = (self._backend.token_to_id(text) for text in texts)
        return self.ends | {self.eos} | {token for token in named if token is not None}

    @property
    def chat_template(self) -> str | None:
        template = self.tokenizer.chat_template
        if isinstance(template, dict):  # several, by name
            template = template.get("default")
        return template or None

    @property
    def bos(self) -> int:
        return _or_none(self.tokenizer.bos_token_id)

    @property
    def eos(self) -> int:
        return _or_none(self.tokenizer.eos_token_id)

    def is_end(self, token: int) -> bool:
        """Whether a token ends the completion."""
        return token >= 0 and token in self._ends

    def token_text(self, token: int) -> bytes:
        """The vocabulary's entry; padding is named as by llama.cpp's converter."""
        text = self._backend.id_to_token(token)
        if text is None:
            return f"[PAD{token}]".encode()
        added = self._added.get(token)
        if added is not None and not added.special:
            text = text.replace(_SPACE, " ")
        return str(text).encode()

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        """Tokens of a text. A templated text has its special tokens spelled out; any other gets the
        model's beginning token, and its special tokens are plain text."""
        begins = self.token_text(self.bos).decode() if self.bos >= 0 else ""
        has_bos = is_templated and bool(begins) and text.startswith(begins)
        return _encode(self._backend if is_templated else self._plain, text, has_bos)

    def tokenize_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        """Tokens of a templated text in which these are the only control tokens."""
        parts, begin = [], 0
        for control in controls:
            parts += [text[begin : control.begin], self._alias(control.token)]
            begin = control.end
        has_bos = bool(controls) and controls[0].begin == 0 and controls[0].token == self.bos
        tokens = _encode(self._plain, "".join([*parts, text[begin:]]), has_bos)
        return [self._of_alias.get(token, token) for token in tokens]

    @cached_property
    def controls(self) -> SpecialTokens:
        """Tokens that direct the model: no text of a user may spell them."""
        return SpecialTokens({t.content: i for i, t in self._added.items() if t.special})

    @cached_property
    def _plain(self) -> Any:
        """A tokenizer that reads no control tokens except our own names for them. It is a copy: the
        switch belongs to the tokenizer, and several threads tokenise."""
        plain = type(self._backend).from_str(self._backend.to_str())
        plain.encode_special_tokens = True
        plain.add_tokens(
            [
                type(added)(
                    self._alias(token), special=False, normalized=False, lstrip=added.lstrip,
                    rstrip=added.rstrip, single_word=added.single_word,
                )
                for token, added in self._added.items()
                if added.special
            ]
        )  # fmt: skip
        return plain

    @cached_property
    def _of_alias(self) -> dict[int, int]:
        """The control tokens, by the tokens of our own names for them."""
        controls = self.controls.tokens.values()
        return {self._plain.token_to_id(self._alias(token)): token for token in controls}

    def by_value(self) -> SpelledVocabulary:
        """This vocabulary without transformers, to be sent to another process."""
        every = range(self.num_vocab)
        return SpelledVocabulary(
            tuple(self.token_text(token) for token in every),
            tuple(self.piece(token) for token in every),
            self.bos,
            self.eos,
            frozenset(token for token in every if self.is_end(token)),
            self._plain,
        )

    @cached_property
    def _secret(self) -> str:
        return secrets.token_hex(8)

    def _alias(self, token: int) -> str:
        """Our own name for a control token, which no text contains."""
        return f"\U0010fffd{self._secret}:{token}\U0010fffd"

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text; none for control tokens."""
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else self.token_text(token)
        text = self._backend.id_to_token(token)
        if text is None or text == self.tokenizer.unk_token:
            return b""
        if "ByteLevel" in self._kinds:
            known = _bytes_of_letters()
            return b"".join(known.get(letter) or letter.encode() for letter in text)
        if byte := _BYTE.fullmatch(text):
            return bytes([int(byte[1], 16)])
        return str(text).replace(_SPACE, " ").encode()


def _encode(backend: Any, text: str, has_bos: bool) -> list[int]:
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate is not text
    return list(backend.encode(text, add_special_tokens=not has_bos).ids)


def one_line(error: BaseException) -> str:
    """A library's error, short enough for a message."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."


_letters: dict[str, bytes] = {}


def _bytes_of_letters() -> dict[str, bytes]:
    """Byte-level vocabularies spell each byte as a printable letter (GPT-2's table)."""
    if not _letters:
        shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = [byte for byte in range(256) if byte not in shown]
        _letters.update((chr(byte), bytes([byte])) for byte in shown)
        _letters.update((chr(256 + i), bytes([byte])) for i, byte in enumerate(hidden))
    return _letters


def _kinds(decoder: Any) -> Iterator[str]:
    """The types of a decoder and of those within it."""
    yield str(decoder.get("type"))
    for inner in decoder.get("decoders", ()):
        yield from _kinds(inner)


def _or_none(token: int | None) -> int:
    return -1 if token is None else token
