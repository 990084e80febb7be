"""Ollama's interface, as its clients use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.server import MODEL, Running, running
from fakes.tags import Tags, random_model, willing_model

from duodec.models import resolve
from duodec.server.models.registry import Source

TEMPLATE = (
    "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.role[0] }}{{ m.name or '' }}"
    "{{ m.reasoning_content or '' }}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}a"
    "{# </think> #}"
)
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
          "required": ["city"]}  # fmt: skip
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ASKED: Any = {"role": "user", "content": "hello"}
NAME = f"{MODEL}:latest"
OPTIONS = {"seed": 1, "num_predict": 40, "temperature": 0.8, "top_k": 50, "top_p": 0.95,
           "min_p": 0.01, "repeat_penalty": 1.1, "presence_penalty": 0.1,
           "num_ctx": 2000}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(random_model(Tags(TEMPLATE))) as server:
        yield server


def lines(server: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    response = server.post(path, {"model": NAME, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def whole(server: Running, path: str, **body: Any) -> dict[str, Any]:
    response = server.post(path, {"model": NAME, "stream": False, **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def error(server: Running, path: str, status: int = 400, **body: Any) -> str:
    response = server.post(path, {"model": NAME, "stream": False, **body})
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    return str(response.json()["error"])


def test_a_chat_is_that_of_openais_interface(server: Running) -> None:
    fields = {name: own for name, own in OPTIONS.items() if name not in ("num_predict", "num_ctx")}
    chat = server.chat(max_tokens=40, **fields).json()
    told = whole(server, "/api/chat", messages=[ASKED], options=OPTIONS)
    assert told["message"] == {
        "role": "assistant", "content": chat["choices"][0]["message"]["content"]
    }  # fmt: skip
    assert (told["model"], told["done"]) == (NAME, True)
    assert told["done_reason"] == chat["choices"][0]["finish_reason"]
    assert told["prompt_eval_count"] == chat["usage"]["prompt_tokens"]
    assert told["eval_count"] == chat["usage"]["completion_tokens"]
    times = [told[f"{kind}_duration"] for kind in ("total", "load", "prompt_eval", "eval")]
    assert all(isinstance(ns, int) and ns >= 0 for ns in times)
    assert times[0] >= times[3] > 0


def test_a_stream_is_the_whole_a_line_an_object(server: Running) -> None:
    for seed in range(4):
        options = {**OPTIONS, "seed": seed}
        *parts, last = lines(server, "/api/chat", messages=[ASKED], options=options)
        told = whole(server, "/api/chat", messages=[ASKED], options=options)
        assert "".join(part["message"]["content"] for part in parts) == told["message"]["content"]
        assert not any(part["done"] for part in parts)
        assert (last["done"], last["message"]["content"]) == (True, "")
        assert last["eval_count"] == told["eval_count"]


def test_a_prompt_is_completed_with_the_template_or_raw(server: Running) -> None:
    told = whole(server, "/api/generate", prompt="hello", options=OPTIONS)
    chat = whole(server, "/api/chat", messages=[ASKED], options=OPTIONS)
    assert told["response"] == chat["message"]["content"]
    *parts, last = lines(server, "/api/generate", prompt="hello", options=OPTIONS)
    assert "".join(part["response"] for part in parts) == told["response"]
    assert last["done_reason"] == told["done_reason"]
    raw = whole(server, "/api/generate", prompt="uhelloa", raw=True, options=OPTIONS)
    assert raw["response"] == told["response"]
    system = whole(server, "/api/generate", prompt="hello", system="no", options=OPTIONS)
    raw = whole(server, "/api/generate", prompt="snouhelloa", raw=True, options=OPTIONS)
    assert raw["response"] == system["response"]
    assert "system" in error(server, "/api/generate", prompt="x", system="y", raw=True)


def test_a_model_without_a_template_takes_prompts_as_they_are() -> None:
    with running(random_model(Tags(None))) as server:
        told = whole(server, "/api/generate", prompt="hello", options=OPTIONS)
        done = server.complete(
            "hello",
            max_tokens=40,
            **{
                name: own for name, own in OPTIONS.items() if name not in ("num_predict", "num_ctx")
            },
        )
        assert told["response"] == done.json()["choices"][0]["text"]
        assert "no chat template" in error(server, "/api/generate", prompt="x", system="y")


def test_tools_are_called_and_their_results_go_back() -> None:
    with running(willing_model(Tags(TEMPLATE), CALL, [ASKED], tools=[TOOL])) as server:
        called = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
        told = whole(server, "/api/chat", messages=[ASKED], tools=[TOOL])
        assert told["message"]["tool_calls"] == [called]
        assert told["done_reason"] == "stop"
        parts = lines(server, "/api/chat", messages=[ASKED], tools=[TOOL])
        assert [p["message"]["tool_calls"] for p in parts if "tool_calls" in p["message"]] == [
            [called]
        ]
        turns = [ASKED, {"role": "assistant", "tool_calls": [called], "thinking": "hm"},
                 {"role": "tool", "tool_name": "weather", "content": "hot"}]  # fmt: skip
        told = whole(server, "/api/chat", messages=turns, options={"num_predict": 2})
        prompt = 'uhelloahmweather{"city": "Rome"}tweatherhota'
        assert told["prompt_eval_count"] == len(prompt)
        turns[-1]["images"] = ["AAAA"]  # said to be there: every later turn sends it again
        told = whole(server, "/api/chat", messages=turns, options={"num_predict": 2})
        line = "\n[image: not shown, this model reads text only]"
        assert told["prompt_eval_count"] == len(prompt) + len(line)


def test_thoughts_are_apart() -> None:
    answer = "<think>so</think>hi"
    with running(willing_model(Tags(TEMPLATE), answer, [ASKED])) as server:
        told = whole(server, "/api/chat", messages=[ASKED], think=True)["message"]
        assert (told["thinking"], told["content"]) == ("so", "hi")
        parts = lines(server, "/api/generate", prompt="hello")
        assert "".join(part.get("thinking", "") for part in parts) == "so"
        assert "".join(part["response"] for part in parts) == "hi"


def test_formats_are_kept(server: Running) -> None:
    for path, own in (("/api/chat", {"messages": [ASKED]}), ("/api/generate", {"prompt": "hi"})):
        told = whole(server, path, **own, format=SCHEMA, options=OPTIONS)
        text = told["message"]["content"] if path == "/api/chat" else told["response"]
        assert json.loads(text)["city"] in ("Rome", "Oslo")
        told = whole(server, path, **own, format="json", options={"num_predict": 1})
        assert (told["message"]["content"] if path == "/api/chat" else told["response"]) == "{"
        plain = whole(server, path, **own, format="", options={"num_predict": 3})
        assert plain["eval_count"] == 3


def test_logprobs_come_with_their_text(server: Running) -> None:
    body = {"messages": [ASKED], "logprobs": True, "top_logprobs": 2, "options": OPTIONS}
    told = whole(server, "/api/chat", **body)
    assert "".join(one["token"] for one in told["logprobs"]) == told["message"]["content"]
    assert all(len(one["top_logprobs"]) == 2 for one in told["logprobs"])
    parts = lines(server, "/api/chat", **body)
    assert [one for part in parts for one in part.get("logprobs", [])] == told["logprobs"]


def test_stops_end_a_response(server: Running) -> None:
    text = whole(server, "/api/generate", prompt="hello", options=OPTIONS)["response"]
    options = {**OPTIONS, "stop": [text[5:8]]}
    cut = whole(server, "/api/generate", prompt="hello", options=options)
    assert (cut["response"], cut["done_reason"]) == (text[: text.find(text[5:8])], "stop")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": 1}, "temperature"),
        ({"options": {"temprature": 1}}, "options.temprature"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": {"num_ctx": 999999}}, "options.num_ctx"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": []}, "options"),
        ({"format": "xml"}, "format"),
        ({"format": {"type": "frob"}}, "frob"),
        ({"think": "much"}, "think"),
        ({"think": 3}, "think"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"truncate": True}, "truncate"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    server: Running, fields: dict[str, Any], name: str
) -> None:
    assert name in error(server, "/api/chat", messages=[ASKED], **fields)
    assert name in error(server, "/api/generate", prompt="hi", **fields)


def test_pictures_and_old_contexts_are_refused(server: Running) -> None:
    image = {**ASKED, "images": ["aGk="]}
    assert "reads text only" in error(server, "/api/chat", messages=[image])
    assert "reads text only" in error(server, "/api/generate", prompt="x", images=["aGk="])
    for wrong in ("aGk=", [1], [""], ["@"], [["a"]]):
        image = {**ASKED, "images": wrong}
        assert "messages[0]" in error(server, "/api/chat", messages=[image])
        assert "images" in error(server, "/api/generate", prompt="x", images=wrong)
    assert "context" in error(server, "/api/generate", prompt="x", context=[1, 2])
    assert "suffix" in error(server, "/api/generate", prompt="x", suffix="y")
    whole(server, "/api/chat", messages=[{**ASKED, "images": []}], options={"num_predict": 1})
    long = {"role": "user", "content": "x" * 4000}
    assert "maximum context length" in error(server, "/api/chat", messages=[long])


def test_what_says_how_to_compute_has_no_effect(server: Running) -> None:
    options = {**OPTIONS, "num_gpu": 1, "num_thread": 4, "num_batch": 8, "use_mmap": True,
               "num_keep": 24, "mirostat": 0, "mirostat_tau": 5.0, "typical_p": 1.0}  # fmt: skip
    told = whole(server, "/api/chat", messages=[ASKED], options=options, keep_alive="5m")
    plain = whole(server, "/api/chat", messages=[ASKED], options=OPTIONS)
    assert told["message"] == plain["message"]


def test_what_is_not_served_says_so(server: Running) -> None:
    for path, field in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
        told = server.post(path, {"model": NAME, field: "x"})
        assert told.status_code == 400
        assert "makes no embeddings" in told.json()["error"]
    for path in ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"):
        assert "duodec pull" in error(server, path, 400)
    assert server.http.delete("/api/delete").status_code == 400
    assert "nothing at this path" in error(server, "/api/unheard", 404)


def test_models_are_listed(server: Running) -> None:
    (model,) = server.http.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == NAME
    assert len(model["digest"]) == 64
    (loaded,) = server.http.get("/api/ps").json()["models"]
    assert (loaded["name"], loaded["context_length"]) == (NAME, 3000)
    shown = server.post("/api/show", {"model": NAME}).json()
    assert shown["template"] == TEMPLATE
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert server.http.get("/api/version").json()["version"].count(".") == 2
    empty = whole(server, "/api/chat", messages=[])
    assert (empty["done_reason"], empty["message"]["content"]) == ("load", "")


def test_a_models_file_says_what_it_is() -> None:
    path = resolve("smollm2-draft").path
    source = Source(lambda taken: random_model(Tags(TEMPLATE)), path=lambda: path)
    with running(is_loaded=False, sources={MODEL: source}) as server:
        server.service.start()
        (model,) = server.http.get("/api/tags").json()["models"]
        assert model["size"] == path.stat().st_size
        assert model["details"]["family"] == "llama"
        assert model["details"]["format"] == "gguf"
        assert model["details"]["parameter_size"].endswith("M")
        info = server.post("/api/show", {"model": MODEL}).json()["model_info"]
        assert info["general.architecture"] == "llama"
        assert info["llama.context_length"] == 3000


def test_keys_are_checked() -> None:
    with running(api_keys=("secret",)) as server:
        for path in ("/api/tags", "/api/ps", "/api/version"):
            assert server.http.get(path).status_code == 401
        assert "key" in error(server, "/api/chat", 401, messages=[ASKED])


def test_the_client_of_ollama_works(server: Running) -> None:
    ollama = pytest.importorskip("ollama", reason="the client of Ollama is not installed")
    with ollama.Client(host=server.url) as client:
        plain = client.chat(NAME, messages=[ASKED], options=OPTIONS)
        streamed = client.chat(NAME, messages=[ASKED], options=OPTIONS, stream=True)
        assert "".join(part.message.content for part in streamed) == plain.message.content
        done = client.generate("tables", "hello", options=OPTIONS)
        assert done.response == plain.message.content
        assert client.list().models[0].model == NAME
        assert client.ps().models[0].context_length == 3000
        assert "tools" in client.show(NAME).capabilities
        told = client.chat(NAME, messages=[ASKED], format=SCHEMA, options=OPTIONS)
        assert json.loads(told.message.content)["city"] in ("Rome", "Oslo")
        for use in (
            lambda: client.embed(NAME, "hi"),
            lambda: client.pull("x"),
            lambda: client.chat(NAME, messages=[ASKED], options={"mirostat": 2}),
        ):
            with pytest.raises(ollama.ResponseError):
                use()


def test_the_client_of_ollama_calls_tools() -> None:
    ollama = pytest.importorskip("ollama", reason="the client of Ollama is not installed")

    def weather(city: str) -> str:
        """Of a city.

        Args:
            city: Its name.
        """
        return city

    with (
        running(willing_model(Tags(TEMPLATE), CALL, [ASKED], tools=[TOOL])) as server,
        ollama.Client(host=server.url) as client,
    ):
        done = client.chat("any", messages=[ASKED], tools=[TOOL])
        (call,) = done.message.tool_calls
        assert weather(**call.function.arguments) == "Rome"
        again = [ASKED, done.message, {"role": "tool", "tool_name": "weather", "content": "hot"}]
        last = client.chat("any", messages=again, tools=[weather], options={"num_predict": 3})
        assert last.eval_count == 3
