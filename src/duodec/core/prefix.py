"""What two texts have in common: what a memo of one knows of the other."""

from __future__ import annotations

from duodec.core.sampling import Tokens


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Tokens that two texts share from the start."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length
