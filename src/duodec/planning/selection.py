"""Keep one tree of candidates from all sources: the best that may be scored.

A source proposes successors of a node, each with the likelihood that it is the target's token
there. What several sources propose is one node; what it is worth is mixed of what they all say
(`planning/mixing.py`), and learned from every verdict. Since no node is likelier than its parent,
the nodes are found in the order of their values, and any number of the first ones is a connected
tree.

It grows and learns in C++ (`planning/compiled.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duodec.core.draft import Draft
from duodec.drafting import constants
from duodec.planning.mixing import Mixer
from duodec.planning.sources import Source, TreeSource


class Selection:
    """The tree, in the order of its nodes' values; parents come before their children."""

    def __init__(self, given: Sequence[Source], mixer: Mixer) -> None:
        """The first source is the draft model's tree, the second one recycled rows."""
        self.given = given
        self.mixer = mixer
        # makes the rows and the matches of texts, where they were searched in C++
        self.find: Callable[[], Sequence[Source]] | None = None
        self.tokens: Sequence[int] = []
        self.parents: Sequence[int] = []
        self.values: Sequence[float] = []
        self.reach = 0.0  # likelihood that the next token is among the root's successors
        self.depth = 0  # of nodes whose successors were asked for, at most
        self.least = constants.LEAST_VALUE  # of a node
        self.is_full = False  # it has as many nodes as were asked for
        self.num_labelled = 0  # tokens whose parent's successors were known
        self.num_without_draft = 0  # of them, those that a source without a model proposed

    def draft(self, num_tokens: int) -> Draft:
        """The first nodes; the likelier child comes before others."""
        return Draft(tuple(self.tokens[:num_tokens]), tuple(self.parents[:num_tokens]))

    @property
    def sources(self) -> Sequence[Source]:
        """All that propose. Those that were searched in C++ are made once they are wanted."""
        if self.find is not None:
            tree, *others = self.given
            self.given, self.find = [tree, *self.find(), *others], None
        return self.given

    @property
    def has_draft(self) -> bool:
        """The draft model proposes something after the text."""
        first = self.given[0] if self.given else None
        return isinstance(first, TreeSource) and first.is_expanded
