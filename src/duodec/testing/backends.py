"""Stand in for a backend's model, and check what its target computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.special_tokens import NO_TOKENS, SpecialTokens, Spelled
from duodec.core.targets import Query, Target
from duodec.testing.tables import TableTarget

_FIRST, _NUM_LETTERS = 32, 95  # in ASCII, from the space on
_LINE_END, _END = _NUM_LETTERS, _NUM_LETTERS + 1  # tokens


@dataclass
class LetterModel:
    """Stand for a model with a vocabulary and facts: a token for each letter and sign of ASCII, one
    for line ends, and one that ends a text."""

    chat_template: str | None = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    )
    name: str = "letters"
    architecture: str = "table"
    license: str | None = None
    num_params: int = 0
    num_bytes: int = 0
    is_read: bool = True
    num_context_train: int = 4096
    cache_bytes_per_token: int = 0
    controls: SpecialTokens = NO_TOKENS
    num_vocab: int = _END + 1
    bos: int = -1
    eos: int = _END

    def token_text(self, token: int) -> bytes:
        return self.piece(token) or b"<end>"

    def piece(self, token: int) -> bytes:
        if token == _END:
            return b""
        return b"\n" if token == _LINE_END else bytes([_FIRST + token])

    def is_end(self, token: int) -> bool:
        return token == _END

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        return [_LINE_END if c == "\n" else (ord(c) - _FIRST) % _NUM_LETTERS for c in text]

    def tokenize_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        assert not controls, "it has none"
        return self.tokenize(text, is_templated=True)

    def by_value(self) -> LetterModel:
        """Return the vocabulary, for another process to load."""
        return LetterModel()

    def load(self) -> LetterModel:
        """Return the vocabulary itself."""
        return self

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class RunningTable(TableTarget):
    """Use a table as a backend's target, which has threads and an end."""

    def use_threads(self, num_threads: int) -> None:
        """Ignore the number: one thread reads a table."""

    def close(self) -> None:
        """Do nothing: it holds nothing."""


def check_target(target: Target, text: Sequence[int], *, num_vocab: int, seed: int = 0) -> int:
    """Score a tree of two sequences after a text, then each of its nodes as the end of a text
    without a draft; return how many rows were compared. Raises AssertionError if a row draws
    another token in the tree: then a text would depend on drafts."""
    rng = np.random.default_rng(seed)
    draft = Draft.sequences(rng.integers(0, num_vocab, (2, 3)).tolist())
    sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), 0, len(text))
    query = Query(0, np.array(text, dtype=np.int32), draft, sampler)
    (scores,) = target.score([query])
    drawn = [scores.draw(row).token for row in range(scores.num_rows)]
    for row, token in enumerate(drawn):
        (alone,) = target.score([Query(0, query.context(row).tokens(), sampler=sampler)])
        found = alone.draw(0).token
        assert found == token, (
            f"row {row} of a draft draws token {token}, and {found} where it is scored alone"
        )
    return len(drawn)
