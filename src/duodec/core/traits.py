"""Say what targets and draft models can do, so that no caller has to probe for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

ENCODERS = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert",
     "modern-bert", "eurobert", "gemma-embedding"}
)  # fmt: skip
"""The architectures of GGUF files that read texts and generate none."""


@dataclass(frozen=True)
class Widths:
    """List the rows that a forward pass may have; empty: any number.

    A row has the same bits in a pass of each of these widths, so a text does not depend on how many
    tokens were drafted.
    """

    each: tuple[int, ...] = ()  # ascending widths

    @classmethod
    def only(cls, num_rows: int) -> Widths:
        """Return widths with which every pass has ``num_rows`` rows; 0: any number."""
        return cls((num_rows,) if num_rows else ())

    def __bool__(self) -> bool:
        return bool(self.each)

    @property
    def most(self) -> int:
        """Return the rows of the widest pass; 0: there is no limit."""
        return self.each[-1] if self.each else 0

    def padded(self, num_rows: int) -> int:
        """Return the rows of the pass that computes ``num_rows``, which fit in one pass."""
        return next((width for width in self.each if width >= num_rows), num_rows)

    def passes(self, num_rows: int) -> list[int]:
        """Return the widths of the passes that compute ``num_rows``."""
        if not self.each or num_rows <= self.most:
            return [self.padded(num_rows)]
        return [self.most, *self.passes(num_rows - self.most)]

    def __str__(self) -> str:
        numbers = [str(width) for width in self.each]
        return " or ".join(filter(None, (", ".join(numbers[:-1]), *numbers[-1:])))


@dataclass(frozen=True)
class TargetTraits:
    """Say what a target can do and how; fixed once the target is loaded."""

    has_branches: bool = True  # scores whole trees; otherwise the first chain of each draft
    max_draft: int = sys.maxsize  # draft tokens of a query; 0 where no state can be taken back
    launches: bool = False  # computes a forward pass while the caller goes on
    # Keeping a row's candidates takes less time than finding them: `Scores.keep`.
    keeps_candidates: bool = False
    widths: Widths = field(default_factory=Widths)  # rows of a forward pass, including padding
    is_recurrent: bool = False  # some of its layers keep a state, which has no branches
    reads_in_chunks: bool = False  # calls ``on_chunk`` between two chunks of a text it prefills
    pace_s: float = 0.0  # each forward pass is slowed to this, for a demo; 0: it is not
    heads: str = ""  # kind of its own heads, such as medusa; "": it has none
    num_heads: int = 0  # tokens that the heads look ahead
    heads_share: float = 0.0  # weights that the heads read, relative to those of a forward pass
    copies_texts: bool = False  # from one cache or slot to another, in place of computing them
    num_mapped_bytes: int = 0  # mapped bytes of its weights, which look like free memory
    num_block: int = (
        1  # tokens of a prompt that it reads at once, so that they always have the same bits
    )

    @property
    def num_continued(self) -> int:
        """Return how many tokens at the end of a text are not part of its blocks: one where that
        token is computed in a padded chain, with the rows behind it."""
        return int(self.widths.most > 1 and not self.has_branches)


@dataclass(frozen=True)
class TargetCache:
    """Say which of a target's caches computes a request. Each cache holds its own texts and has its
    own costs."""

    number: int = 0  # 0 computes a single request
    traits: TargetTraits = field(default_factory=TargetTraits)  # what the target does with it


@dataclass(frozen=True)
class Parallel:
    """Say how a model was trained that drafts several tokens in one forward pass (PARD, arXiv
    2504.18583): after ``num_tokens`` - 1 mask tokens, each is guessed without those before it."""

    mask_token: int
    num_tokens: int  # includes the token that follows the text itself


@dataclass(frozen=True)
class DraftTraits:
    """Say what a draft model can do."""

    has_branches: bool = True  # computes several paths at once, not one after the other
    reads_in_chunks: bool = False  # calls ``on_chunk`` between two chunks of a text it prefills
    has_clock: bool = False  # measures itself by ``clock``
    has_window: bool = False  # drafts from the end of a long text, and prefills the rest later
    has_masks: bool = False  # knows its vocabulary's texts, so that its drafts follow a grammar
    counts_tokens: bool = False  # ``num_computed`` says how many it has computed
    parallel: Parallel | None = None  # how it drafts several tokens in one forward pass
