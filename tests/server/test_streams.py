"""One forward for the texts of many slots, for real: nobody's company shows in anybody's bits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from time import sleep
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("prometheus_client")

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.chains import LlamaChains, chain_of
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.core.draft import Draft
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import SamplingParams, Tokens
from duodec.core.targets import Query
from duodec.errors import BadOption, ContextExceeded
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.models import resolve
from duodec.scheduler.outputs import Done, Failed, Output
from duodec.server.service import Service
from duodec.server.settings import Settings

NUM_SLOTS = 5


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel(resolve("smollm2").path)
    yield model
    model.close()


@pytest.fixture
def streams(model: LlamaModel) -> Iterator[LlamaChains]:
    streams = LlamaChains(
        model,
        num_slots=NUM_SLOTS,
        num_context=700,
        num_threads=2,
    )
    yield streams
    streams.close()


@pytest.fixture
def alone(model: LlamaModel) -> Iterator[LlamaTarget]:
    target = LlamaTarget(model, num_context=700, num_threads=1)
    yield target
    target.close()


def texts_of(model: LlamaModel) -> list[Tokens]:
    """Some shorter than a row of cells that attention takes at once, some longer."""
    texts = [f"Story {i}: " + "once upon a time " * (3 + 18 * i) for i in range(NUM_SLOTS)]
    return [np.array(model.tokenize(text, is_templated=False), dtype=np.int32) for text in texts]


def rows_of(target: LlamaChains | LlamaTarget, *queries: Query) -> list[list[np.ndarray]]:
    found = []
    for scores in target.score(queries):
        assert isinstance(scores, LlamaScores)
        found.append([row.copy() for row in scores.rows])
    return found


def chain(tokens: list[int]) -> Draft:
    return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)))


def test_the_first_nodes_that_are_a_chain() -> None:
    assert chain_of(Draft()) == ()
    assert chain_of(chain([4, 5, 6])) == (4, 5, 6)
    assert chain_of(Draft((4, 5, 6, 7), (-1, 0, -1, 1))) == (4, 5)
    assert chain_of(Draft((4, 5), (-1, -1))) == (4,)


@pytest.mark.slow
def test_rows_have_the_bits_of_a_text_alone(model: LlamaModel, streams: LlamaChains) -> None:
    dice = np.random.default_rng(3)
    texts = texts_of(model)
    alone = [LlamaTarget(model, num_context=700, num_threads=1) for _ in texts]
    num_rows = 0
    for i in range(12):
        streams.num_rows = (0, 8)[i % 2]  # padded, or as they are
        here = sorted(dice.permutation(NUM_SLOTS)[: dice.integers(1, NUM_SLOTS + 1)].tolist())
        drafts = [chain(dice.integers(5, 900, dice.integers(0, 4)).tolist()) for _ in here]
        queries = [
            Query(slot, texts[slot], draft) for slot, draft in zip(here, drafts, strict=True)
        ]
        for query, rows in zip(queries, rows_of(streams, *queries), strict=True):
            (expected,) = rows_of(alone[query.slot], query)  # in one context they are company
            assert all(map(np.array_equal, rows, expected))
            num_rows += len(rows)
            taken = [*query.draft.tokens[: dice.integers(0, len(query.draft) + 1)], 77]
            texts[query.slot] = np.append(texts[query.slot], np.int32(taken))
    assert num_rows > 50
    for target in alone:
        target.close()


@pytest.mark.slow
def test_a_text_that_changes_is_read_anew_from_there(
    model: LlamaModel, streams: LlamaChains, alone: LlamaTarget
) -> None:
    text = texts_of(model)[2]
    rows_of(streams, Query(1, text, chain([5, 6, 7])))
    other = text.copy()
    other[20] = 99
    for changed in (other, text[:30], text):
        (own,), (expected,) = (rows_of(t, Query(1, changed)) for t in (streams, alone))
        assert np.array_equal(own[0], expected[0])


def test_of_many_long_drafts_as_much_is_scored_as_a_forward_gives(
    model: LlamaModel, streams: LlamaChains
) -> None:
    draft = chain(list(range(10, 90)))
    queries = [Query(slot, text[:40], draft) for slot, text in enumerate(texts_of(model))]
    counts = [len(rows) for rows in rows_of(streams, *queries)]
    assert sum(counts) <= 160
    assert min(counts) > 20


@pytest.mark.slow
def test_what_does_not_fit_ends_its_own_answer_and_can_be_asked_again(
    model: LlamaModel, streams: LlamaChains, alone: LlamaTarget
) -> None:
    text = texts_of(model)[0]
    with pytest.raises(ContextExceeded, match="`context`"):
        streams.score([Query(0, np.resize(text, 1200))])
    (own,), (expected,) = (rows_of(t, Query(0, text)) for t in (streams, alone))
    assert np.array_equal(own[0], expected[0])


def test_there_are_only_so_many_texts(model: LlamaModel) -> None:
    with pytest.raises(BadOption, match=r"num_slots is 257 .* 256 or fewer"):
        LlamaChains(model, num_slots=257, num_context=100, num_threads=1)


METHODS = ("ar", "auto", "stream", "duo", "sps", "lookup", "lookahead", "recycling", "suffix")


@pytest.mark.slow
@pytest.mark.parametrize("pace_s", [0.0, 0.02])  # paced: who is alone begins in another context
def test_many_clients_get_what_each_gets_alone(pace_s: float) -> None:
    config = EngineConfig(context=512, pace=pace_s, num_slots=4)
    with load(config) as engine:
        asks = [ask(engine, i) for i in range(len(METHODS) + 3)]
        expected = [plainly(engine, a) for a in asks]
        service = Service(Settings("smollm2", num_slots=4))
        service.start(engine)
        try:
            with ThreadPoolExecutor(len(asks) + 1) as pool:
                first = pool.submit(answered, service, asks[METHODS.index("stream")])
                sleep(5 * pace_s)
                answers = list(pool.map(lambda a: answered(service, a), asks))
        finally:
            service.close()
    assert [done.finished.text for done in answers] == expected
    assert first.result().finished.text == expected[METHODS.index("stream")]
    assert [done.method for done in answers] == [a.method for a in asks]
    assert any(r.num_accepted for done in answers for r in done.finished.stats.rounds)


class Ask(NamedTuple):
    """A completion, as it is wanted."""

    tokens: list[int]
    params: SamplingParams
    method: str


def ask(engine: LLM, i: int) -> Ask:
    tokens = engine.tokens_of(f"Here is what I know of the number {i}: " + "one two three " * i)
    grammar = Grammar("regex", "(one|two|[a-z]{4,9})( (one|two|[a-z]{4,9}))*") if i % 3 else None
    sampling = SamplingParams(temperature=(0.0, 0.8)[i % 2], grammar=grammar, seed=i)
    return Ask(tokens, replace(sampling, max_tokens=24), METHODS[i % len(METHODS)])


def plainly(engine: LLM, asked: Ask) -> str:
    return engine.generate([asked.tokens], asked.params, method="ar")[0].text


def answered(service: Service, asked: Ask) -> Done:
    outputs: list[Output] = []
    over = Event()

    def hear(output: Output) -> None:
        outputs.append(output)
        if isinstance(output, Done | Failed):
            over.set()

    (served,) = service.models.loaded
    task = served.llm.scheduled(asked.tokens, asked.params, method=asked.method, on_output=hear)
    served.scheduler.submit([task])
    assert over.wait(240)  # a loaded machine takes its time
    last = outputs[-1]
    assert isinstance(last, Done), last
    return last
