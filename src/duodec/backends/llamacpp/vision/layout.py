"""Find where the pictures of a text lie, and which positions its tokens have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from duodec.backends.llamacpp.vision.image import ImageTokens
from duodec.core.prompts.pictures import Shown
from duodec.core.sampling.sampler import Tokens


@dataclass(frozen=True)
class Run:
    """A part of a picture in a text: tokens ``begin`` to ``end`` - 1."""

    begin: int
    end: int
    position: int  # of its first token
    image: ImageTokens

    @property
    def num_saved(self) -> int:
        """Positions fewer than tokens that it takes."""
        return self.end - self.begin - self.image.num_positions


@dataclass(frozen=True)
class Layout:
    """The pictures of a text, in order. A text without one has each token at its own position."""

    runs: tuple[Run, ...] = ()

    @classmethod
    def of(cls, text: Tokens, shown: Sequence[Shown]) -> Layout:
        """``shown``: what the negative tokens of the text stand for, or of a longer text that
        begins with it."""
        if not shown:
            return _PLAIN
        runs: list[Run] = []
        places, i, num_saved = np.flatnonzero(text < 0), 0, 0
        for image in shown:
            if i == len(places):
                break
            assert isinstance(image, ImageTokens)
            begin = int(places[i])
            end = begin + len(image.tokens)
            assert np.array_equal(text[begin:end], image.tokens), "a text ends behind its pictures"
            runs.append(Run(begin, end, begin - num_saved, image))
            num_saved += runs[-1].num_saved
            i += len(image.tokens)
        return cls(tuple(runs))

    def position(self, index: int) -> int:
        """Of the text's token ``index``, or of the draft's behind it."""
        position = index
        for run in self.runs:
            if index >= run.end:
                position -= run.num_saved
            elif index > run.begin:
                return run.position
        return position

    def index(self, position: int) -> int:
        """Of the text's token at a position that is no picture's, or of the draft's behind it."""
        passed = (run for run in self.runs if position >= run.position + run.image.num_positions)
        return position + sum(run.num_saved for run in passed)

    def until(self, end: int) -> Layout:
        """Of the first tokens, where no picture is cut in two."""
        if all(run.end <= end for run in self.runs):
            return self
        return Layout(tuple(run for run in self.runs if run.end <= end))

    def cut(self, index: int) -> int:
        """The largest place up to ``index`` that is within no picture."""
        return next((run.begin for run in self.runs if run.begin < index < run.end), index)

    def next_run(self, index: int) -> Run | None:
        """The first picture at a place or behind it."""
        return next((run for run in self.runs if run.begin >= index), None)


_PLAIN = Layout()
