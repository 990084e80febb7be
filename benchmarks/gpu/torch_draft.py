"""Run a draft model on torch: a draft on the GPU, to compare with one on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from duodec.backends.torch.network import Network
from duodec.backends.torch.target import TorchScores, TorchTarget
from duodec.core.protocols import DraftModel, Query, RowQuery
from duodec.core.rows import Row


class TorchDraftModel(DraftModel):
    """A draft model over a `TorchTarget`: one forward pass, the requested rows to the host.

    It has the target's context length; of a larger vocabulary it uses only the first ``num_vocab``
    tokens.
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
