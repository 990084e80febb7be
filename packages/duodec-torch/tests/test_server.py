"""A torch target behind the server: four requests in one cache, each with the same text as
alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

from fakes.server import Running, running

from duodec.core.targets import Query, Scores
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec_torch.target import TorchTarget

NUM_SLOTS, NUM_TOKENS = 4, 40
PROMPTS = ["The sky is", "Once upon a time there was a fox", "1 2 3 4 5 6 7 8 9", "x " * 150]


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LLM]:
    with load(config(folder)) as engine:
        yield engine


def config(folder: Path) -> EngineConfig:
    return EngineConfig(
        target=str(folder), draft=None, dtype="fp32", device="cpu", context=512, num_slots=NUM_SLOTS
    )


def text(server: Running, prompt: str, temperature: float) -> str:
    fields = {"temperature": temperature, "seed": 3, "max_tokens": NUM_TOKENS}
    response = server.complete(prompt, **fields, speculation={"method": "lookup"})
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_four_at_once_are_answered_as_each_alone(
    engine: LLM, folder: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    target, sizes = engine.loaded.target, list[int]()
    assert isinstance(target, TorchTarget)
    score = target.score

    def counted(queries: Sequence[Query]) -> list[Scores]:
        sizes.append(len(queries))
        return score(queries)

    monkeypatch.setattr(target, "score", counted)
    with running(is_loaded=False, num_slots=NUM_SLOTS) as server:
        server.service.start(engine)
        assert server.http.get("/props").json()["total_slots"] == NUM_SLOTS
        sizes.clear()
        alone = [text(server, prompt, temperature) for prompt in PROMPTS]
        assert max(sizes) == 1
        assert len(set(alone)) == len(alone)
        with ThreadPoolExecutor(NUM_SLOTS) as pool:
            for order in (PROMPTS, PROMPTS[::-1]):
                answers: list[Any] = list(
                    pool.map(lambda prompt: text(server, prompt, temperature), order)
                )
                assert answers == [alone[PROMPTS.index(prompt)] for prompt in order]
        assert max(sizes) >= 3, "they were scored together"
