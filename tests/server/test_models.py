"""Several models behind one server: loaded when asked for, unloaded for space, never in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from time import sleep
from typing import Any

import httpx
import pytest
from fakes.decoding import Letters
from fakes.server import MODEL, TABLE, Running, Slowed, engine_on_tables, events, running, until

import duodec
from duodec.backends.llamacpp import load as llama
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import ModelNotFound
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.loading.load import fits
from duodec.loading.resolve import resolve_pair
from duodec.server.http.intake import Intake
from duodec.server.metrics import Meters
from duodec.server.models.loaded import LoadedModel
from duodec.server.models.registry import Source
from duodec.server.models.scheduler_thread import FairLock
from duodec.server.settings import Settings
from duodec.testing import TableTarget

DRAFT = Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf"
SEEDS = {MODEL: 7, "one": 8, "two": 9}


class Factory:
    """Makes models and counts them; ``slow`` holds their loading up until it is set."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.most = 0
        self.slow: Event | None = None
        self.fits: Callable[[int], bool] = lambda taken: True
        self.on_score: Any = lambda queries: None

    def source(self, name: str) -> Source:
        return Source(lambda taken: self.load(name), lambda taken: self.fits(taken))

    def load(self, name: str) -> LLM:
        if self.slow is not None:
            assert self.slow.wait(20)
        target = Slowed(TableTarget(replace(TABLE, seed=SEEDS[name])), self.seconds, self.on_score)
        llm = LLM(target, Letters(), 400, num_slots=4)
        llm.loaded.resources.callback(self.closed.append, name)
        self.opened.append(name)
        self.most = max(self.most, len(self.opened) - len(self.closed))
        return llm


@contextmanager
def several(factory: Factory, **settings: Any) -> Iterator[Running]:
    sources = {name: factory.source(name) for name in SEEDS}
    with running(is_loaded=False, sources=sources, **settings) as server:
        server.service.start()
        yield server


def test_case_and_latest_say_nothing_and_unknown_names_are_refused() -> None:
    with several(Factory(), num_models=3) as server:
        for name, own in (("ONE", "one"), ("two:latest", "two"), (None, MODEL)):
            done = server.complete(model=name, max_tokens=2)
            assert done.json()["model"] == own
        assert server.complete(model="three").status_code == 404


def text(server: Running, name: str | None, prompt: str = "hello", num_tokens: int = 20) -> str:
    done = server.complete(prompt, model=name, max_tokens=num_tokens)
    assert done.status_code == 200, done.text
    assert done.json()["model"] == (name or MODEL)
    return str(done.json()["choices"][0]["text"])


def expected(name: str, prompt: str = "hello", num_tokens: int = 20) -> str:
    with LLM(TableTarget(replace(TABLE, seed=SEEDS[name])), Letters(), 400) as llm:
        return llm.generate(prompt, SamplingParams(max_tokens=num_tokens, seed=1))[0].text


def states(server: Running) -> dict[str, str]:
    found = server.http.get("/v1/models").json()["data"]
    return {model["id"]: model["status"]["value"] for model in found}


def test_a_model_is_loaded_when_a_request_names_it_and_makes_space_for_the_next() -> None:
    factory = Factory()
    with several(factory) as server:
        assert states(server) == {MODEL: "loaded", "one": "unloaded", "two": "unloaded"}
        for name in ("one", "two", None, MODEL, "one"):
            assert text(server, name) == expected(name or MODEL)
        assert factory.opened == [MODEL, "one", "two", MODEL, "one"]
        assert factory.closed == [MODEL, "one", "two", MODEL]
        assert factory.most == 1
        assert states(server) == {MODEL: "unloaded", "one": "loaded", "two": "unloaded"}
        assert server.http.get("/health").status_code == 200
        assert server.counter("duodec:num_models_loaded") == 1


def test_as_many_as_are_allowed_stay_and_the_one_idle_longest_leaves() -> None:
    factory = Factory()
    with several(factory, num_models=2) as server:
        for name in ("one", MODEL, "two", MODEL):
            assert text(server, name) == expected(name)
        assert factory.opened == [MODEL, "one", "two"]
        assert factory.closed == ["one"]
        assert factory.most == 2


def test_what_does_not_fit_into_memory_makes_others_leave() -> None:
    factory = Factory()
    seen: list[int] = []

    def fits(taken: int) -> bool:
        seen.append(taken)
        return not taken

    factory.fits = fits
    with several(factory, num_models=3) as server:
        server.service.models.loaded[0].mapped_bytes = 100
        assert text(server, "one") == expected("one")
        assert seen == [100, 0]
        assert factory.closed == [MODEL]


@pytest.mark.slow
def test_a_model_in_use_finishes_and_is_loaded_again_for_who_came_later() -> None:
    factory = Factory(0.02)
    with several(factory) as server, ThreadPoolExecutor(4) as pool:
        server.service.models._residence._most_s = 0.0  # nobody stays for others' sake
        first = pool.submit(text, server, MODEL)
        until(lambda: server.service.models.loaded[0].scheduler.num_running == 1)
        second = pool.submit(text, server, "one")
        until(lambda: states(server)["one"] == "loading")
        third = pool.submit(text, server, MODEL, "later")
        assert first.result() == expected(MODEL)
        assert second.result() == expected("one")
        assert third.result() == expected(MODEL, "later")
        assert factory.opened == [MODEL, "one", MODEL]
        assert factory.most == 1


def test_requests_that_wait_for_one_model_are_served_by_one_loading() -> None:
    factory = Factory(0.005)
    with several(factory, num_queued=64) as server, ThreadPoolExecutor(12) as pool:
        names = ["one", "two"] * 6
        done = list(pool.map(lambda name: text(server, name), names))
        assert done == [expected(name) for name in names]
        assert len(factory.opened) <= 6, "each request had its own loading"
        assert factory.most == 1


def test_a_stream_keeps_its_model_until_its_last_word() -> None:
    factory = Factory(0.01)
    with several(factory) as server, ThreadPoolExecutor(1) as pool:
        with server.stream(model="one", max_tokens=30, seed=1, logprobs=True) as stream:
            lines = stream.iter_lines()
            next(lines)
            other = pool.submit(text, server, "two")
            rest = [line for line in lines if line.startswith("data: {")]
            assert len(rest) > 2
        assert other.result() == expected("two")
        assert factory.most == 1


def test_a_client_that_leaves_while_its_model_loads_holds_nothing() -> None:
    factory = Factory()
    with several(factory) as server:
        factory.slow = Event()
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/completions", json={"model": "one", "prompt": "a"}, timeout=0.3)
        factory.slow.set()
        until(lambda: states(server)["one"] == "loaded")
        assert text(server, "two") == expected("two")
        assert text(server, MODEL) == expected(MODEL)


def test_what_cannot_be_loaded_is_told_and_changes_nothing() -> None:
    factory = Factory()

    def missing(taken: int) -> bool:
        raise ModelNotFound("there is no file one.gguf; name another")

    with several(factory) as server:
        factory.fits = missing
        refused = server.complete(model="one")
        assert refused.status_code == 500
        error = refused.json()["error"]
        assert error["code"] == "model_not_loaded"
        assert error["message"] == (
            "the model 'one' cannot be loaded: there is no file one.gguf; name another"
        )
        assert refused.headers["x-should-retry"] == "false"
        assert factory.closed == []
        assert text(server, None) == expected(MODEL)
        unknown = server.complete(model="three")
        assert unknown.status_code == 404
        assert "'tables', 'one', 'two'" in unknown.json()["error"]["message"]


def test_models_in_memory_compute_in_turn() -> None:
    factory = Factory(0.002)
    lock, overlaps, computed = Lock(), list[str](), list[int]()

    def on_score(queries: Any) -> None:
        if not lock.acquire(blocking=False):
            overlaps.append("two at once")
            return
        sleep(0.001)
        computed.append(threading.get_ident())
        lock.release()

    factory.on_score = on_score
    with several(factory, num_models=3) as server, ThreadPoolExecutor(6) as pool:
        for name in SEEDS:
            text(server, name)
        computed.clear()
        names = [*SEEDS] * 2
        assert list(pool.map(lambda name: text(server, name), names)) == [*map(expected, names)]
        assert len(set(computed)) == 3
        assert not overlaps


def test_turns_are_taken_in_the_order_of_asking() -> None:
    turns, order = FairLock(), list[int]()

    def work(number: int) -> None:
        for _ in range(3):
            with turns:
                order.append(number)
                sleep(0.001)

    threads = [Thread(target=work, args=(number,)) for number in range(3)]
    with turns:
        for thread in threads:
            thread.start()
            sleep(0.05)  # each has asked before the next one begins
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2] * 3


def test_facts_of_each_model() -> None:
    factory = Factory()
    with several(factory) as server:
        assert server.http.get("/props").json()["total_slots"] == 4
        assert server.http.get("/props", params={"model": "one"}).json()["total_slots"] is None
        assert server.http.get("/slots", params={"model": "one"}).json() == []
        assert server.http.get("/props", params={"model": "no"}).status_code == 404
        assert server.http.get("/v1/models/one").json()["max_model_len"] is None
        text(server, "one")
        assert server.http.get("/v1/models/one").json()["max_model_len"] == 400
        assert len(server.http.get("/slots", params={"model": "one"}).json()) == 4
        forwards = server.counter("duodec:target_forwards_total")
        text(server, "two")
        assert server.counter("duodec:target_forwards_total") > forwards, "a counter only grows"


def test_the_end_while_a_model_loads() -> None:
    factory = Factory()
    with several(factory, grace_s=0.1) as server:
        factory.slow = Event()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.complete, model="one")
            until(lambda: states(server)["one"] == "loading")
            server.server.should_exit = True
            assert waiting.result().status_code == 503
        factory.slow.set()


def test_streams_name_the_model_that_speaks() -> None:
    with several(Factory()) as server:
        done = server.complete(model="one", stream=True)
        assert {event["model"] for event in events(done.text)} == {"one"}


def test_one_model_needs_no_turns() -> None:
    with running(engine_on_tables()) as server:
        assert server.service._lock is None
        assert states(server) == {MODEL: "loaded"}


@pytest.mark.parametrize(("spare_mb", "is_enough"), [(40, False), (56, True)])
def test_memory_is_estimated_with_the_weights_of_those_that_are_loaded(
    monkeypatch: pytest.MonkeyPatch, spare_mb: int, is_enough: bool
) -> None:
    """Mapped weights count as free memory, and are not. Logits and caches take 48 MB here."""
    config = EngineConfig(
        target=str(DRAFT), draft="none", context=512, device="cpu", no_repack=True
    )
    with load(config) as llm:
        served = LoadedModel(MODEL, llm, None, Settings(MODEL), Intake(Settings(MODEL)), Meters())
        taken = served.mapped_bytes
        assert served.close()
        assert taken == llm.loaded.tokenizer.num_bytes > 20 << 20  # type: ignore[attr-defined]
    for num_loaded in (0, 1, 2):
        free_bytes = (1 + num_loaded) * taken + (spare_mb << 20)
        monkeypatch.setattr(llama, "available_bytes", lambda free_bytes=free_bytes: free_bytes)
        assert fits(resolve_pair(config), num_loaded * taken) is is_enough


def test_a_text_in_another_thread_keeps_its_model_when_its_client_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What tokenises cannot be interrupted, and reads the model's own memory."""
    factory = Factory()
    begun, may_end = Event(), Event()
    tokenize = Letters.tokenize

    def slowly(self: Letters, text: str, *, is_templated: bool) -> list[int]:
        if text == "slow":
            begun.set()
            assert may_end.wait(20)
            assert factory.closed == [], "its memory is gone"
        return tokenize(self, text, is_templated=is_templated)

    with several(factory) as server, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(Letters, "tokenize", slowly)
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/completions", json={"prompt": "slow"}, timeout=0.3)
        assert begun.is_set()
        other = pool.submit(text, server, "one")
        until(lambda: states(server)["one"] == "loading")
        sleep(0.2)
        assert factory.opened == [MODEL]
        may_end.set()
        assert other.result() == expected("one")


@pytest.mark.slow
def test_a_model_that_nobody_waits_for_any_more_makes_nobody_leave() -> None:
    factory = Factory(0.02)
    with several(factory) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(text, server, MODEL, num_tokens=60)
        until(lambda: server.service.models.loaded[0].scheduler.num_running == 1)
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/completions", json={"model": "one", "prompt": "a"}, timeout=0.2)
        until(lambda: states(server)["one"] == "unloaded")
        assert text(server, MODEL) == expected(MODEL)
        assert first.result() == expected(MODEL, num_tokens=60)
        assert factory.opened == [MODEL]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "temperature": -1}),
        ("/v1/chat/completions", {"messages": "no"}),
        ("/v1/responses", {"input": [{"role": "user"}], "temperature": -1}),
    ],
)
def test_a_request_that_is_refused_loads_no_model(path: str, body: dict[str, Any]) -> None:
    factory = Factory()
    with several(factory) as server:
        assert server.post(path, {"model": "one", **body}).status_code == 400
        assert states(server)["one"] == "unloaded"
        assert factory.opened == [MODEL]


def test_the_first_model_is_loading_until_it_is_loaded() -> None:
    with running(is_loaded=False) as server:
        assert states(server) == {MODEL: "loading"}
        props = server.http.get("/props").json()
        assert props["state"] == "loading"
        assert props["speculation"]["has_draft_model"] is None


def test_a_slow_target_is_warm_after_a_few_forward_passes() -> None:
    passes: list[Any] = []
    engine = engine_on_tables()
    with running(engine, Slowed(engine.loaded.target, 0.5, passes.append), method="ar"):
        assert 3 <= len(passes) <= 4
