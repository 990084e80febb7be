"""Say what targets and draft models can do, so that no caller has to probe for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

ENCODERS = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert",
     "modern-bert", "eurobert", "gemma-embedding"}
)  # fmt: skip
"""Architectures of GGUF files that read texts and generate none."""


@dataclass(frozen=True)
class Widths:
    """Rows that a forward pass may have; empty: as many as are wanted.

    A row has the same bits in a pass of each of these widths, so that a text does not depend on
    how many tokens were drafted.
    """

    each: tuple[int, ...] = ()  # ascending

    @classmethod
    def only(cls, num_rows: int) -> Widths:
        """Every pass has so many rows; 0: as many as are wanted."""
        return cls((num_rows,) if num_rows else ())

    def __bool__(self) -> bool:
        return bool(self.each)

    @property
    def most(self) -> int:
        """Rows of the widest pass; 0: there is no limit."""
        return self.each[-1] if self.each else 0

    def padded(self, num_rows: int) -> int:
        """Rows of the pass that computes so many, which fit in one."""
        return next((width for width in self.each if width >= num_rows), num_rows)

    def passes(self, num_rows: int) -> list[int]:
        """The passes that compute so many rows, by their widths."""
        if not self.each or num_rows <= self.most:
            return [self.padded(num_rows)]
        return [self.most, *self.passes(num_rows - self.most)]

    def __str__(self) -> str:
        numbers = [str(width) for width in self.each]
        return " or ".join(filter(None, (", ".join(numbers[:-1]), *numbers[-1:])))


@dataclass(frozen=True)
class TargetTraits:
    """What a target can do and how; fixed once it is loaded."""

    has_branches: bool = True  # scores whole trees; otherwise the first chain of each draft
    max_draft: int = sys.maxsize  # draft tokens of a query; 0 where no state can be taken back
    launches: bool = False  # computes a forward pass while the caller goes on
    keeps_candidates: bool = False  # to keep a row's takes less than to find them: `Scores.keep`
    widths: Widths = field(default_factory=Widths)  # rows of a forward pass, padding included
    is_recurrent: bool = False  # some of its layers keep a state, which has no branches
    reads_in_chunks: bool = False  # calls ``on_chunk`` between two chunks of a text it prefills
    pace_s: float = 0.0  # that each forward pass is slowed to, for a demo; 0: it is not
    heads: str = ""  # its own, that propose tokens: their kind, such as medusa; "": it has none
    num_heads: int = 0  # tokens that they look ahead
    heads_share: float = 0.0  # weights that they read, by those of a forward pass
    copies_texts: bool = False  # from one cache or slot to another, in place of computing them
    num_mapped_bytes: int = 0  # of its weights, which look like free memory
    num_block: int = (
        1  # tokens of a prompt that it reads at once, to give them the same bits always
    )

    @property
    def num_continued(self) -> int:
        """Tokens at the end of a text that are no part of its blocks: one where it is computed in a
        padded chain, with the rows behind it."""
        return int(self.widths.most > 1 and not self.has_branches)


@dataclass(frozen=True)
class TargetCache:
    """Which of a target's caches computes a request. What one of them holds another does not, and
    each has costs of its own."""

    number: int = 0  # 0 computes a request that is alone
    traits: TargetTraits = field(default_factory=TargetTraits)  # what the target does with it


@dataclass(frozen=True)
class Parallel:
    """What a model was trained with that drafts several tokens in one forward pass (PARD, arXiv
    2504.18583): after ``num_tokens`` - 1 mask tokens, each is guessed without those before it."""

    mask_token: int
    num_tokens: int  # with the one that follows the text itself


@dataclass(frozen=True)
class DraftTraits:
    """What a draft model can do."""

    has_branches: bool = True  # computes several paths at once, not one after the other
    reads_in_chunks: bool = False  # calls ``on_chunk`` between two chunks of a text it prefills
    has_clock: bool = False  # measures itself by ``clock``
    has_window: bool = False  # drafts from the end of a long text, and prefills the rest later
    has_masks: bool = False  # knows its vocabulary's texts, so that its drafts follow a grammar
    counts_tokens: bool = False  # ``num_computed`` says how many it has computed
    parallel: Parallel | None = None  # how it drafts several tokens in one forward pass
