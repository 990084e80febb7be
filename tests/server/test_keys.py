"""What one key's texts are, another's requests tell nothing of: slots, drafts, stored responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from fakes.decoding import Letters
from fakes.server import MODEL, TABLE, Running, engine_on_tables, running

from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query, Scores, Target
from duodec.testing import TableTarget

KEYS = ("alice", "bob")
NUMBER = "471"
SECRET = f"the number is {NUMBER}"
NOTHING: Tokens = np.empty(0, dtype=np.int32)


class Memo(Target):
    """A target that counts what it computes: of each slot it holds the last text."""

    def __init__(self) -> None:
        self._target = TableTarget(TABLE)
        self._held: dict[int, Tokens] = {}
        self.num_computed = 0

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        for query in queries:
            known = common_prefix(self._held.get(query.slot, NOTHING), query.text)
            self.num_computed += len(query.text) - min(known, len(query.text) - 1)
            self._held[query.slot] = query.text.copy()
        return self._target.score(queries)

    def forget(self, slot: int) -> None:
        self._held.pop(slot, None)


@contextmanager
def keyed(target: Target | None = None, **settings: Any) -> Iterator[Running]:
    engine = engine_on_tables(tokenizer=Letters())
    with running(engine, target, **{"api_keys": KEYS, "num_slots": 2, **settings}) as server:
        yield server


def of(key: str) -> Mapping[str, Any]:
    return {"headers": {"Authorization": f"Bearer {key}"}} if key else {}


def complete(server: Running, key: str, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "seed": 1, **fields}
    done = server.post("/v1/completions", body, **of(key))
    assert done.status_code == 200, done.text
    found: dict[str, Any] = done.json()
    return found


def cached(server: Running, key: str, prompt: str, **fields: Any) -> int:
    usage = complete(server, key, prompt, **fields)["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def guesses(known: str) -> Iterator[str]:
    """The next digit, and what would tell that it was right."""
    for digit in "0123456789":
        yield f"{known}{digit}?"


@pytest.mark.parametrize("salt", [None, "tenant 1"])
def test_digits_of_a_fixed_prompt_cannot_be_guessed_by_another_key(salt: str | None) -> None:
    salted = {} if salt is None else {"cache_salt": salt}
    with keyed() as server, keyed() as without_her:
        known = SECRET.removesuffix(NUMBER)
        while len(known) < len(SECRET):
            for guess in guesses(known):
                complete(server, "alice", SECRET, **salted)
                assert cached(server, "bob", guess) == cached(without_her, "bob", guess)
            known = SECRET[: len(known) + 1]
        complete(server, "alice", SECRET, **salted)
        assert cached(server, "alice", SECRET, **salted) == len(SECRET) - 1  # her own still are
    with keyed(api_keys=()) as server:  # one user: nothing is computed twice
        complete(server, "", SECRET)
        assert cached(server, "bob", SECRET) == len(SECRET) - 1


def test_what_another_key_has_cached_is_computed_anew() -> None:
    """The time to the first token tells nothing either."""
    target = Memo()
    with keyed(target, num_slots=1, method="ar") as server:
        complete(server, "alice", SECRET)
        for key, num in (("alice", 1), ("bob", len(SECRET)), ("bob", 1), ("alice", len(SECRET))):
            before = target.num_computed
            complete(server, key, SECRET, max_tokens=1)
            assert target.num_computed - before == num, key


def test_a_salt_parts_texts_of_one_key() -> None:
    with keyed() as server:
        complete(server, "alice", SECRET, cache_salt="one")
        assert cached(server, "alice", SECRET, cache_salt="two") == 0
        assert cached(server, "alice", SECRET) == 0
        complete(server, "alice", SECRET, cache_salt="two")
        assert cached(server, "alice", SECRET, cache_salt="two") == len(SECRET) - 1
        assert cached(server, "bob", SECRET, cache_salt="two") == 0
    with keyed(api_keys=()) as server:
        complete(server, "", SECRET, cache_salt="one")
        assert cached(server, "", SECRET) == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
        ("/api/chat", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}),
        ("/api/generate", {"model": MODEL, "prompt": "hi"}),
    ],
)
def test_every_api_takes_a_salt(path: str, body: dict[str, Any]) -> None:
    with keyed() as server:
        own: Any = {"stream": False, **body}
        for salt, status in (("mine", 200), ("x" * 1024, 200), ("", 400), ("x" * 1025, 400)):
            done = server.post(path, {**own, "cache_salt": salt}, **of("bob"))
            assert done.status_code == status, done.text
        owners = {slot.owner for _, slot in server.service.models.loaded[0].scheduler.slots}
        assert any(":" in owner for owner in owners), "it had no effect"


@pytest.mark.parametrize("method", ["suffix", "recycling"])
def test_another_keys_text_makes_no_difference_to_drafts(method: str) -> None:
    """What a completion drafts and how much of it is right is as on a server of one's own."""

    def told(server: Running, key: str) -> list[Any]:
        fields = {"max_tokens": 60, "speculation": {"method": method, "show_drafted": True}}
        done = complete(server, key, "hello", **fields)
        names = ("draft_n", "draft_n_accepted")
        return [*(done["timings"][name] for name in names), done["duodec"].get("segments")]

    with keyed(num_slots=1) as server:
        first = told(server, "bob")
        again = told(server, "bob")
        assert again != first, "his own text is drafted from"
    with keyed(num_slots=1) as server:
        for _ in range(2):
            told(server, "alice")
        assert told(server, "bob") == first
        assert told(server, "bob") == again


def test_slots_tell_what_they_hold_to_its_owner() -> None:
    def slots(key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = server.http.get("/slots", **of(key)).json()
        return found

    with keyed() as server:
        complete(server, "alice", SECRET)
        (own,) = [slot for slot in slots("alice") if slot.get("n_cached")]
        assert own["n_cached"] >= len(SECRET)
        for key in ("bob", "", "wrong"):
            assert slots(key)[own["id"]] == {"id": own["id"], "is_processing": False}
    with keyed(api_keys=()) as server:
        complete(server, "", SECRET)
        assert any(slot["n_cached"] for slot in slots(""))


def test_progress_is_told_to_its_owner() -> None:
    with keyed() as server:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        kwargs: Any = of("alice")
        with server.http.stream("POST", "/v1/chat/completions", json=body, **kwargs) as stream:
            next(stream.iter_lines())
            for key in ("bob", ""):
                for slot in server.http.get("/slots", **of(key)).json():
                    assert slot.keys() <= {"id", "is_processing", "n_cached"}


def test_stored_responses_are_their_keys() -> None:
    with keyed() as server:
        ask = {"model": MODEL, "input": "hello", "max_output_tokens": 4}
        name = server.post("/v1/responses", ask, **of("alice")).json()["id"]

        def status(key: str, verb: str = "GET") -> int:
            asked: httpx.Response = server.http.request(verb, f"/v1/responses/{name}", **of(key))
            return asked.status_code

        def goes_on(key: str) -> int:
            body = {**ask, "previous_response_id": name}
            return server.post("/v1/responses", body, **of(key)).status_code

        assert (status("bob"), status("bob", "DELETE"), goes_on("bob")) == (404, 404, 404)
        assert (status("alice"), goes_on("alice"), status("alice", "DELETE")) == (200, 200, 200)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_keys_and_salts_change_no_text(temperature: float) -> None:
    texts = set()
    with keyed() as server:
        for key, salt in [("alice", None), ("bob", None), ("bob", "a"), ("alice", None)] * 2:
            salted = {} if salt is None else {"cache_salt": salt}
            done = complete(server, key, "hello", max_tokens=40, temperature=temperature, **salted)
            texts.add(done["choices"][0]["text"])
    with keyed(api_keys=()) as server:
        done = complete(server, "", "hello", max_tokens=40, temperature=temperature)
        texts.add(done["choices"][0]["text"])
    assert len(texts) == 1
