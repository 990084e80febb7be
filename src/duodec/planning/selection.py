"""Keep one tree of the best candidates from all sources.

A source proposes successors of a node, each with the likelihood that it is the target's token
there. A token that several sources propose is one node. Its value is a mixture of their estimates
(`planning/mixing.py`), and every verdict trains it. No node is likelier than its parent, so the
nodes are found in the order of their values, and any number of the first ones is a connected tree.

It grows and learns in C++ (`planning/compiled.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duodec.core.draft import Draft
from duodec.drafting import constants
from duodec.planning.mixing import Mixer
from duodec.planning.sources import Source, TreeSource


class Selection:
    """Hold the tree, in the order of its nodes' values; parents come before their children."""

    def __init__(self, given: Sequence[Source], mixer: Mixer) -> None:
        """The first source is the draft model's tree, the second one recycled rows."""
        self.given = given
        self.mixer = mixer
        # This makes the rows and the matches of texts, where C++ searched them.
        self.find: Callable[[], Sequence[Source]] | None = None
        self.tokens: Sequence[int] = []
        self.parents: Sequence[int] = []
        self.values: Sequence[float] = []
        self.reach = 0.0  # likelihood that the next token is among the root's successors
        self.depth = 0  # greatest depth of nodes whose successors were requested
        self.least = constants.MIN_VALUE  # least value of a node
        self.is_full = False  # whether it has as many nodes as requested
        self.num_labelled = 0  # tokens whose parent's successors were known
        self.num_without_draft = 0  # those of them that a source without a model proposed

    def draft(self, num_tokens: int) -> Draft:
        """Return the first nodes; the likelier child comes before others."""
        return Draft(tuple(self.tokens[:num_tokens]), tuple(self.parents[:num_tokens]))

    @property
    def sources(self) -> Sequence[Source]:
        """Return all sources that propose. Those that C++ searched are made when they are
        needed."""
        if self.find is not None:
            tree, *others = self.given
            self.given, self.find = [tree, *self.find(), *others], None
        return self.given

    @property
    def has_draft(self) -> bool:
        """Return whether the draft model proposes something after the text."""
        first = self.given[0] if self.given else None
        return isinstance(first, TreeSource) and first.is_expanded
