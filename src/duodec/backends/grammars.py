"""Compile the grammars of a vocabulary, within limits of time and memory, and once each."""

from __future__ import annotations

from functools import partial

from duodec.backends.grammar_trial import GrammarTrial
from duodec.backends.interrupts import interruptible
from duodec.backends.llguidance import Masks
from duodec.core.grammar import Grammar, Mask
from duodec.core.protocols import Tokenizer


class GrammarCompiler:
    """``trial`` is called before a grammar is compiled here; it raises BadOption for what takes too
    much."""

    def __init__(self, tokenizer: Tokenizer, trial: GrammarTrial | None = None) -> None:
        self.trial = trial or GrammarTrial()
        self.masks = Masks(tokenizer)

    def knows(self, grammar: Grammar) -> bool:
        """Whether it is compiled already."""
        return self.masks.knows(grammar)

    def is_quick(self, grammar: Grammar) -> bool:
        """Whether it takes a tenth of a second at most. Raises BadOption for what is none."""
        return self.trial.is_quick(grammar, self.masks.words)

    def mask(self, grammar: Grammar) -> Mask:
        """A mask of the grammar for one completion. Raises BadOption."""
        if (mask := self.masks.known(grammar)) is not None:
            return mask
        num_bytes = self.trial(grammar, self.masks.words)
        return interruptible(partial(self.masks.mask, grammar, num_bytes), lambda mask: None)
