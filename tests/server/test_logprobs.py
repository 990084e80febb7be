"""Logprobs over HTTP: of prompts, as lm-evaluation-harness reads them, and with their text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fakes.decoding import LETTERS, Letters
from fakes.server import TABLE, Running, Slowed, events, running

from duodec.core.targets import Query
from duodec.server.api.shapes import TextOffsets
from duodec.testing import TableTarget


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as server:
        yield server


def complete(server: Running, prompt: Any, **fields: Any) -> dict[str, Any]:
    bias = {str(Letters().eos): -100}  # it has no text
    body = {"prompt": prompt, "max_tokens": 20, "seed": 1, "logit_bias": bias, **fields}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def echoed(server: Running, prompt: Any, **fields: Any) -> dict[str, Any]:
    (choice,) = complete(server, prompt, echo=True, logprobs=2, **fields)["choices"]
    return dict(choice)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_those_of_an_echoed_prompt_are_those_of_decoding(
    server: Running, temperature: float
) -> None:
    body = complete(server, "hello", logprobs=2, temperature=temperature, max_tokens=90)
    (choice,) = body["choices"]
    text = "hello" + choice["text"]
    again = echoed(server, text, max_tokens=0)
    assert again["text"] == text
    assert again["finish_reason"] == "length"
    told, decoded = again["logprobs"], choice["logprobs"]
    assert "".join(told["tokens"]) == text
    assert told["text_offset"] == list(range(len(text)))
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert told["token_logprobs"][5:] == decoded["token_logprobs"]
    assert told["top_logprobs"][5:] == decoded["top_logprobs"]


def test_a_harness_finds_the_likelier_choice(server: Running) -> None:
    """By the recipe of lm-evaluation-harness: tokens of context and choice, one new token, the
    logprobs from the context's end to the one before the last."""
    context = [7, 4, 11, 11, 14]
    (best,) = complete(server, context, max_tokens=3, temperature=0)["choices"]
    letters = [LETTERS.index(letter) for letter in best["text"]]
    assert len(letters) == 3
    scores = []
    for choice in ([0, 1, 2], letters, [5, 5, 5]):
        (found,) = complete(
            server, [*context, *choice], echo=True, logprobs=1, max_tokens=1, temperature=0
        )["choices"]
        told = found["logprobs"]
        tokens, logprobs = told["tokens"][5:-1], told["token_logprobs"][5:-1]
        assert len(tokens) == 3
        tops = told["top_logprobs"][5:-1]
        assert all(top[t] == own for t, top, own in zip(tokens, tops, logprobs, strict=True))
        is_greedy = all(t == max(top, key=top.get) for t, top in zip(tokens, tops, strict=True))
        assert is_greedy is (choice == letters)
        scores.append(sum(logprobs))
    assert len(set(scores)) == 3
    assert max(scores) == scores[1]


def test_several_prompts_and_choices_have_their_own(server: Running) -> None:
    prompts = ["hello", "so"]
    found = complete(
        server, prompts, n=2, echo=True, logprobs=0, temperature=1, max_tokens=4, prompt_logprobs=1
    )
    for choice in found["choices"]:
        prompt = prompts[choice["index"] // 2]
        alone = echoed(server, prompt, max_tokens=0)["logprobs"]
        assert choice["text"].startswith(prompt)
        assert choice["logprobs"]["token_logprobs"][: len(prompt)] == alone["token_logprobs"]
        own = choice["logprobs"]  # the token itself is always among them, as OpenAI does it
        assert own["top_logprobs"][1] == {own["tokens"][1]: own["token_logprobs"][1]}
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
        assert len(choice["prompt_logprobs"]) == len(prompt)
        (top,) = [one for one in choice["prompt_logprobs"][1].values() if one["rank"] == 1]
        assert top["logprob"] == max(alone["top_logprobs"][1].values())


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_prompt_is_scored_once_for_all_its_choices(is_stream: bool) -> None:
    """More rows than one is what a prompt's logprobs need."""
    text, num_rows = "hello there and more of it", [0]
    target = Slowed(TableTarget(TABLE))

    def count(queries: Sequence[Query]) -> None:
        # of a draft whose first token is one of the prompt's
        num_rows[0] += sum(
            len(query.draft.tokens) + 1 for query in queries if len(query.text) < len(text)
        )

    fields: dict[str, Any] = {"echo": True, "logprobs": 2, "temperature": 1, "max_tokens": 6}
    found: dict[int, dict[int, Any]] = {}
    with running(target=target, method="ar") as server:
        each: list[int] = []
        for n in (1, 8):
            target.on_score, num_rows[0] = count, 0
            if is_stream:
                found[n] = streamed_choices(server, text, n=n, **fields)
            else:
                choices = complete(server, text, n=n, **fields)["choices"]
                found[n] = {one["index"]: (one["text"], one["logprobs"]) for one in choices}
            each.append(num_rows[0])
    assert each[0] == each[1] >= len(text) - 1
    assert found[8][0] == found[1][0]
    assert len({text for text, _ in found[8].values()}) > 4
    for own, told in found[8].values():
        assert "".join(told["tokens"]) == own
        assert told["text_offset"] == list(range(len(own)))
        scored = found[1][0][1]["token_logprobs"]
        assert told["token_logprobs"][: len(text)] == scored[: len(text)]


def streamed_choices(server: Running, prompt: str, **fields: Any) -> dict[int, Any]:
    """The text and logprobs of each choice, from a stream's chunks."""
    bias = {str(Letters().eos): -100}
    body = {"prompt": prompt, "seed": 1, "logit_bias": bias, "stream": True, **fields}
    found: dict[int, Any] = {}
    for chunk in events(server.post("/v1/completions", body).text):
        for choice in chunk["choices"]:
            text, told = found.get(choice["index"], ("", {}))
            new = choice["logprobs"] or {}
            told = {name: told.get(name, []) + new[name] for name in new} or told
            found[choice["index"]] = (text + choice["text"], told)
    return found


def test_choices_without_tokens_are_refused(server: Running) -> None:
    body = {"prompt": "hello", "n": 2, "max_tokens": 0, "echo": True, "logprobs": 1}
    response = server.post("/v1/completions", body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")


def test_what_several_prompts_have_cached_adds_up() -> None:
    with running(num_slots=1) as server:

        def cached(prompt: Any, **fields: Any) -> int:
            usage = complete(server, prompt, max_tokens=1, **fields)["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        first, second = "hello there", "hello where"
        assert cached(first) == 0
        alone = [cached(first), cached(second), cached(first)][1:]
        assert cached([second, first]) == sum(alone) > max(alone)
        assert cached("something new", n=3) == 0  # which the first choice computed


PIECES: Any = [
    ([b"a", b"\xe2", b"b", b"c"], [0, 1, 2, 3]),
    ([b"\xe2", b"\x82", b"\xac", b"b"], [0, 0, 0, 1]),
    ([b"\xf0\x9f", b"\xf0\x9f", b"\x98\x80", b"b"], [0, 1, 1, 2]),
    ([b"\xe0", b"\x80", b"b"], [0, 1, 2]),  # no character begins so
    ([b"\xef", b"\xbf", b"\xbd", b"b"], [0, 0, 0, 1]),  # the character of bytes that are none
    ([b"\xe2\x82", b"", b"\xe2", b"x"], [0, 0, 1, 2]),
    ([b"\x80", b"\xff", b"b"], [0, 1, 2]),
    ([b"\xe2", b"\xe2", b"\xe2b"], [0, 1, 2]),
]


@pytest.mark.parametrize(("pieces", "expected"), PIECES)
def test_offsets_count_bytes_that_are_no_character(
    pieces: list[bytes], expected: list[int]
) -> None:
    offsets = TextOffsets()
    found = [offsets.next(piece) for piece in pieces]
    assert found == expected
    text = b"".join(pieces).decode("utf-8", "replace")
    for begin, piece in zip(found, pieces, strict=True):
        assert text[begin] == piece.decode() if piece.isascii() and piece else begin < len(text)


def test_a_chat_tells_those_of_its_prompt(server: Running) -> None:
    body = server.chat(prompt_logprobs=2).json()
    told = body["prompt_logprobs"]
    assert len(told) == body["usage"]["prompt_tokens"]
    assert told[0] is None
    assert all(2 <= len(one) <= 3 for one in told[1:])
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert server.chat().json()["choices"] == body["choices"]
    assert "prompt_logprobs" not in server.chat().json()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True}, "max_tokens"),
        ({"max_tokens": -1, "echo": True, "logprobs": 1}, "max_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_what_is_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    response = server.post("/v1/completions", {"prompt": "hello", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("fields", [{}, {"stop": ["zq", "ab"]}, {"n": 3}, {"temperature": 1.3}])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("is_echoed", [False, True])
def test_each_chunk_of_a_stream_has_those_of_its_text(
    server: Running, path: str, fields: dict[str, Any], is_echoed: bool
) -> None:
    is_chat = "chat" in path
    if is_chat and is_echoed:
        return
    own: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}
        if is_chat
        else {"prompt": "hello", "logprobs": 1, "echo": is_echoed}
    )
    bias = {str(Letters().eos): -100}
    body = {**own, "max_tokens": 60, "seed": 1, "logit_bias": bias, **fields}
    whole = server.post(path, body).json()["choices"]
    for choice in whole:
        chunks = [
            c["choices"][0]
            for c in events(server.post(path, {**body, "stream": True}).text)
            if c["choices"] and c["choices"][0]["index"] == choice["index"]
        ]
        texts = [c["delta"].get("content") or "" if is_chat else c["text"] for c in chunks]
        told = [c["logprobs"] for c in chunks]
        assert told[-1] is None or "stop" in fields  # of a stop text, which is not told
        for text, one in zip(texts[:-1], told[:-1], strict=True):
            tokens = [] if one is None else (
                [entry["token"] for entry in one["content"]] if is_chat else one["tokens"]
            )  # fmt: skip
            assert "".join(tokens).startswith(text)
            assert len("".join(tokens)) <= len(text) + 2  # no more than a stop text has
        if not is_chat:
            parts = [one for one in told if one]
            for name, values in choice["logprobs"].items():
                assert [value for one in parts for value in one[name]] == values


def test_responses_have_those_of_their_text(server: Running) -> None:
    body = {"input": "hi", "max_output_tokens": 30, "seed": 1, "top_logprobs": 2,
            "include": ["message.output_text.logprobs"]}  # fmt: skip
    (item,) = server.post("/v1/responses", body).json()["output"]
    (part,) = item["content"]
    assert "".join(one["token"] for one in part["logprobs"]) == part["text"]
    assert all(len(one["top_logprobs"]) == 2 for one in part["logprobs"])
    stream = events(server.post("/v1/responses", {**body, "stream": True}).text)
    deltas = [one for one in stream if one["type"] == "response.output_text.delta"]
    for delta in deltas:
        assert "".join(one["token"] for one in delta["logprobs"]) == delta["delta"]
    assert [one for delta in deltas for one in delta["logprobs"]] == part["logprobs"]
    del body["include"], body["top_logprobs"]
    (item,) = server.post("/v1/responses", body).json()["output"]
    assert item["content"][0]["logprobs"] == []
