"""``/v1/responses`` as the `openai` client's helpers use it."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.server import MODEL, Running, running
from fakes.tags import Tags, random_model, willing_model

from duodec.server.api.openai.response_store import Store, continued, conversation
from duodec.server.errors import ApiError

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
        store.add({"id": str(i)}, b"[]")
    assert len(store) == 3
    store.get("2")
    with pytest.raises(ApiError):
        store.get("1")
    store.add({"id": "large"}, conversation([{"content": "x" * 3900}]))
    assert len(store) == 1
    store.add({"id": "too large"}, conversation([{"content": "x" * 6000}]))
    store.get("large")
    store.delete("large")
    assert len(store) == 0


HEAVY: dict[str, Any] = {
    "nested lists": [[[[]]]] * 3000, "objects": [{"a": {}}] * 2000, "numbers": [1.5] * 8000,
    "names": {f"{i}": i for i in range(3000)}, "texts": ["é"] * 5000, "one text": "😀" * 9000,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEAVY)
def test_what_is_stored_weighs_what_is_counted(kind: str) -> None:
    data = json.dumps(HEAVY[kind])
    store = Store(most_bytes=256 << 10)
    tracemalloc.start()
    try:
        for i in range(20):
            begun = conversation([{"content": json.loads(data)}])
            store.add(
                {"id": str(i), "metadata": {"x": json.loads(data)}}, continued(begun, {"i": i})
            )
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1.2 * (256 << 10)
    assert len(store) > 2
    last = store.get("19")
    assert json.loads(last.response)["metadata"]["x"] == HEAVY[kind]
    assert last.messages() == [{"content": HEAVY[kind]}, {"i": 19}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]"),
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
