"""Say what targets and draft models can do, so that no caller has to probe for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TargetTraits:
    """What a target can do and how; fixed once it is loaded."""

    has_branches: bool = True  # scores whole trees; otherwise the first chain of each draft
    max_draft: int = sys.maxsize  # draft tokens of a query; 0 where no state can be taken back
    launches: bool = False  # computes a forward pass while the caller goes on
    keeps_candidates: bool = False  # to keep a row's takes less than to find them: `Scores.keep`
    num_rows: int = 1  # that a forward pass is padded to a multiple of
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
        return int(self.num_rows > 1 and not self.has_branches)


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
