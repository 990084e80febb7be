"""Find and open the datastores on this machine, kept by vocabulary."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from duodec.drafting.datastore import Datastore
from duodec.errors import BadOption, DatastoreUnreadable
from duodec.models import cache_folder

if TYPE_CHECKING:
    from duodec.core.tokenizers import Tokenizer

_STRIDE = 4  # the pieces of all of 152,000 tokens would take 0.2 s at each start


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return a fingerprint of a vocabulary: 16 hexadecimal digits."""
    digest = hashlib.sha256(str(tokenizer.num_vocab).encode())
    for token in range(0, tokenizer.num_vocab, _STRIDE):
        piece = tokenizer.piece(token)
        digest.update(b" %d:%b" % (len(piece), piece))
    return digest.hexdigest()[:16]


def default_folder() -> Path:
    """Return where datastores are kept unless the user names a place; it may not exist yet."""
    return cache_folder() / "datastores"


def default_path(fingerprint: str) -> Path:
    """Return where the datastore of a vocabulary is kept unless the user names a place."""
    return default_folder() / f"{fingerprint}.duods"


def open_for(tokenizer: Tokenizer, path: Path | None = None) -> Datastore:
    """Open the datastore at ``path``, or the one kept for this vocabulary.

    Raises BadOption when there is none, DatastoreUnreadable when it is broken or was made for
    another vocabulary.
    """
    vocabulary = fingerprint(tokenizer)
    place = path or default_path(vocabulary)
    try:
        store = Datastore.open(place)
    except DatastoreUnreadable as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        what = "no datastore" if path else "no datastore for this model's vocabulary"
        raise BadOption(
            f"{what} at {place}; build one with duodec datastore build FILES..."
        ) from error
    if (store.vocabulary, store.num_vocab) != (vocabulary, tokenizer.num_vocab):
        raise DatastoreUnreadable(
            f"{place} was made for another vocabulary; "
            "build one with duodec datastore build --target MODEL FILES..."
        )
    return store
