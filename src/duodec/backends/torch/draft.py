"""A draft model on torch: for a draft on the GPU, to compare with one on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from duodec.backends.torch.network import Network
from duodec.backends.torch.target import TorchScores, TorchTarget
from duodec.core.protocols import Query, RowQuery
from duodec.core.rows import Row


class TorchDraftModel:
    """A draft model over a `TorchTarget`: one forward, the rows that are wanted to the host.

    It has as many context as the target; of a larger vocabulary it knows the first ``num_vocab``
    tokens only.
    """

    def __init__(
        self,
        network: Network,
        *,
        num_context: int,
        num_vocab: int | None = None,
        on_warning: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._target = TorchTarget(
            network, num_context=num_context, is_width_exact=False, on_warning=on_warning
        )
        self._num_vocab = num_vocab

    def rows(self, query: RowQuery) -> list[Row]:
        (scores,) = self._target.score([Query(query.slot, query.text, query.draft)])
        assert isinstance(scores, TorchScores)
        wanted = scores.logits[list(query.rows), : self._num_vocab].cpu().numpy()
        return list(wanted)

    def close(self) -> None:
        self._target.close()
