"""Compare the vocabularies of a target and a draft, before any weight is used."""

from __future__ import annotations

from duodec.core.tokenizers import Vocabulary

_PADDING = 512  # a vocabulary may be padded by this many tokens that are never drawn


def difference(target: Vocabulary, draft: Vocabulary, *, stride: int = 1) -> str | None:
    """Return how two vocabularies differ, in words; None if they are one. It compares every
    ``stride``-th token and the special ones.

    A draft that numbers a few tokens differently costs speed, but never changes the text.
    """
    if abs(target.num_vocab - draft.num_vocab) > _PADDING:
        return f"the draft has {draft.num_vocab} tokens, the target {target.num_vocab}"
    shared = min(target.num_vocab, draft.num_vocab)
    special = {token for token in (target.bos, target.eos) if 0 <= token < shared}
    for token in sorted({*range(0, shared, stride), *special}):
        ours, theirs = target.token_text(token), draft.token_text(token)
        if ours != theirs:
            return (
                f"token {token} is {_shown(theirs)} in the draft and {_shown(ours)} in the target"
            )
    if any(target.is_end(token) and not draft.is_end(token) for token in special):
        return "the draft does not know the target's end token"
    return None


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
