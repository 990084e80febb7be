"""Capture CUDA graphs: a body's kernels are launched once one by one, then replayed as a whole.

The same body runs either way, over the same static buffers, so on a CPU everything but capture
and replay itself is exercised. Those two were written from the documentation and never ran on the
machine where this was developed, which has no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from duodec_torch.library import first_line, torch

_NUM_WARM_UPS = 3  # workspaces, plans and compiled kernels are made before capture


class Queue:
    """The order in which a device works: our own CUDA stream; on a CPU, the program's order."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.is_cuda else None
        if self.stream is not None:  # the weights may still be in transit
            self.stream.wait_stream(torch.cuda.current_stream(device))

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Queue the work inside here, without gradients."""
        with torch.inference_mode():
            if self.stream is None:
                yield
            else:
                with torch.cuda.stream(self.stream):
                    yield

    def to_host(self, tensor: torch.Tensor) -> NDArray[np.float64]:
        """Copy a small float64 tensor to the host; waits until the device has computed it."""
        return self.copied(tensor)()

    def copied(self, tensor: torch.Tensor) -> Callable[[], NDArray[np.float64]]:
        """Queue the copy of a small float64 tensor; what is returned waits for it."""
        if self.stream is None:
            return lambda: np.asarray(tensor.numpy())
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        pinned.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record(self.stream)

        def arrived() -> NDArray[np.float64]:
            event.synchronize()
            return np.asarray(pinned.numpy())

        return arrived


class Graphs:
    """Captured bodies by their keys. A body takes and leaves everything in static buffers that
    were allocated before, outside of the graphs' pool.

    If nothing can be captured, the body just runs; after a failed capture nothing is tried again,
    and ``on_warning`` gets one line.
    """

    def __init__(self, queue: Queue, on_warning: Callable[[str], None]) -> None:
        self._queue = queue
        self._on_warning = on_warning
        self._can_capture = queue.is_cuda
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if queue.is_cuda else None

    def run(self, key: Hashable, body: Callable[[], None]) -> None:
        """Do what ``body`` does; bodies of one key launch the same kernels on the same memory."""
        if self._can_capture and key not in self._graphs:
            self._capture(key, body)
        graph = self._graphs.get(key) if self._can_capture else None
        if graph is None:
            body()
        else:
            graph.replay()

    def _capture(self, key: Hashable, body: Callable[[], None]) -> None:
        try:
            graph = torch.cuda.CUDAGraph()
            for _ in range(_NUM_WARM_UPS):
                body()
            assert self._queue.stream is not None
            self._queue.stream.synchronize()
            # other threads may use CUDA meanwhile
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._queue.stream,
                capture_error_mode="thread_local",
            ):
                body()
        except Exception as error:  # noqa: BLE001  a compiler's errors are of any type; the body runs eagerly
            self.give_up(first_line(error))
            return
        self._graphs[key] = graph

    def give_up(self, reason: str) -> None:
        """Capture nothing from now on."""
        self._can_capture = False
        self._graphs.clear()
        self._on_warning(f"CUDA graphs are off, decoding will be slower: {reason}")
