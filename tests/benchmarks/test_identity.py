"""The experiment on identity: what is counted of a text, and where it parts from the plain one."""

from __future__ import annotations

from benchmarks.exactness.identity import Count, compared
from fakes.decoding import FakeTokenizer

from duodec.core.round import Round, Stats
from duodec.llm import LLM
from duodec.scheduler.completions import Completion
from duodec.testing import TableModel, TableTarget


def completion(*tokens: int) -> Completion:
    one = Round(tokens, 1, 5, 4, 1e-4, 0.0, 1.0)
    return Completion("", tokens, "length", Stats(3, (one, one), 0.0, 1.0, 2.0), "sps", 7)


def test_a_divergence_is_counted_with_its_place() -> None:
    count = Count()
    count.add(completion(1, 2, 3), completion(1, 2, 3))
    assert (count.divergences, count.places) == (0, [])
    count.add(completion(1, 5, 3), completion(1, 2, 3))
    count.add(completion(1, 2), completion(1, 2, 3))
    assert count.divergences == 2
    assert count.places == ["token 1: 2 became 5", "3 tokens became 2"]
    assert (count.answers, count.tokens) == (3, 8)
    assert (count.draft_tokens, count.accepted_tokens) == (30, 6)
    assert (count.refusals, count.near_ties) == (6, 6)
    both = Count()
    both.merge(count)
    both.merge(count)
    assert (both.divergences, both.places) == (4, 2 * count.places)


def test_methods_are_compared_at_each_temperature() -> None:
    tokenizer = FakeTokenizer(
        tuple(bytes([i]) for i in range(128)), chat_template="{{ messages[0].content }}"
    )
    engine = LLM(TableTarget(TableModel(num_vocab=128, order=1, seed=3)), tokenizer, 500)
    counts = compared(engine, "What is it?", (0.0, 0.8), ("lookup", "recycling"), 20)
    assert list(counts) == ["lookup T=0", "recycling T=0", "lookup T=0.8", "recycling T=0.8"]
    assert all(count.tokens == 20 and count.divergences == 0 for count in counts.values())
