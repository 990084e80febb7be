"""Tools of ``/v1/responses`` as Codex sends them: namespaces, custom tools, and OpenAI's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.server import MODEL, Running, Slowed, running
from fakes.tags import Tags, random_model, willing_model

openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}<tool_call>"
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}a"
)
PATH = "/v1/responses"
WAIT = {"type": "function", "name": "wait", "strict": False, "description": "Wait for an agent.",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}},
                       "required": ["id"], "additionalProperties": False}}  # fmt: skip
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}  # fmt: skip
SEARCH = {"type": "web_search", "external_web_access": False}
TOOLS: list[Any] = [
    {"type": "function", "name": "exec_command", "strict": False, "parameters": {
        "type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"],
        "additionalProperties": False}},
    {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.",
     "tools": [WAIT, {"type": "web_search"}]},
    {"type": "namespace", "name": "mcp__files__", "tools": [PATCH]},
    PATCH, SEARCH, {"type": "image_generation", "output_format": "png"},
]  # fmt: skip
SHOWN = ["exec_command", "multi_agent_v1__wait", "mcp__files__apply_patch", "apply_patch"]
ASKED: list[Any] = [
    {"type": "message", "role": "developer", "id": "msg_1",
     "content": [{"type": "input_text", "text": "You are Codex."}]},
    {"type": "message", "role": "user", "id": "msg_2",
     "content": [{"type": "input_text", "text": "go"}]},
]  # fmt: skip
# as codex_exec/0.171.0 sends it, but for its texts
CODEX: dict[str, Any] = {
    "model": "qwen", "stream": False, "input": ASKED, "tools": TOOLS, "tool_choice": "auto",
    "parallel_tool_calls": True, "reasoning": {"summary": "auto", "context": "auto"},
    "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "01a2",
    "client_metadata": {"session_id": "01a2", "x-codex-turn-metadata": "{}"},
    "text": {"verbosity": "low"}, "truncation": "auto", "max_tool_calls": 3,
}  # fmt: skip
CALLS = [
    ("exec_command", {"cmd": "ls"}), ("multi_agent_v1__wait", {"id": "a1"}),
    ("apply_patch", {"input": "*** Begin Patch\n*** End Patch"}),
]  # fmt: skip
PATCHED = CALLS[2][1]["input"]
LISTED = {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "ls"}'}
WAITED = {"type": "function_call", "name": "wait", "namespace": "multi_agent_v1",
          "arguments": '{"id": "a1"}'}  # fmt: skip
EDITED = {"type": "custom_tool_call", "name": "apply_patch", "input": PATCHED}


def written(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def shown(names: list[str]) -> list[dict[str, Any]]:
    return [{"function": {"name": name}} for name in names]


def model_of(answer: str, messages: list[dict[str, Any]]) -> Any:
    """It answers so to what the template writes of these, and of the tools that are served."""
    return willing_model(Tags(TEMPLATE), answer, messages, tools=shown(SHOWN))


def plain(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id", "status")}


def sent(server: Running, **fields: Any) -> dict[str, Any]:
    response = server.post(PATH, {**CODEX, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_the_request_of_codex_is_served_and_its_calls_are_named_back() -> None:
    texts = [{"role": "system", "content": "You are Codex."}, {"role": "user", "content": "go"}]
    answer = "\n".join(written(*call) for call in CALLS)
    with running(model_of(answer, texts)) as server:
        told = sent(server)
        assert [*map(plain, told["output"])] == [LISTED, WAITED, EDITED]
        text = server.post(PATH, {**CODEX, "temperature": 0, "stream": True}).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    assert [plain(one) for one in events[-1]["response"]["output"]] == [LISTED, WAITED, EDITED]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [*map(plain, done)] == [LISTED, WAITED, EDITED]
    begun = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    empty = [{**LISTED, "arguments": ""}, {**WAITED, "arguments": ""}, {**EDITED, "input": ""}]
    assert [*map(plain, begun)] == empty
    assert [item["id"].split("_")[0] for item in begun] == ["fc", "fc", "ctc"]
    inputs = [event for event in events if "custom_tool_call_input" in event["type"]]
    assert [event["type"].rpartition(".")[2] for event in inputs] == ["delta", "done"]
    assert inputs[0]["delta"] == inputs[1]["input"] == PATCHED
    assert told["max_tool_calls"] == 3
    assert told["truncation"] == "auto"
    assert told["text"]["verbosity"] == "low"
    assert told["tools"] == [TOOLS[0], {**TOOLS[1], "tools": [WAIT]}, TOOLS[2], PATCH]


def test_calls_and_results_of_every_kind_go_back() -> None:
    """The model answers only to the conversation as the template shows it."""
    items = [
        *ASKED, {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {**LISTED, "call_id": "1"}, {**WAITED, "call_id": "2"}, {**EDITED, "call_id": "3"},
        {"type": "function_call_output", "call_id": "1", "output": "a.txt"},
        {"type": "function_call_output", "call_id": "2", "output": [
            {"type": "input_text", "text": "seen"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
        {"type": "custom_tool_call_output", "call_id": "3", "output": "Done!"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]  # fmt: skip
    calls = [{"function": {"name": name, "arguments": own}} for name, own in CALLS]
    line = "[input_image: not shown, this model reads text only]"
    texts = [
        {"role": "system", "content": "You are Codex."}, {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "a.txt"}, {"role": "tool", "content": f"seen\n{line}"},
        {"role": "tool", "content": "Done!"}, {"role": "assistant", "content": "No."},
    ]  # fmt: skip
    with running(model_of("All done.", texts)) as server:
        told = sent(server, input=items)
        assert told["output"][0]["content"][0]["text"] == "All done."
        body = {name: CODEX[name] for name in ("model", "tools")}
        count = server.post(f"{PATH}/input_tokens", {**body, "input": items}).json()
    assert count == {
        "object": "response.input_tokens", "input_tokens": told["usage"]["input_tokens"]
    }  # fmt: skip


def test_a_custom_tool_that_is_required_is_called_with_a_text() -> None:
    with running(random_model(Tags(TEMPLATE))) as server:
        fields = {"tool_choice": {"type": "custom", "name": "apply_patch"}, "temperature": 0.7,
                  "parallel_tool_calls": False, "seed": 2, "max_output_tokens": 900}  # fmt: skip
        told = sent(server, **fields)
        (item,) = told["output"]
        assert (item["type"], item["name"]) == ("custom_tool_call", "apply_patch")
        assert isinstance(item["input"], str)
        named = {"type": "function", "name": "wait", "namespace": "multi_agent_v1"}
        (item,) = sent(server, **{**fields, "tool_choice": named})["output"]
        assert (item["name"], item["namespace"]) == ("wait", "multi_agent_v1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": {"type": "web_search"}}, "names no tool that was sent"),
        ({"tool_choice": "required", "tools": [SEARCH]}, "none were sent"),
        ({"tools": [{"name": "x"}]}, "tools has a tool without a type"),
        ({"tools": [{"type": "custom"}]}, "tools has a custom without a name"),
        ({"tools": "x"}, "tools is a string"),
        ({"tools": [{"type": "namespace", "name": "x", "tools": 5}]}, "whose tools are a number"),
        ({"tools": [{"type": "namespace", "name": "x", "tools": [5]}]}, "a tool without a type"),
        (
            {"tools": [{"type": "namespace", "name": "x", "tools": [
                {"type": "namespace", "name": "y", "tools": []}]}]},
            "has a namespace, y, in another one",
        ),
        ({"input": [{"type": "custom_tool_call", "name": "x"}]}, "no name or no input"),
        ({"input": [{"type": "function_call_output", "output": 3}]}, "input[0].output is no text"),
        ({"truncation": "left"}, "truncation"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: dict[str, Any], words: str) -> None:
    with running(random_model(Tags(TEMPLATE))) as server:
        response = server.post(PATH, {**CODEX, **fields})
        assert response.status_code == 400, response.text
        assert words in response.json()["error"]["message"]
        if "input" not in fields:
            count = server.post(f"{PATH}/input_tokens", {"input": "x", "previous_response_id": "y"})
            assert count.json()["error"]["param"] == "previous_response_id"


def test_a_stream_that_waits_says_so_by_events() -> None:
    """Codex counts no comments, and ends a stream without events after a while."""
    engine = random_model(Tags(TEMPLATE))
    slow = Slowed(engine.loaded.target, seconds=0.4)
    with running(engine, slow, ping_s=0.1) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)
        fields = {"model": MODEL, "input": "hello", "max_output_tokens": 3}
        with client.responses.stream(**fields) as stream:
            assert len(list(stream)) > 4  # the helper passes over what it does not know
        events = list(client.responses.create(stream=True, **fields))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type for event in events]
        assert kinds.count("keepalive") >= 2
        assert kinds.index("keepalive") < kinds.index("response.output_item.added")


def test_a_stream_that_fails_says_so_to_codex_and_to_openai() -> None:
    engine = random_model(Tags(TEMPLATE))

    def fail(queries: Any) -> None:
        if any(len(query.text) > 22 for query in queries):
            raise RuntimeError("broken")

    with running(engine, Slowed(engine.loaded.target, on_score=fail)) as server:
        body = {"input": "hello", "stream": True, "max_output_tokens": 200}
        text = server.post(PATH, body).text
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)
        with pytest.raises(openai.APIError):
            list(client.responses.create(model=MODEL, **body))
    last = json.loads(text.split("\n\n")[-3].removeprefix("data: "))
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["message"] == last["error"]["message"]
    assert last["response"]["error"]["code"] == "internal_error"


def test_tools_that_nobody_can_run_are_none() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}a"  # it has no place for tools
    with running(random_model(Tags(template))) as server:
        told = sent(server, tools=[SEARCH], max_output_tokens=4)
        assert told["tools"] == []
        assert server.post(PATH, {"input": "x", "model": MODEL}).json()["tools"] == []
