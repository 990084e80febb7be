"""Decode with lookahead: n-grams from a Jacobi window that the target fills while it decodes."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.draft import ROOT, Draft, TreeBuilder
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Scores
from duodec.drafting.jacobi import NgramPool, Window
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class Lookahead(Method):
    """Draft as in 2402.02057. The guesses to verify and the window to fill are branches of one
    draft."""

    name = "lookahead"
    reads_off_path = True

    num_levels: int = 5  # N, the length of an n-gram
    num_columns: int = 7  # W, the window
    num_guesses: int = 7  # G, n-grams verified in a round

    def decode(self, request: Request) -> Loop:
        window = Window.of(request.text, self.num_levels, self.num_columns)
        pool = NgramPool(self.num_guesses)

        def propose(request: Request) -> Draft:
            tree = TreeBuilder()
            for guess in pool.after(int(request.text[-1])):
                tree.add_path(ROOT, guess)
            for branch in window.branches():
                tree.add_path(ROOT, branch)
            return tree.draft()

        def learn(text: Tokens, draft: Draft, scores: Scores) -> None:
            ends = draft.find(window.branches())
            is_whole = scores.num_rows > len(draft) > 0  # some targets score only a first chain
            if is_whole and None not in ends:  # at the end of a text the window is truncated
                guesses = [self._guess(text, draft, scores, end) for end in ends if end is not None]
                for ngram in window.advance(int(text[-1]), guesses):
                    pool.add(ngram)

        return serial(request, propose, learn=learn, num_candidates=1)

    def _guess(self, text: Tokens, draft: Draft, scores: Scores, end: int) -> int:
        """Return the likeliest token after a node, or the node's own token again where the target
        knows none."""
        likeliest = scores.candidates(end + 1).tokens
        return likeliest[0] if likeliest else int(text[-1]) if end == ROOT else draft.tokens[end]
