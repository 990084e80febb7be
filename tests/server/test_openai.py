"""The contract: what the official `openai` client expects of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fakes.server import MODEL, Running, Slowed, engine_on_tables, running

openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(api_keys=("key",), strict_model=True) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as client:
        yield client


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "duodec")
    assert client.models.retrieve(MODEL) == model


def test_an_answer_and_its_usage(client: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=12, seed=3
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert len(answer.choices[0].message.content) == 12
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.metrics["time_to_first_token_ms"] > 0  # type: ignore[index]


def test_streams(client: Any) -> None:
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 30, "seed": 3}
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens == 30
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_the_streaming_helper(client: Any) -> None:
    text = (
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=40, seed=1)
        .choices[0]
        .message.content
    )
    # the helper takes an answer that was cut off for a failure
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, seed=1, stop=text[20:24]
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text


def test_seeds_and_stops(client: Any) -> None:
    def ask(**fields: Any) -> Any:
        return client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=40, temperature=1, **fields
        ).choices[0]

    first = ask(seed=3)
    assert ask(seed=3).message.content == first.message.content
    assert ask(seed=4).message.content != first.message.content
    stop = first.message.content[20:23]
    ended = ask(seed=3, stop=stop)
    assert ended.finish_reason == "stop"
    assert stop not in ended.message.content


def test_without_a_temperature_the_likeliest_tokens_are_taken(client: Any) -> None:
    def ask(**fields: Any) -> Any:
        create = client.chat.completions.create
        return create(model=MODEL, messages=MESSAGES, max_tokens=40, **fields).choices[0].message

    assert ask(seed=3) == ask(seed=4) == ask(temperature=0)
    assert ask(seed=3, temperature=1) != ask(seed=3)


def test_logprobs(client: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in content)


def test_text_completions(client: Any) -> None:
    answer = client.completions.create(model=MODEL, prompt="hello", max_tokens=5, n=2, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    chunks = client.completions.create(
        model=MODEL, prompt="hello", max_tokens=5, seed=1, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def test_speculation_goes_through_extra_body(client: Any) -> None:
    for method in ("auto", "sps"):
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=40,
            extra_body={"speculation": {"method": method, "max_draft": 16}, "min_p": 0.01,
                        "top_k": 20},
        )  # fmt: skip
        assert answer.duodec["method"] == method
    # of the last one, which always drafts: `auto` may find that it does not pay here
    assert answer.metrics["speculative_decoding"]["num_spec_tokens"] == 16


def test_errors_are_of_the_clients_classes(server: Running, client: Any) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="gpt-9", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        create(model=MODEL, messages=MESSAGES, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        create(model=MODEL, messages=[{"role": "user", "content": "x" * 1000}])
    assert long.value.code == "context_length_exceeded"
    assert long.value.type == "invalid_request_error"
    # what litellm looks for in the message
    assert "this model's maximum context length is" in str(long.value).lower()
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_an_error_in_a_stream_is_raised() -> None:
    engine = engine_on_tables()

    def fail(queries: Any) -> None:
        if any(len(query.text) > 20 for query in queries):
            raise RuntimeError("broken")

    with (
        running(engine, Slowed(engine.loaded.target, on_score=fail)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        # the warm-up answer is short enough
        stream = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=60, stream=True
        )
        with pytest.raises(openai.APIError, match="mistake of this server"):
            list(stream)


def test_a_client_asks_again_when_the_server_is_busy() -> None:
    engine = engine_on_tables()
    with (
        running(engine, Slowed(engine.loaded.target, 0.01), num_slots=1, num_queued=0) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=2) as client,
    ):
        with server.stream(max_tokens=60) as response:
            next(response.iter_lines())
            answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3)
        assert answer.usage.completion_tokens == 3


def test_many_at_once(server: Running) -> None:
    import asyncio

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=MODEL, messages=MESSAGES, max_tokens=30, seed=i % 4, temperature=1
                    )
                    for i in range(16)
                )
            )
        return [answer.choices[0].message.content for answer in answers]

    found = asyncio.run(ask())
    assert found[:4] * 4 == found
    assert len(set(found)) == 4
