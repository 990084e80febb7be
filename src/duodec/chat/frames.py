"""Learn what two chat templates write between messages, to tell a draft a chat in its own form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duodec.chat.template import Message, render
from duodec.core.tokenizers import Tokenizer
from duodec.errors import BadOption

_MARKS = ("ALPHA7", "BETA7", "GAMMA7")  # what the messages say, which no template does
_CHATS: tuple[tuple[Message, ...], ...] = (
    (
        {"role": "user", "content": _MARKS[0]},
        {"role": "assistant", "content": _MARKS[1]},
        {"role": "user", "content": _MARKS[2]},
    ),
    ({"role": "system", "content": _MARKS[0]}, {"role": "user", "content": _MARKS[1]}),
)


def frames_of(
    target: Tokenizer, draft: Tokenizer
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Tokens of the target's template before, between and after messages, each with the draft's
    tokens in the same place. None where a model has no template, or refuses such messages."""
    known: set[tuple[int, ...]] = set()
    if target.chat_template == draft.chat_template:
        return
    for chat in _CHATS:
        ours, theirs = _written(target, chat), _written(draft, chat)
        if len(ours) != len(theirs):
            continue
        for i, (own, other) in reversed(list(enumerate(zip(ours, theirs, strict=True)))):
            tokens = _tokens(target, own, is_first=not i)
            is_marked = any(not target.piece(token) for token in tokens)
            if is_marked and tokens not in known:
                known.add(tokens)
                yield tokens, _tokens(draft, other, is_first=not i)


def _written(model: Tokenizer, chat: Sequence[Message]) -> list[str]:
    """What the template writes around the messages."""
    if model.chat_template is None:
        return []
    bos, eos = (
        model.token_text(token).decode("utf-8", "replace") if token >= 0 else ""
        for token in (model.bos, model.eos)
    )
    try:
        rest = render(model.chat_template, chat, bos=bos, eos=eos)
    except BadOption:
        return []
    parts = []
    for mark in _MARKS[: len(chat)]:
        part, found, rest = rest.partition(mark)
        if not found:
            return []
        parts.append(part)
    return [*parts, rest]


def _tokens(model: Tokenizer, text: str, *, is_first: bool) -> tuple[int, ...]:
    tokens = model.tokenize(text, is_templated=True) if text else []
    begun = model.tokenize("", is_templated=False)[:1]
    if not is_first and begun == [model.bos] and tokens[:1] == begun:
        tokens = tokens[1:]
    return tuple(tokens)
