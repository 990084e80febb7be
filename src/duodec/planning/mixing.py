"""Mix what several sources say of a token into one likelihood, by weights learned online.

Logistic mixing, as compressors of the PAQ family do it (Mahoney 2005, Mattern 2012). The logit of
the mixture is a weighted sum of

- the logit of the joint likelihood, 1 - prod(1 - p): that one source at least is right, if they err
  independently,
- of every source that proposes the token, the logit of its p, and a constant,
- of every source that proposes other tokens there, but not this one, a constant,
- the joint likelihood of the best rival, the likeliest other token there.

Each token that came is a label of all that were proposed in its place; AdaGrad (Duchi et al. 2011)
moves the weights by it. It is computed in C++ (`native/selection.cpp`).
"""

from __future__ import annotations

from array import array
from enum import IntEnum

from duodec.drafting import constants


class Kind(IntEnum):
    """Of a source."""

    DRAFT_MODEL = 0
    ROWS = 1  # that the target has scored
    OWN_TEXT = 2
    EARLIER_TEXTS = 3
    DATASTORE = 4
    HEADS = 5  # of the target


class Mixer:
    """The weights, and the sums of their squared gradients: by kind of source for its logit, where
    it proposes the token, and where it proposes others; of the joint likelihood; of the rival."""

    def __init__(self) -> None:
        # the compiled library keeps their addresses: they are never replaced and never grow
        self.weights = array("d", constants.MIXING_WEIGHTS)
        self.squares = array("d", bytes(8 * len(self.weights)))
