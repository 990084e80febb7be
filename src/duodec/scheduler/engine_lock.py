"""Let several threads step a scheduler: one at a time computes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock
from typing import Any

from duodec.errors import BadOption
from duodec.scheduler.scheduler import Scheduler

_CLOSED = "this LLM is closed; load it again, or keep its `with` block open while it is used"


@dataclass
class EngineLock:
    """Hold the lock of the thread that computes, and what ends with the models. Copies of an `LLM`
    share them."""

    resources: ExitStack = field(default_factory=ExitStack)
    lock: Any = field(default_factory=RLock)
    is_closed: bool = False

    @cached_property
    def worker(self) -> ThreadPoolExecutor:
        """Return the thread that computes for asyncio."""
        worker = ThreadPoolExecutor(1, "duodec")
        self.resources.callback(worker.shutdown)
        return worker

    def check_open(self) -> None:
        """Raise BadOption if it is closed."""
        if self.is_closed:
            raise BadOption(_CLOSED)

    def close(self, scheduler: Scheduler | None) -> None:
        """End requests and resources, and wait for the thread that computes. It can be called
        twice."""
        with self.lock:
            self.is_closed = True
            if scheduler is not None:
                if scheduler.is_computing_elsewhere:
                    with suppress(Exception):  # whatever it computes is not needed
                        scheduler.finish_forward()
                scheduler.close(BadOption(_CLOSED))
        self.resources.close()
