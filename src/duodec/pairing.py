"""Can this draft serve this target? Asked of the vocabularies, before any weight is used."""

from __future__ import annotations

from typing import Protocol

from duodec.errors import VocabularyMismatch

_PADDING = 512  # a vocabulary may be padded by so many tokens that are never drawn


class Vocabulary(Protocol):
    """What a pair must have in common."""

    @property
    def num_vocab(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


def check_pair(target: Vocabulary, draft: Vocabulary, *, stride: int = 1) -> None:
    """Compare every ``stride``-th token and the special ones. Raises VocabularyMismatch.

    A draft that numbers a few tokens otherwise costs speed, never text.
    """
    remedy = "pick a draft of the target's own family"
    if abs(target.num_vocab - draft.num_vocab) > _PADDING:
        raise VocabularyMismatch(
            f"the draft has {draft.num_vocab} tokens, the target {target.num_vocab}; {remedy}"
        )
    shared = min(target.num_vocab, draft.num_vocab)
    special = {token for token in (target.bos, target.eos) if 0 <= token < shared}
    for token in sorted({*range(0, shared, stride), *special}):
        ours, theirs = target.token_text(token), draft.token_text(token)
        if ours != theirs:
            raise VocabularyMismatch(
                f"token {token} is {_shown(theirs)} in the draft and {_shown(ours)} in the "
                f"target; {remedy}"
            )
    if any(target.is_end(token) and not draft.is_end(token) for token in special):
        raise VocabularyMismatch(f"the draft does not know the target's end token; {remedy}")


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
