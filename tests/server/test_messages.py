"""``/v1/messages`` as Anthropic's clients use it, and token counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fakes.server import MODEL, Running, Slowed, engine_on_tables, running
from fakes.tags import Tags, random_model, willing_model

from duodec.server.api.anthropic.message_bodies import MessagesBody
from duodec.server.api.fields import validated

TEMPLATE = (
    "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.role[0] }}"
    "{{ m.reasoning_content or '' }}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}a"
    "{# </think> #}"
)
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
          "required": ["city"]}  # fmt: skip
TOOL: Any = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
SHOWN: Any = [{"type": "function", "function": {
    "name": "weather", "description": "Of a city.", "parameters": SCHEMA}}]  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ASKED: dict[str, Any] = {"role": "user", "content": "hello"}
PATH = "/v1/messages"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(random_model(Tags(TEMPLATE))) as server:
        yield server


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [ASKED], "max_tokens": 60, "seed": 1, **fields}


def sent(server: Running, **fields: Any) -> dict[str, Any]:
    response = server.post(PATH, body(**fields))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def streamed(server: Running, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events, and the message that a client makes of them."""
    text = server.post(PATH, body(stream=True, **fields)).text
    events = []
    for part in text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    message: dict[str, Any] = deepcopy(events[0]["message"])
    for event in events:
        kind = event["type"]
        if kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append({**event["content_block"], "partial": ""})
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            for name in ("text", "thinking"):
                if delta["type"] == f"{name}_delta":
                    block[name] += delta[name]
            block["partial"] += delta.get("partial_json", "")
        elif kind == "message_delta":
            message.update(event["delta"])
            message["usage"] = {**message["usage"], **event["usage"]}
    for block in message["content"]:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial)
    return events, message


def alike(message: dict[str, Any]) -> dict[str, Any]:
    """Without what is another one in each response."""
    content = [{**block, "id": ""} for block in message["content"]]
    usage = message["usage"]
    num_read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return {**message, "id": "", "content": content,
            "usage": {"output": usage["output_tokens"], "read": num_read}}  # fmt: skip


def test_a_text_is_that_of_a_chat(server: Running) -> None:
    chat = server.chat(max_tokens=60).json()
    message = sent(server)
    assert message["content"] == [
        {"type": "text", "text": chat["choices"][0]["message"]["content"]}
    ]
    assert message["type"] == "message"
    assert message["model"] == MODEL
    assert (
        message["stop_reason"]
        == {"stop": "end_turn", "length": "max_tokens"}[chat["choices"][0]["finish_reason"]]
    )
    again = sent(server)
    num_read = chat["usage"]["prompt_tokens"]
    assert again["usage"]["cache_read_input_tokens"] == num_read - 1
    assert again["usage"]["input_tokens"] == 1
    count = server.post(f"{PATH}/count_tokens", {"model": MODEL, "messages": [ASKED]}).json()
    assert count == {"input_tokens": num_read}


def test_a_stream_is_the_whole(server: Running) -> None:
    for seed in range(4):
        fields = {"seed": seed, "temperature": 0.9}
        events, message = streamed(server, **fields)
        assert alike(message) == alike(sent(server, **fields))
        kinds = [event["type"] for event in events]
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]
        assert kinds.count("content_block_start") == kinds.count("content_block_stop")


def test_the_usage_of_a_stream_adds_up_and_overwrites_to_that_of_the_whole(
    server: Running,
) -> None:
    """Once with a prompt that is read, then with one that is cached."""
    asked = [{"role": "user", "content": "how many tokens are these?"}]
    for is_cached in (False, True):
        events, _ = streamed(server, messages=asked)
        start = events[0]["message"]["usage"]
        (end,) = [event["usage"] for event in events if event["type"] == "message_delta"]
        overwritten = {**start, **end}
        assert overwritten == {name: start[name] + end.get(name, 0) for name in start}
        assert (start["input_tokens"] == 1) is is_cached
    assert overwritten == sent(server, messages=asked)["usage"]


def test_a_stop_sequence_is_named(server: Running) -> None:
    text = sent(server)["content"][0]["text"]
    stop = text[3:5]
    for message in (
        sent(server, stop_sequences=["\0", stop]), streamed(server, stop_sequences=[stop])[1]
    ):  # fmt: skip
        assert message["stop_reason"] == "stop_sequence"
        assert message["stop_sequence"] == stop
        assert message["content"][0]["text"] == text[: text.index(stop)]
    cut = sent(server, max_tokens=2)
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("max_tokens", None)


def test_reasoning_and_calls_are_blocks_and_go_back() -> None:
    """The second turn's model answers only to the conversation as the template shows it."""
    answer = f"<think>\nHm.\n</think>\n\nLet me see.{CALL}"
    first = willing_model(Tags(TEMPLATE), answer, [ASKED], tools=SHOWN)
    fields: dict[str, Any] = {"tools": [TOOL], "temperature": 0, "max_tokens": 300}
    with running(first) as server:
        events, message = streamed(server, **fields)
        assert alike(message) == alike(sent(server, **fields))
    first_end = [event["type"] for event in events].index("content_block_stop")
    assert events[first_end - 1]["delta"] == {"type": "signature_delta", "signature": ""}
    assert sum(event.get("delta", {}).get("type") == "signature_delta" for event in events) == 1
    thinking, text, call = message["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm.", "signature": ""}
    assert text == {"type": "text", "text": "Let me see."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Rome"})
    assert message["stop_reason"] == "tool_use"
    shown = {"id": call["id"], "type": "function",
             "function": {"name": "weather", "arguments": {"city": "Rome"}}}  # fmt: skip
    later = [
        {"role": "system", "content": "Be kind.\n\nBe brief."}, ASKED,
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.",
         "tool_calls": [shown]},
        {"role": "tool", "content": "sunny\nwarm"}, {"role": "user", "content": "So?\n\nWell?"},
    ]  # fmt: skip
    result = [{"type": "text", "text": "sunny"}, {"type": "text", "text": "warm"}]
    messages = [ASKED, {"role": "assistant", "content": message["content"]}, {
        "role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call["id"], "content": result},
            {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Well?"},
        ]}]  # fmt: skip
    with running(willing_model(Tags(TEMPLATE), "Sun!", later, tools=SHOWN)) as server:
        for number in range(2):  # a line that is another one in each request is no part of it
            system = [{"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
                      {"type": "text", "text": "Be kind."},
                      {"type": "text", "text": "Be brief."}]  # fmt: skip
            message = sent(server, messages=messages, system=system, **fields)
            assert message["content"] == [{"type": "text", "text": "Sun!"}]
        assert message["usage"]["input_tokens"] == 1


UNSEEN = "not shown, this model reads text only]"


def test_what_is_no_text_in_a_result_is_said_to_be_there(server: Running) -> None:
    """Every later turn sends it again: a refusal would end the conversation."""
    parts = [{"type": "text", "text": "Seen:"}, {"type": "image", "source": {"type": "base64"}},
             {"type": "tool_reference", "tool_name": "weather"},
             {"type": "new", "x": 1}]  # fmt: skip
    file = {"type": "document", "title": "a.pdf", "source": {"type": "base64"}}
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": parts}
    empty = {"type": "tool_result", "tool_use_id": "t1", "content": None}
    turns: list[Any] = [ASKED, {"role": "assistant", "content": [call, call]},
                        {"role": "user", "content": [result, empty, file]}]  # fmt: skip
    own = validated(MessagesBody, body(messages=turns))
    seen = ["Seen:", f"[image: {UNSEEN}", f"[tool_reference weather: {UNSEEN}", f"[new: {UNSEEN}"]
    assert [message["content"] for message in own.shown[-3:]] == [
        "\n".join(seen), "", f"[document a.pdf: {UNSEEN}"
    ]  # fmt: skip
    assert sent(server, messages=turns)["type"] == "message"


def test_a_call_that_is_required_is_made() -> None:
    template = TEMPLATE.replace("{# </think> #}", "")
    with running(random_model(Tags(template))) as server:
        for choice in ({"type": "any", "disable_parallel_tool_use": True},
                       {"type": "tool", "name": "weather"}):  # fmt: skip
            fields = {"tools": [TOOL], "tool_choice": choice, "temperature": 3, "max_tokens": 900}
            _, message = streamed(server, **fields)
            assert alike(message) == alike(sent(server, **fields))
            assert message["stop_reason"] == "tool_use"
            for block in message["content"]:
                assert block["type"] == "tool_use"
                assert block["input"]["city"] in ("Rome", "Oslo")
        none = sent(server, tools=[TOOL], tool_choice={"type": "none"})
        assert none["content"][0]["type"] == "text"
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        old = {"output_format": form["format"], "betas": ["structured-outputs-2025-11-13"]}
        for fields in ({"output_config": form}, old):
            kept = sent(server, **fields)
            assert json.loads(kept["content"][0]["text"])["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "hi"}, "messages is a string"),
        ({"messages": [3]}, "messages[0] is a number"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role is 'tool'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is no text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "is no picture"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "reads text only"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0].text is null"),
        ({"messages": [ASKED, {"role": "assistant", "content": "It is"}]}, "is not continued"),
        ({"system": 3}, "system is no text"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools[0] is of type"),
        ({"tools": [{"input_schema": {}}]}, "tools[0] names no tool"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "none were sent"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "names no tool"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"stop_sequences": [""]}, "stop_sequences holds"),
        ({"stop": "x"}, "stop is no field"),
        ({"container": "x"}, "container is no field"),
        ({"n": 2}, "n is no field"),
    ],
)  # fmt: skip
def test_what_is_refused(server: Running, fields: dict[str, Any], words: str) -> None:
    response = server.post(PATH, {**body(), **fields})
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert words in error["error"]["message"]
    assert "\n" not in error["error"]["message"]


def test_a_model_that_is_not_there(server: Running) -> None:
    assert sent(server, model="claude")["model"] == MODEL
    with running(random_model(Tags(TEMPLATE)), strict_model=True) as strict:
        response = strict.post(PATH, body(model="claude"))
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_a_prompt_that_is_too_long_is_told_in_the_words_of_claude_code(server: Running) -> None:
    response = server.post(PATH, body(messages=[{"role": "user", "content": "x" * 4000}]))
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("prompt is too long: ")


def test_keys_in_both_headers() -> None:
    with running(random_model(Tags(TEMPLATE)), api_keys=("secret",)) as server:
        for headers in ({}, {"x-api-key": "other"}, {"authorization": "Basic secret"}):
            for path in (PATH, "/tokenize", "/detokenize"):
                response = server.post(path, body(), headers=headers)
                assert response.status_code == 401
            assert server.post(PATH, body(), headers=headers).json()["error"]["type"] == (
                "authentication_error"
            )
        for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
            assert server.post(PATH, body(), headers=headers).status_code == 200


def test_tokens_and_back(server: Running) -> None:
    def tokens(**fields: Any) -> dict[str, Any]:
        response = server.post("/tokenize", {"model": MODEL, **fields})
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    found = tokens(prompt="so it is", return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == 8
    assert "".join(found["token_strs"]) == "so it is"
    assert found["max_model_len"] > 0
    assert tokens(content="so it is")["tokens"] == found["tokens"]
    pieces = tokens(content="so", with_pieces=True)["tokens"]
    assert pieces == [{"id": t, "piece": p} for t, p in zip(found["tokens"], "so", strict=False)]
    chat = tokens(messages=[ASKED])
    assert chat["count"] == server.chat().json()["usage"]["prompt_tokens"]
    back = server.post("/detokenize", {"tokens": found["tokens"]}).json()
    assert back["prompt"] == back["content"] == "so it is"
    for path, fields in (
        ("/tokenize", {}), ("/tokenize", {"prompt": "x", "content": "x"}), ("/tokenize", {"a": 1}),
        ("/tokenize", {"content": "x", "parse_special": True}), ("/detokenize", {}),
        ("/detokenize", {"tokens": "x"}), ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [1 << 40]}), ("/tokenize", {"messages": [3]}),
    ):  # fmt: skip
        assert server.post(path, fields).status_code == 400, fields


def test_a_silent_stream_says_that_it_lives_by_events_that_add_nothing() -> None:
    """Claude Code does not count pings."""
    engine = engine_on_tables()
    body = {"model": MODEL, "messages": [ASKED], "max_tokens": 3, "speculation": False}
    with running(engine, Slowed(engine.loaded.target, 0.3), ping_s=0.1) as server:
        sent = server.post("/v1/messages", {**body, "stream": True}).text
        whole = server.post("/v1/messages", body).json()
    found = [json.loads(line.removeprefix("data: ")) for line in sent.splitlines()[1::3]]
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["ping", "message_start"]
    assert kinds.count("message_start") == 1
    assert found[1]["message"]["usage"]["cache_read_input_tokens"] == 0
    deltas = [event["delta"]["text"] for event in found if event["type"] == "content_block_delta"]
    assert "" in deltas
    assert "".join(deltas) == whole["content"][0]["text"]


def test_the_client_of_anthropic(server: Running) -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    client = anthropic.Anthropic(base_url=server.url, api_key="-", max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "messages": [ASKED], "extra_body": {"seed": 1}}
    message = client.messages.create(max_tokens=40, **asked)
    with client.messages.stream(max_tokens=40, **asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == message.content[0].text == last.content[0].text
    assert last.usage.output_tokens == message.usage.output_tokens
    (model,) = client.models.list()
    assert model == client.models.retrieve(MODEL)
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert abs(datetime.now(timezone.utc) - model.created_at) < timedelta(hours=1)
    assert last.stop_reason == message.stop_reason
    count = client.messages.count_tokens(model=MODEL, messages=[ASKED]).input_tokens
    assert count == message.usage.input_tokens + message.usage.cache_read_input_tokens
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(max_tokens=4, model="claude", messages=[ASKED])
    with pytest.raises(anthropic.BadRequestError, match="reads text only"):
        client.messages.create(max_tokens=4, model=MODEL, messages=[
            {"role": "user", "content": [{"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "AAAA"}}]}])  # fmt: skip
    template = TEMPLATE.replace("{# </think> #}", "")
    with running(random_model(Tags(template))) as other:
        client = anthropic.Anthropic(base_url=other.url, api_key="-", max_retries=0)
        asked = {**asked, "tools": [TOOL], "tool_choice": {"type": "any"}}
        with client.messages.stream(max_tokens=900, **asked) as stream:
            blocks = stream.get_final_message().content
        assert blocks
        assert all(block.input["city"] in ("Rome", "Oslo") for block in blocks)
