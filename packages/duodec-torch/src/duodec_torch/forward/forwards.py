"""Run forward passes over static buffers: rows go in by one copy, logits come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from duodec.core.draft import ROOT
from duodec.core.targets import Query
from duodec.errors import ComputeFailed
from duodec_torch.forward.attention import TAIL, Layout, PerDevice, Rows
from duodec_torch.forward.cache import CellCache
from duodec_torch.forward.graphs import Graphs, Queue
from duodec_torch.forward.network import Network
from duodec_torch.heads.states import States
from duodec_torch.library import first_line, torch
from duodec_torch.sampling.summaries import GREEDY, NUM_COLUMNS, Summarise
from duodec_torch.uploads import upload

_Result = TypeVar("_Result")
# columns of a row; how it is drawn takes three, and its tail is from the last on
_TOKEN, _POSITION, _CELL, _BASE, _WAY, _, _, _TAIL = range(8)
_WIDTH = _TAIL + TAIL
_GREEDY = int(np.float32(GREEDY).view(np.int32))


@dataclass(frozen=True)
class InputRows:
    """Rows to compute, on the host: (rows, columns) int64."""

    values: NDArray[np.int64]

    @classmethod
    def of_text(cls, query: Query, base: int, begin: int, end: int) -> InputRows:
        """Positions ``begin`` .. ``end - 1`` of the query's text."""
        values = np.empty((end - begin, _WIDTH), dtype=np.int64)
        positions = np.arange(begin, end)
        values[:, _TOKEN] = query.text[begin:end]
        values[:, _POSITION] = positions
        values[:, _CELL] = base + positions
        values[:, _BASE] = base
        values[:, _WAY:_TAIL] = _GREEDY
        # places before the text are masked, and may be anything
        places = positions[:, None] + np.arange(1 - TAIL, 1)
        values[:, _TAIL:] = base + np.maximum(places, 0)
        return cls(values)

    @classmethod
    def of_draft(cls, query: Query, base: int) -> InputRows:
        """The draft's nodes, in cells after the text in their own order."""
        draft, end = query.draft, len(query.text)
        values = np.empty((len(draft), _WIDTH), dtype=np.int64)
        values[:, _TOKEN] = draft.tokens
        values[:, _POSITION] = end - 1 + np.array(draft.depths(), dtype=np.int64)
        values[:, _CELL] = base + end + np.arange(len(draft))
        values[:, _BASE] = base
        values[:, _WAY:_TAIL] = _GREEDY
        tails = values[:, _TAIL:]
        root = base + np.maximum(np.arange(end - TAIL, end), 0)
        for node, parent in enumerate(draft.parents):
            tails[node, :-1] = (root if parent == ROOT else tails[parent])[1:]
            tails[node, -1] = values[node, _CELL]
        return cls(values)

    def draw(self, rows: NDArray[np.int64], ways: NDArray[np.int64]) -> None:
        """Say how these rows are drawn, as `Summarise` takes it; all others are greedy."""
        self.values[rows, _WAY:_TAIL] = ways

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> InputRows:
        return InputRows(self.values[part])

    def __add__(self, other: InputRows) -> InputRows:
        return InputRows(np.concatenate([self.values, other.values]))

    @property
    def bases(self) -> list[int]:
        return [int(base) for base in np.unique(self.values[:, _BASE])]

    def last_position(self, base: int) -> int:
        """The last position of the rows of the slot at ``base``."""
        return int(self.values[self.values[:, _BASE] == base, _POSITION].max())

    @property
    def end_cell(self) -> int:
        """The cell after the last that is written."""
        return int(self.values[:, _CELL].max()) + 1


class Forwards:
    """Runs a network over rows. Logits, and the summaries of rows where they are made, are in
    buffers that the next forward pass overwrites.

    Rows that only pad a forward pass write to their own cells at the end of the cache, and see one
    cell of an active slot; their results are dropped.
    """

    def __init__(
        self,
        network: Network,
        cache: CellCache,
        queue: Queue,
        *,
        max_rows: int,
        max_logits: int,
        on_warning: Callable[[str], None],
        states: States | None = None,
        summarise: Summarise | None = None,
    ) -> None:
        """With ``states``, each row's last hidden state goes to its cell there."""
        self._states, self._summarise = states, summarise
        self._network, self._cache, self._queue = network, cache, queue
        self._graphs = Graphs(queue, on_warning)
        if queue.is_cuda and len(network.devices) > 1:
            self._graphs.give_up(f"the model is spread over {len(network.devices)} GPUs")
        self._pad_cell = cache.num_cells - max_rows
        shape = (max_rows, _WIDTH)
        self._host = torch.zeros(shape, dtype=torch.int64, pin_memory=queue.is_cuda)
        self._inputs = torch.zeros(shape, dtype=torch.int64, device=network.device)
        self._logits = torch.zeros(
            (max_logits, network.num_vocab), dtype=torch.float32, device=network.device
        )
        self._summaries = torch.zeros(
            (max_logits if summarise else 0, NUM_COLUMNS),
            dtype=torch.float64,
            device=network.device,
        )
        self._copied = torch.cuda.Event() if queue.is_cuda else None

    def read(self, inputs: InputRows, num_rows: int, layout: Layout) -> torch.Tensor:
        """Compute ``inputs`` padded to ``num_rows``, without a graph: the logits of the last of
        them, (1, vocab) fp32. Raises ComputeFailed."""
        self._send(inputs, num_rows)
        last = upload([len(inputs) - 1], self._inputs.device)
        return self._guarded(lambda: self._compute(num_rows, layout, last)).float()

    def score(
        self, inputs: InputRows, num_rows: int, layout: Layout, *, can_repeat: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute ``inputs`` padded to ``num_rows``: their logits, (rows, vocab) fp32, and their
        summaries, none if these are not made. Forward passes that can repeat, with the same layout,
        use a graph. Raises ComputeFailed."""
        self._send(inputs, num_rows)

        def body() -> None:
            logits = self._logits[:num_rows]
            logits.copy_(self._compute(num_rows, layout, None))
            if self._summarise is not None:
                ways = self._inputs[:num_rows, _WAY:_TAIL]
                self._summarise(logits, ways, self._summaries[:num_rows])

        run = self._graphs.run if can_repeat else _run
        self._guarded(lambda: run((num_rows, layout), body))
        return self._logits[: len(inputs)], self._summaries[: len(inputs)]

    def _send(self, inputs: InputRows, num_rows: int) -> None:
        """Put the rows in the static inputs: one copy."""
        if self._copied is not None:
            self._copied.synchronize()  # the previous copy may still be in progress
        host = self._host[:num_rows]
        values = host.numpy()
        num_inputs = len(inputs)
        values[:num_inputs] = inputs.values
        values[num_inputs:] = 0
        values[num_inputs:, _CELL] = self._pad_cell + np.arange(num_rows - num_inputs)
        base = inputs.values[0, _BASE]
        values[num_inputs:, _BASE] = base
        values[num_inputs:, _WAY:_TAIL] = _GREEDY
        values[num_inputs:, _TAIL:] = base
        self._inputs[:num_rows].copy_(host, non_blocking=True)
        if self._copied is not None:
            self._copied.record(self._queue.stream)

    def _compute(self, num_rows: int, layout: Layout, kept: torch.Tensor | None) -> torch.Tensor:
        inputs = self._inputs[:num_rows]
        positions = inputs[:, _POSITION]
        self._cache.write_to(inputs[:, _CELL])
        rows = Rows(positions, inputs[:, _BASE], inputs[:, _TAIL:])
        plan = PerDevice.of(layout, rows, self._network.devices)
        logits = self._network.forward(inputs[:, _TOKEN], positions, self._cache, plan, kept)
        if self._states is not None:
            self._states.write(inputs[:, _CELL], self._network.states)
        return logits

    def _guarded(self, work: Callable[[], _Result]) -> _Result:
        try:
            return work()
        except Exception as error:  # out of memory, errors of the driver or a compiler
            raise failure(error) from error


def failure(error: Exception) -> ComputeFailed:
    """torch's error, in one line."""
    reason = first_line(error)
    return ComputeFailed(
        f"torch could not compute a forward pass ({reason}); if memory is short, "
        "use a smaller `context`"
    )


def _run(key: object, body: Callable[[], None]) -> None:
    body()
