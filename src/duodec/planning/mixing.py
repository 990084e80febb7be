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

LEAST = 1e-4  # of a likelihood, and of what it lacks to 1, for a logit
MOST = 12.0  # of a logit
RATE = 0.1  # of learning
MOST_SQUARES = 300.0  # of a weight's gradients, summed: what is new always counts a little


class Kind(IntEnum):
    """Of a source."""

    DRAFT_MODEL = 0
    ROWS = 1  # that the target has scored
    OWN_TEXT = 2
    EARLIER_TEXTS = 3
    DATASTORE = 4
    HEADS = 5  # of the target


# By kind. Learned where SmolLM2 was drafted for by the shipped draft and Qwen2.5-Coder-1.5B by its
# 0.5B, on the first 112 and 49 prompts of Spec-Bench. The two agree to 0.4, and either's serve the
# other as well. A datastore is taken for earlier texts, heads for a draft model.
_LOGITS = (0.1, -0.1, 0.2, -0.2, -0.2, 0.1)
_PROPOSED = (0.4, -0.5, 0.5, -0.5, -0.5, 0.4)
_OTHERS_PROPOSED = (-1.7, -0.1, -0.3, -0.1, -0.1, -1.7)
_JOINT, _RIVAL = 0.9, -1.7


class Mixer:
    """The weights, and the sums of their squared gradients: by kind of source for its logit, where
    it proposes the token, and where it proposes others; of the joint likelihood; of the rival."""

    def __init__(self) -> None:
        # the compiled library keeps their addresses: they are never replaced and never grow
        self.weights = array("d", [*_LOGITS, *_PROPOSED, *_OTHERS_PROPOSED, _JOINT, _RIVAL])
        self.squares = array("d", bytes(8 * len(self.weights)))
