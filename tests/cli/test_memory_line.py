"""What is said of memory before anything is decoded."""

from __future__ import annotations

import pytest

from duodec.cli.opening import memory_line
from duodec.llm import LLM
from duodec.loading.memory import MemoryUse


def test_a_server_names_the_options_that_take_less() -> None:
    use = MemoryUse(1_110_000_000, 4_870_000_000, 490_000_000, 4, 32768)
    assert memory_line(use) == (
        "memory: 1.11 GB of weights, 490 MB of draft, at most 4.87 GB of caches (4 requests of "
        "32768 tokens); -c 16384 halves the caches, -np 1 keeps one, for a single user"
    )


def test_a_single_user_has_one_cache() -> None:
    line = memory_line(MemoryUse(97_000_000, 198_000_000, 0, 1, 8192))
    assert line == (
        "memory: 97 MB of weights, at most 198 MB of caches (8192 tokens); -c 4096 halves the "
        "caches"
    )


@pytest.mark.slow
def test_what_is_said_is_what_was_loaded() -> None:
    with LLM.load("smollm2", num_slots=4, context=1024) as four, LLM.load("smollm2") as one:
        several, single = four.loaded.memory, one.loaded.memory
        assert several
        assert single
        assert (several.num_slots, several.num_context) == (4, 1024)
        assert single.num_context == 8192
        assert single.draft_bytes == 29_671_936
        assert several.cache_bytes * 8 == single.cache_bytes * 5  # one for a lone request
