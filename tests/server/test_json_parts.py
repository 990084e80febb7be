"""Large responses are encoded in parts, between which others run."""

from __future__ import annotations

import json
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import httpx
import pytest
from fakes.server import engine_on_tables, running
from hypothesis import given, settings
from hypothesis import strategies as st

from duodec.server.http import json_parts
from duodec.server.http.json_parts import encoded

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text("ab\"", max_size=3), inner),
    max_leaves=60,
)  # fmt: skip


def plain(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@settings(max_examples=500)
@given(st.sampled_from([1, 2, 5, 20, 4000]), VALUES)
def test_parts_are_the_json_of_the_whole(most: int, value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_parts, "MOST_VALUES", most)
        assert encoded(value) == plain(value)


def test_a_function_is_called_for_its_value() -> None:
    assert encoded({"a": lambda: [1, lambda: {"b": 2}], "c": [lambda: None]}) == (
        b'{"a":[1,{"b":2}],"c":[null]}'
    )


def test_no_part_is_large() -> None:
    entry = {"token": "a", "tops": [{"token": "b", "bytes": [1, 2, 3]}] * 20}
    parts = list(json_parts._parts({"a": [{"b": [entry] * 5000}, list(range(100_000))]}))
    assert max(map(len, parts)) < 60_000
    assert len(parts) < 1000


@pytest.mark.parametrize("value", [[float("nan")], {"a": [1.0, float("inf")]}])
def test_what_is_no_json_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        encoded(value)


@pytest.mark.slow
def test_a_large_response_holds_nobody_up() -> None:
    body = {"prompt": "hello" * 600, "n": 8, "prompt_logprobs": 20, "max_tokens": 1}
    found: list[httpx.Response] = []
    with running(engine_on_tables(num_context=4000)) as server:
        asking = Thread(target=lambda: found.append(server.complete(**body)))
        asking.start()
        waits: list[float] = []
        with httpx.Client(base_url=server.url) as other:
            while asking.is_alive():
                begin_s = perf_counter()
                assert other.get("/health").status_code == 200
                waits.append(perf_counter() - begin_s)
                sleep(0.01)
    (response,) = found
    assert response.status_code == 200, response.text[:200]
    assert len(response.content) > 10_000_000
    assert [len(choice["prompt_logprobs"]) for choice in response.json()["choices"]] == [3000] * 8
    assert max(waits) < 0.5, sorted(waits)[-5:]
