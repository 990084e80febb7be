"""``/v1/responses`` as the `openai` client's helpers use it."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.server import MODEL, Running, running
from fakes.tags import Tags, random_model, willing_model

from duodec.core.events import Delta, Segment
from duodec.core.sampling.logprobs import Logprob
from duodec.scheduler.outputs import Piece
from duodec.server.api.openai.response_bodies import ResponsesBody
from duodec.server.api.openai.response_store import Store, Turn
from duodec.server.api.openai.responses import ResponseWriter
from duodec.server.api.parts import Parts
from duodec.server.api.tools.reasoning import THINKING, PlainReader, ReasoningReader
from duodec.server.errors import ApiError
from duodec.server.http.intake import Intake
from duodec.server.settings import Settings

openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

TEMPLATE = (
    "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.role[0] }}"
    "{{ m.reasoning_content or '' }}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}a"
    "{# </think> #}"
)
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
          "required": ["city"], "additionalProperties": False}  # fmt: skip
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]
SHOWN: Any = [{"type": "function", "function": {
    "name": "weather", "parameters": SCHEMA, "strict": True}}]  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ASKED = {"role": "user", "content": "hello"}


class Order(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    city: str
    days: int


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(random_model(Tags(TEMPLATE)), strict_model=True) as server:
        yield server


def client_of(server: Running) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)


def test_a_text_is_the_chats(server: Running) -> None:
    chat = server.chat(max_tokens=8).json()
    response = client_of(server).responses.create(
        model=MODEL, input="hello", max_output_tokens=8, extra_body={"seed": 1}
    )
    message = chat["choices"][0]["message"]
    assert response.output_text == message["content"]
    assert response.object == "response"
    assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert response.usage.output_tokens == 8
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_stream_is_the_whole(server: Running) -> None:
    fields = {"model": MODEL, "input": [ASKED], "instructions": "Be kind.",
              "max_output_tokens": 40, "extra_body": {"seed": 3}}  # fmt: skip
    client = client_of(server)
    whole = client.responses.create(**fields)
    events = list(client.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", f"response.{whole.status}",
    ]  # fmt: skip
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.instructions == "Be kind."


@pytest.mark.parametrize("answer", ["Hi!", "<think>\nHm.\n</think>\n\nHi!"])
def test_the_streaming_helper_and_reasoning(answer: str) -> None:
    with running(willing_model(Tags(TEMPLATE), answer, [ASKED])) as server:
        client = client_of(server)
        with client.responses.stream(model=MODEL, input="hello", temperature=0) as stream:
            kinds = [event.type for event in stream]
            response = stream.get_final_response()
    assert response.output_text == "Hi!"
    assert response.status == "completed"
    assert kinds[-1] == "response.completed"
    thoughts = [item for item in response.output if item.type == "reasoning"]
    assert bool(thoughts) is ("Hm" in answer)
    if thoughts:
        assert thoughts[0].content[0].text == "Hm."
        assert "response.reasoning_text.delta" in kinds
        assert response.usage.output_tokens_details.reasoning_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_words(stream: bool) -> None:
    """None is of the reasoning before them, even where both come at once."""
    answer = "<think>\nHm, so.\n</think>\n\nHi, you!"
    with running(willing_model(Tags(TEMPLATE), answer, [ASKED])) as server:
        got = client_of(server).responses.create(
            model=MODEL, input="hello", temperature=0, top_logprobs=2, stream=stream,
            include=["message.output_text.logprobs"],
        )  # fmt: skip
        deltas = list(got) if stream else []
    response = deltas[-1].response if stream else got
    (message,) = (item for item in response.output if item.type == "message")
    told = message.content[0].logprobs
    assert "".join(one.token for one in told) == "Hi, you!"
    sent = [event for event in deltas if event.type == "response.output_text.delta"]
    assert all("".join(one.token for one in event.logprobs) == event.delta for event in sent)
    assert bool(sent) is stream


def test_a_blank_held_back_takes_no_logprobs_of_the_words() -> None:
    """The reasoning's last blank waits for what follows it, its token does not."""
    pieces = (b"Hm, ", b"so.", b"", b"\n\nHi", b" you")  # the third is a control token, </think>
    reader = ReasoningReader(THINKING[0], "open", PlainReader())
    body = ResponsesBody.model_validate({"model": MODEL, "input": "hello"})
    writer = ResponseWriter(
        body, MODEL, 1, Parts(reader, 1), pieces.__getitem__, len, lambda *told: None
    )
    events = []
    for text, tokens in (("Hm, ", (0,)), ("so.</think>\n\nHi you", (1, 2, 3, 4))):
        logprobs = tuple(Logprob(token, -1.0) for token in tokens)
        events += writer.add(0, Piece(Delta((Segment(text, None),)), logprobs))
    told = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [[one["token"] for one in event["logprobs"]] for event in told] == [["\n\nHi", " you"]]


def test_a_format_is_kept(server: Running) -> None:
    for seed in range(4):
        response = client_of(server).responses.parse(
            model=MODEL, input="hello", text_format=Order, temperature=0.5,
            extra_body={"seed": seed},
        )  # fmt: skip
        if response.status == "completed":
            assert isinstance(response.output_parsed, Order)
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    response = client_of(server).responses.create(model=MODEL, input="hi", text={"format": form})
    assert json.loads(response.output_text)["city"] in ("Rome", "Oslo")
    assert response.text.format.schema_ == SCHEMA


def test_a_function_is_called_and_its_result_read() -> None:
    """The second turn's model answers only to the conversation as the template shows it."""
    call: Any = {"id": "x", "type": "function",
                 "function": {"name": "weather", "arguments": {"city": "Rome"}}}  # fmt: skip
    first = willing_model(Tags(TEMPLATE), CALL, [ASKED], tools=SHOWN)
    later = [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]},
             {"role": "tool", "tool_call_id": "x", "content": "sunny"}]  # fmt: skip
    second = willing_model(Tags(TEMPLATE), "Sun!", later, tools=SHOWN)
    fields = {"model": MODEL, "tools": TOOLS, "temperature": 0}
    with running(first) as server:
        client = client_of(server)
        events = list(client.responses.create(input="hello", stream=True, **fields))
        response = events[-1].response
        (item,) = response.output
        whole = client.responses.create(input="hello", **fields)
        assert whole.output[0].arguments == item.arguments
    assert (item.type, item.name, json.loads(item.arguments)) == (
        "function_call", "weather", {"city": "Rome"})  # fmt: skip
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [item.arguments]
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
    with running(second) as server:
        again = client_of(server).responses.create(
            input=[ASKED, item.model_dump(), output], **fields
        )
        assert again.output_text == "Sun!"


def test_a_call_that_is_required_is_made() -> None:
    without_reasoning = TEMPLATE.replace("{# </think> #}", "")
    with running(random_model(Tags(without_reasoning))) as server:
        for choice in ("required", {"type": "function", "name": "weather"}):
            response = client_of(server).responses.create(
                model=MODEL, input="hello", tools=TOOLS, tool_choice=choice, temperature=4,
                parallel_tool_calls=False,
            )  # fmt: skip
            (item,) = response.output
            assert item.type == "function_call"
            assert json.loads(item.arguments)["city"] in ("Rome", "Oslo")


def test_a_conversation_goes_on_from_its_id() -> None:
    """Instructions are those of the request alone."""
    messages = [ASKED, {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "so?"}]
    first = willing_model(Tags(TEMPLATE), "Hi!", [{"role": "system", "content": "x"}, ASKED])
    second = willing_model(Tags(TEMPLATE), "Well.", messages)
    with running(first) as server:
        client = client_of(server)
        response = client.responses.create(
            model=MODEL, input="hello", instructions="x", temperature=0
        )
        assert response.output_text == "Hi!"
        assert client.responses.retrieve(response.id).output_text == "Hi!"
        service = server.service
        with running(second) as other:
            other.service.store = service.store
            again = client_of(other).responses.create(
                model=MODEL, input="so?", previous_response_id=response.id, temperature=0
            )
        assert again.output_text == "Well."
        assert again.previous_response_id == response.id
        client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError) as missing:
            client.responses.create(model=MODEL, input="x", previous_response_id=response.id)
        assert missing.value.param == "previous_response_id"
        lost = client.responses.create(model=MODEL, input="hello", store=False, temperature=0)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(lost.id)


def test_the_store_is_bounded() -> None:
    store = Store(most_responses=3, most_bytes=5000)
    for i in range(5):
        store.add("", {"id": str(i)}, Turn.of([]))
    assert len(store) == 3
    store.get("", "2")
    with pytest.raises(ApiError):
        store.get("", "1")
    store.add("", {"id": "large"}, Turn.of([{"content": "x" * 3000}]))
    assert len(store) == 1
    store.add("", {"id": "too large"}, Turn.of([{"content": "x" * 6000}]))
    store.get("", "large")
    store.delete("", "large")
    assert (len(store), store.num_bytes) == (0, 0)


def talk(store: Store, owner: str, number: int, before: Turn | None, size: int = 1000) -> Turn:
    """One step more of a conversation, stored."""
    asked = Turn.of([{"role": "user", "content": "x" * size}], before)
    said = Turn.of([{"role": "assistant", "content": f"{number}"}], asked)
    store.add(owner, {"id": f"{owner}{number}"}, said)
    return said


def test_steps_of_a_conversation_share_what_they_have_in_common() -> None:
    store, last = Store(), None
    sizes = []
    for i in range(40):
        last = talk(store, "a", i, last, 5000)
        sizes.append(store.num_bytes)
    assert sizes[-1] < 1.1 * 40 * sizes[0]
    assert last is not None
    found = store.get("a", "a39").conversation.read()
    assert [m["content"] for m in found[1::2]] == [f"{i}" for i in range(40)]
    assert {m["content"] for m in found[::2]} == {"x" * 5000}


def test_what_a_later_response_needs_is_kept_and_counted() -> None:
    store = Store()
    first = talk(store, "a", 0, None)
    talk(store, "a", 1, first)
    other = talk(store, "a", 2, first)
    store.delete("a", "a0")
    assert len(store.get("a", "a1").conversation.read()) == 4
    store.delete("a", "a1")
    store.delete("a", "a2")
    assert store.num_bytes == 0
    talk(store, "a", 3, other)  # a request that was running when all of it was forgotten
    whole = store.num_bytes
    assert whole > 3 * 1000
    store.delete("a", "a3")
    assert store.num_bytes == 0


def test_an_owner_evicts_its_own_responses_beyond_an_equal_share() -> None:
    store = Store(most_responses=1000, most_bytes=60_000)
    for i in range(5):
        talk(store, "small", i, None, 2000)
    for i in range(200):
        talk(store, "large", i, None, 2000)
    assert store.num_bytes <= 60_000
    for i in range(5):
        store.get("small", f"small{i}")
    with pytest.raises(ApiError):
        store.get("large", "large0")
    for i in range(5, 200):  # and what nobody else needs is anybody's
        talk(store, "small", i, None, 2000)
    held = {name: share.num_bytes for name, share in store._shares.items()}
    assert min(held.values()) > 25_000


def test_a_number_of_responses_is_shared_in_the_same_way() -> None:
    store = Store(most_responses=10)
    for owner, count in (("a", 3), ("b", 30), ("c", 3)):
        for i in range(count):
            talk(store, owner, i, None)
    assert {name: len(share.stored) for name, share in store._shares.items()} == {
        "a": 3, "b": 4, "c": 3,
    }  # fmt: skip


HEAVY: dict[str, Any] = {
    "nested lists": [[[[]]]] * 3000, "objects": [{"a": {}}] * 2000, "numbers": [1.5] * 8000,
    "names": {f"{i}": i for i in range(3000)}, "texts": ["é"] * 5000, "one text": "😀" * 9000,
    "nothing": 0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEAVY)
def test_what_is_stored_weighs_what_is_counted(kind: str) -> None:
    data = json.dumps(HEAVY[kind])
    store = Store(most_bytes=256 << 10)
    last: Turn | None = None
    num_steps = 80 if kind == "nothing" else 20  # of one conversation, which is all kept
    tracemalloc.start()
    try:
        for i in range(num_steps):
            begun = Turn.of([{"content": json.loads(data)}], last if kind == "nothing" else None)
            last = Turn.of([{"i": i}], begun)
            store.add("", {"id": str(i), "metadata": {"x": json.loads(data)}}, last)
        del begun, last
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1.2 * store.num_bytes <= 1.2 * (256 << 10)
    assert len(store) > 2
    found = store.get("", f"{num_steps - 1}")
    assert json.loads(found.response)["metadata"]["x"] == HEAVY[kind]
    assert found.conversation.read()[-2:] == [{"content": HEAVY[kind]}, {"i": num_steps - 1}]


def begun(server: Running, **fields: Any) -> str:
    """The id of a stored response."""
    body = {"model": MODEL, "max_output_tokens": 1, **fields}
    response = server.post("/v1/responses", body)
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


def test_a_response_is_its_keys_alone() -> None:
    ours, theirs = ({"Authorization": f"Bearer {key}"} for key in ("our", "their"))
    with running(random_model(Tags(TEMPLATE)), api_keys=("our", "their")) as server:
        body = {"input": "hello", "max_output_tokens": 1}
        name = server.post("/v1/responses", body, headers=ours).json()["id"]
        path = f"/v1/responses/{name}"
        later = {**body, "previous_response_id": name}
        assert server.post("/v1/responses", later, headers=theirs).status_code == 404
        assert server.http.get(path, headers=theirs).status_code == 404
        assert server.http.delete(path, headers=theirs).status_code == 404
        assert server.http.get(path, headers={"x-api-key": "our"}).status_code == 200
        assert server.post("/v1/responses", later, headers=ours).status_code == 200
        assert server.http.delete(path, headers=ours).status_code == 200


def heavy_call(number: int, num_values: int = 60_000) -> list[dict[str, Any]]:
    """A call whose arguments are many values, and which no template shows."""
    arguments = json.dumps([0] * num_values)
    return [{"type": "function_call", "call_id": f"{number}", "name": "x", "arguments": arguments},
            {"type": "function_call_output", "call_id": f"{number}", "output": ""}]  # fmt: skip


NO_CALLS = "{% for m in messages %}{{ m.content }}{% endfor %}a"


def test_a_conversation_holds_no_more_than_a_body_may() -> None:
    with running(random_model(Tags(NO_CALLS))) as server:
        name, statuses = None, []
        for i in range(8):
            earlier = {"previous_response_id": name} if name else {}
            body = {"input": heavy_call(i), "max_output_tokens": 1, **earlier}
            response = server.post("/v1/responses", body)
            statuses.append(response.status_code)
            if response.status_code == 200:
                name = response.json()["id"]
        assert statuses == [200] * 4 + [400] * 4  # 240,000 values, and no more than 300,000
        error = response.json()["error"]
        assert error["param"] == "previous_response_id"
        assert "more than 300000 values" in error["message"]
        whole = server.post(
            "/v1/responses", {"input": [c for i in range(8) for c in heavy_call(i)]}
        )
        assert (whole.status_code, whole.json()["error"]["param"]) == (400, "input")


def test_a_conversation_has_no_more_bytes_than_a_body_may() -> None:
    with running(random_model(Tags(NO_CALLS), num_context=6000), max_body_bytes=6000) as server:
        name = begun(server, input="x" * 3000)
        body = {"input": "x" * 3000, "previous_response_id": name}
        response = server.post("/v1/responses", body)
        assert response.status_code == 400
        assert "more than 6000 bytes" in response.json()["error"]["message"]
        begun(server, input="x" * 1000, previous_response_id=name)


def test_a_small_request_of_a_long_conversation_is_prepared_as_a_large_one() -> None:
    """Small requests of others have threads of their own."""
    with running(random_model(Tags(NO_CALLS))) as server:
        name = begun(server, input=heavy_call(0))
        intake = server.service.intake
        large, small = intake._large, intake._small
        seen: list[str] = []
        for kind, label in ((large, "large"), (small, "small")):

            def start(kind: Any = kind, label: str = label) -> None:
                seen.append(label)
                type(kind)._start(kind)

            kind._start = start  # type: ignore[method-assign]
        begun(server, input="hi", previous_response_id=name)
        begun_at = seen.index("large")
        assert seen[begun_at:].count("small") == 0
        assert seen[:begun_at].count("small") <= 2  # the body's own parsing and checks


def test_long_conversations_are_prepared_a_few_at_a_time() -> None:
    settings = Settings(max_body_bytes=1000)
    intake = Intake(settings)

    async def work(hold: asyncio.Event) -> None:
        intake.weigh(1000)
        await hold.wait()

    async def run() -> None:
        hold = asyncio.Event()
        running = [asyncio.ensure_future(intake.prepared(1, 99, work(hold))) for _ in range(16)]
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError) as refused:
            await intake.prepared(1, 99, work(hold))
        assert refused.value.status == 429
        hold.set()
        await asyncio.gather(*running)
        await intake.prepared(1, 99, work(hold))

    asyncio.run(run())


IDS: Any = [0, [[]], {"a": 1}, "x" * 257]


@pytest.mark.parametrize("value", IDS)
def test_ids_are_short_texts(server: Running, value: Any) -> None:
    call = {"type": "function_call", "name": "x", "arguments": "{}"}
    for item in (call, {"type": "function_call_output", "output": ""}):
        response = server.post("/v1/responses", {"input": [{**item, "call_id": value}]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "input[0].call_id"
    chat = {"id": value, "type": "function", "function": {"name": "x", "arguments": "{}"}}
    for message, param in (
        ({"role": "assistant", "content": "", "tool_calls": [chat]}, "messages[0].tool_calls[0]"),
        ({"role": "tool", "content": "", "tool_call_id": value}, "messages[0].tool_call_id"),
    ):
        response = server.post("/v1/chat/completions", {"messages": [message]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
    use = {"type": "tool_use", "id": value, "name": "x", "input": {}}
    result = {"type": "tool_result", "tool_use_id": value, "content": ""}
    for role, block in (("assistant", use), ("user", result)):
        body = {"messages": [{"role": role, "content": [block]}], "max_tokens": 1}
        response = server.post("/v1/messages", body)
        assert response.status_code == 400
        assert "messages[0].content[0]" in response.json()["error"]["message"]


def test_ids_of_clients_are_taken(server: Running) -> None:
    """Of the AI SDK, which may join two; and none at all."""
    joined = f"call_{'x' * 24}|fc_{'y' * 48}"
    for value in (joined, "x" * 256, "", None):
        items = heavy_call(0, 1)
        begun(server, input=[{**item, "call_id": value} for item in items])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "temperature": -1}, "temperature"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "model": "gpt-9"}, "model"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
def test_what_is_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    response = server.post("/v1/responses", fields)
    assert response.status_code in (400, 404), response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert "\n" not in error["message"]
