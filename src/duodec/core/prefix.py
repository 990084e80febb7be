"""Find the prefix that two texts share, which is cached for one and need not be computed for the
other."""

from __future__ import annotations

from duodec.core.sampling.sampler import Tokens


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Return how many tokens two texts share from the start."""
    length = min(len(a), len(b))
    a, b = a[:length], b[:length]
    if a.tobytes() == b.tobytes():  # the usual case, at a third of the cost
        return length
    differ = a != b
    return int(differ.argmax()) if differ.any() else length
