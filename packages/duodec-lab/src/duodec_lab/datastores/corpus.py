"""Turn documents into the tokens of a datastore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from duodec.chat.template import render
from duodec.drafting.datastore_file import Header, encode
from duodec.errors import BadOption
from duodec_lab.datastores.documents import Chat, NoText, Source, Text, documents, pieces

if TYPE_CHECKING:
    from duodec.core.tokenizers import Tokenizer

_MAX_BYTES = (1 << 31) - 1  # of encoded tokens: offsets of bytes are sorted as int32


@dataclass
class Corpus:
    """Documents as encoded tokens, a separator after each; grows file by file."""

    tokenizer: Tokenizer
    on_read: Callable[[int], None]  # bytes of all files so far
    tokens: bytearray = field(default_factory=bytearray)
    num_documents: int = 0
    num_plain_chats: int = 0  # stored without the chat template, which refuses them
    _num_read: int = 0  # bytes

    def __post_init__(self) -> None:
        self._width = Header(0, 0, self.tokenizer.num_vocab).token_width
        self._separator = encode([self.tokenizer.num_vocab], self._width)
        self._bos, self._eos = (
            self.tokenizer.token_text(token).decode("utf-8", "replace") if token >= 0 else ""
            for token in (self.tokenizer.bos, self.tokenizer.eos)
        )

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // self._width - self.num_documents

    def read(self, source: Source) -> bool:
        """Add a file's documents. A file that turns out not to be text adds nothing: returns False
        if it was found in a folder, raises NoText if the user named it."""
        before = len(self.tokens), self.num_documents, self.num_plain_chats
        end = self._num_read + source.num_bytes
        try:
            for document in documents(source.path):
                self._add(document, end)
        except NoText:
            if source.is_named:
                raise
            size, self.num_documents, self.num_plain_chats = before
            del self.tokens[size:]
            return False
        finally:
            self._num_read = end
        return True

    def _add(self, document: Text | Chat, end: int) -> None:
        if isinstance(document, Text):
            parts, is_templated = document.pieces, False
        else:
            text, is_templated = self._written(document)
            parts = pieces(text)
        before = len(self.tokens)
        for tokens in self._tokens(parts, end, is_templated=is_templated):
            self.tokens += tokens
            if len(self.tokens) > _MAX_BYTES:
                most = _MAX_BYTES // self._width
                raise BadOption(f"more than {most} tokens in these files; name fewer of them")
        if len(self.tokens) > before:
            self.tokens += self._separator
            self.num_documents += 1

    def _written(self, chat: Chat) -> tuple[str, bool]:
        """A chat as a text, and whether the chat template rendered it."""
        template = self.tokenizer.chat_template
        if template is not None and chat.messages:
            try:
                return render(template, chat.messages, bos=self._bos, eos=self._eos), True
            except BadOption:
                self.num_plain_chats += 1
        return "\n".join(str(message["content"]) for message in chat.messages), False

    def _tokens(self, parts: Iterable[str], end: int, *, is_templated: bool) -> Iterator[bytes]:
        """The tokens of a text's parts; the first may get a beginning token."""
        for number, part in enumerate(parts):
            tokens = self.tokenizer.tokenize(part, is_templated=is_templated)
            is_added = tokens[:1] == [self.tokenizer.bos] and not part.startswith(self._bos)
            yield encode(tokens[1:] if number and is_added else tokens, self._width)
            self._num_read = min(self._num_read + len(part), end)
            self.on_read(self._num_read)
