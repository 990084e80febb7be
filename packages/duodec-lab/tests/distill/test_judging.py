"""Which of two drafts is kept."""

from __future__ import annotations

import pytest

from duodec_lab.distill.judging import Verdict


@pytest.mark.parametrize(
    ("default", "chain", "is_better"),
    [(3.1, 1.7, True), (2.9, 1.9, False), (3.0, 1.9, True), (3.0, 1.8, False), (3.0, 1.7, False)],
)
def test_all_sources_decide_and_the_draft_alone_between_equals(
    default: float, chain: float, is_better: bool
) -> None:
    assert Verdict("new.gguf", chain, default).beats(Verdict("old.gguf", 1.8, 3.0)) == is_better
