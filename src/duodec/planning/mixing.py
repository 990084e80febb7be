"""Mix the estimates of several sources for a token into one likelihood, by weights learned online.

This is logistic mixing, as in compressors of the PAQ family (Mahoney 2005, Mattern 2012). The logit
of the mixture is a weighted sum of

- the logit of the joint likelihood, 1 - prod(1 - p): at least one source is right, if they err
  independently,
- for every source that proposes the token, the logit of its p, and a constant,
- for every source that proposes other tokens there, but not this one, a constant,
- the joint likelihood of the best rival, the likeliest other token there.

Each generated token labels all tokens that were proposed in its place; AdaGrad (Duchi et al. 2011)
moves the weights accordingly. C++ computes it (`native/selection.cpp`).
"""

from __future__ import annotations

from array import array
from enum import IntEnum

from duodec.drafting import constants


class Kind(IntEnum):
    """Name the kind of a source."""

    DRAFT_MODEL = 0
    ROWS = 1  # rows that the target has scored
    OWN_TEXT = 2
    EARLIER_TEXTS = 3
    DATASTORE = 4
    HEADS = 5  # the target's heads


class Mixer:
    """Hold the weights and the sums of their squared gradients. Each kind of source has three: for
    its logit, for proposing the token, and for proposing others. The joint likelihood and the rival
    have one each."""

    def __init__(self) -> None:
        # The compiled library keeps the addresses of these arrays, so they are never replaced and
        # never grow.
        self.weights = array("d", constants.MIXING_WEIGHTS)
        self.squares = array("d", bytes(8 * len(self.weights)))
