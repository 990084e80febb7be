"""Start drafters in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from duodec.backends.drafter.process import ProcessDrafter, Recipe


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def start(warnings: list[str]) -> Iterator[Callable[[Recipe], ProcessDrafter]]:
    """Starts drafters that are closed in the end."""
    started: list[ProcessDrafter] = []

    def ready(recipe: Recipe, wait: bool = True) -> ProcessDrafter:
        started.append(ProcessDrafter(recipe, on_warning=warnings.append))
        if wait:
            started[-1].wait_ready()
        return started[-1]

    yield ready
    for drafter in started:
        drafter.close()
