"""A target at another model's cost gives the same text as alone."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make setup-torch")

from benchmarks.gpu.ballast import (  # noqa: E402
    SHAPES,
    BallastNetwork,
    random_model,
    shape_named,
)
from benchmarks.gpu.torch_draft import TorchDraftModel  # noqa: E402
from duodec.backends.torch.network import Network  # noqa: E402
from duodec.backends.torch.target import TorchScores, TorchTarget  # noqa: E402
from duodec.core.draft import Draft  # noqa: E402
from duodec.core.protocols import Query, RowQuery  # noqa: E402
from duodec.errors import BadOption  # noqa: E402

TINY = SHAPES["tiny"]
TEXT = np.array([5, 6, 7, 8], dtype=np.int32)
TREE = Draft((9, 10, 11), (-1, 0, 0))


def model() -> object:
    torch.manual_seed(0)
    return random_model(TINY, dtype=torch.float32, device="cpu")


def logits(target: TorchTarget, text: np.ndarray, draft: Draft) -> object:
    (scores,) = target.score([Query(0, text, draft)])
    assert isinstance(scores, TorchScores)
    return scores.logits.clone()


def test_the_stack_beside_a_model_changes_no_answer() -> None:
    own = model()
    alone = TorchTarget(Network(own), num_context=64)
    expected = [logits(alone, TEXT, TREE), logits(alone, np.append(TEXT, np.int32(9)), TREE)]
    alone.close()
    calls = []
    beside = random_model(TINY, dtype=torch.float32, device="cpu")
    beside.register_forward_hook(lambda *_: calls.append(1))
    network = BallastNetwork(own, beside)
    calls.clear()
    loaded = TorchTarget(network, num_context=64)
    found = [logits(loaded, TEXT, TREE), logits(loaded, np.append(TEXT, np.int32(9)), TREE)]
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert len(calls) >= 2  # it was computed each time
    loaded.close()


def test_a_draft_on_torch_gives_the_targets_rows() -> None:
    own = model()
    draft = TorchDraftModel(Network(own), num_context=64, num_vocab=100)
    rows = draft.rows(RowQuery(0, TEXT, TREE, (0, 3)))
    draft.close()
    target = TorchTarget(Network(own), num_context=64, is_width_exact=False)
    expected = logits(target, TEXT, TREE)
    assert [len(row) for row in rows] == [100, 100]
    for row, wanted in zip(rows, (0, 3), strict=True):
        assert np.allclose(row, expected[wanted, :100], atol=1e-5)  # type: ignore[index]
    target.close()


def test_an_unknown_shape_is_named_with_those_there_are() -> None:
    with pytest.raises(BadOption, match="llama-2-7b"):
        shape_named("llama-9")
