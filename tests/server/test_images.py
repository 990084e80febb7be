"""Pictures as clients send them: each API's own way, and hostile ones while others are served."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fakes.server import Running, running
from fakes.vision_models import picture_file, write_seeing
from PIL import Image

from duodec import LLM

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("models")
    files = write_seeing(folder, "Gemma 3")
    template = folder / "template.jinja"
    template.write_text(CHATML)
    llm = LLM.load(
        str(files.target), str(files.draft), context=512, threads=1, draft_threads=1,
        chat_template=str(template), num_slots=3,
    )  # fmt: skip
    with llm, running(llm, num_slots=3) as found:
        yield found


def base64_of(number: int = 0) -> str:
    return base64.b64encode(picture_file(number)).decode()


def uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def chat(url: Any, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "one two"}]
    return {
        "messages": [{"role": "user", "content": parts}], "max_tokens": NUM_TOKENS,
        "seed": 1, "temperature": 1.5, **more,
    }  # fmt: skip


def text_of(server: Running, body: dict[str, Any]) -> str:
    done = server.http.post("/v1/chat/completions", json=body)
    assert done.status_code == 200, done.text
    return str(done.json()["choices"][0]["message"]["content"])


def test_three_apis_have_one_text(server: Running) -> None:
    url = uri(picture_file())
    expected = text_of(server, chat(url))
    assert text_of(server, chat(url, speculation=False)) == expected
    assert {text_of(server, chat(uri(picture_file(i)))) for i in range(1, 5)} - {expected}
    source = {"type": "base64", "media_type": "image/png", "data": base64_of()}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "one two"}]
    done = server.http.post(
        "/v1/messages",
        json={
            "model": "any", "max_tokens": NUM_TOKENS, "temperature": 1.5, "seed": 1,
            "messages": [{"role": "user", "content": blocks}],
        },
    )  # fmt: skip
    assert done.status_code == 200, done.text
    assert done.json()["content"][0]["text"] == expected
    options = {"num_predict": NUM_TOKENS, "temperature": 1.5, "seed": 1}
    message = {"role": "user", "content": "one two", "images": [base64_of()]}
    done = server.http.post(
        "/api/chat",
        json={"model": "any", "messages": [message], "stream": False, "options": options},
    )
    assert done.status_code == 200, done.text
    assert done.json()["message"]["content"] == expected
    done = server.http.post(
        "/api/generate",
        json={
            "model": "any", "prompt": "one two", "images": [base64_of()], "stream": False,
            "options": options,
        },
    )  # fmt: skip
    assert done.status_code == 200, done.text
    assert done.json()["response"] == expected


def respond(server: Running, items: Any, **more: Any) -> dict[str, Any]:
    body = {
        "input": items, "max_output_tokens": NUM_TOKENS, "seed": 1, "temperature": 1.5, **more,
    }  # fmt: skip
    done = server.http.post("/v1/responses", json=body)
    assert done.status_code == 200, done.text
    told: dict[str, Any] = done.json()
    return told


def said(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def test_responses_have_that_text_and_go_on_from_pictures(server: Running) -> None:
    url = uri(picture_file())
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "one two"}]
    first = [{"role": "user", "content": parts}]
    told = respond(server, first)
    assert said(told) == text_of(server, chat(url))
    other = [{"type": "input_image", "image_url": uri(picture_file(9))}, parts[1]]
    second = [{"role": "user", "content": [*other, {"type": "input_text", "text": "three"}]}]
    earlier = {"role": "assistant", "content": said(told)}
    whole = respond(server, [*first, earlier, *second])
    on = respond(server, second, previous_response_id=told["id"])
    assert said(on) == said(whole)
    assert on["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert on["usage"]["input_tokens_details"]["cached_tokens"] > 0
    third = [{"role": "user", "content": "four"}]
    again = respond(server, third, previous_response_id=on["id"])
    flat = [*first, earlier, *second, {"role": "assistant", "content": said(on)}, *third]
    assert said(again) == said(respond(server, flat))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([{"type": "input_image", "file_id": "file-1"}], "no url"),
        ([{"type": "input_image", "image_url": "https://a.example/b.png"}], "nothing is fetched"),
        ([{"type": "input_file", "file_data": "x"}], "input_file"),
    ],
)
def test_responses_refuse_what_is_no_picture(server: Running, content: list[Any], why: str) -> None:
    done = server.http.post("/v1/responses", json={"input": [{"role": "user", "content": content}]})
    assert done.status_code == 400
    assert why in done.json()["error"]["message"]


CALL_ID = "call_1"


def of_result(server: Running, data: str, kind: str = "chat") -> str:
    """What the model says after a tool's result with a text and a picture, by each API."""
    url = f"data:image/png;base64,{data}"
    function = {"name": "look", "arguments": "{}"}
    asked = {"role": "user", "content": "one two"}
    if kind == "responses":
        output = [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": url}]
        return said(
            respond(
                server,
                [asked, {"type": "function_call", "call_id": CALL_ID, **function},
                 {"type": "function_call_output", "call_id": CALL_ID, "output": output}],
            )
        )  # fmt: skip
    if kind in ("messages", "messages, beside"):
        picture = {"type": "image", "source": {"type": "base64", "data": data}}
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": CALL_ID}
        text = {"type": "text", "text": "seen"}
        inner = [{**result, "content": [text, picture]}]
        if kind == "messages, beside":
            inner = [{**result, "content": [text]}, picture]
        done = server.http.post(
            "/v1/messages",
            json={"max_tokens": NUM_TOKENS, "seed": 1, "temperature": 1.5, "messages": [
                asked,
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": CALL_ID, "name": "look", "input": {}}]},
                {"role": "user", "content": inner},
            ]},
        )  # fmt: skip
        assert done.status_code == 200, done.text
        return str(done.json()["content"][0]["text"])
    call = {"id": CALL_ID, "type": "function", "function": function}
    if kind == "ollama":
        done = server.http.post(
            "/api/chat",
            json={"model": "any", "stream": False,
                  "options": {"num_predict": NUM_TOKENS, "temperature": 1.5, "seed": 1},
                  "messages": [
                      asked,
                      {"role": "assistant", "tool_calls": [
                          {"function": {"name": "look", "arguments": {}}}]},
                      {"role": "tool", "content": "seen", "images": [data]}]},
        )  # fmt: skip
        assert done.status_code == 200, done.text
        return str(done.json()["message"]["content"])
    parts = [{"type": "text", "text": "seen"}, {"type": "image_url", "image_url": {"url": url}}]
    return text_of(
        server,
        {"messages": [asked, {"role": "assistant", "tool_calls": [call]},
                      {"role": "tool", "tool_call_id": CALL_ID, "content": parts}],
         "max_tokens": NUM_TOKENS, "seed": 1, "temperature": 1.5},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["responses", "messages", "messages, beside", "ollama"])
def test_a_tools_result_shows_its_picture(server: Running, kind: str) -> None:
    expected = [of_result(server, base64_of(number)) for number in range(4)]
    assert len(set(expected)) > 1
    assert [of_result(server, base64_of(number), kind) for number in range(4)] == expected


@pytest.mark.parametrize("kind", ["chat", "responses", "messages", "messages, beside", "ollama"])
def test_a_damaged_picture_in_a_result_ends_no_conversation(server: Running, kind: str) -> None:
    """Clients send it again in every later turn."""
    damaged = base64.b64encode(picture_file()[:200]).decode()
    for data in (damaged, "", "@@@@"):
        assert of_result(server, data, kind) != of_result(server, base64_of(), kind)


def test_a_stream_and_its_usage_count_the_picture(server: Running) -> None:
    body = chat(uri(picture_file(5)))
    plain = server.http.post(
        "/v1/chat/completions",
        json={**body, "messages": [{"role": "user", "content": "one two"}]},
    ).json()
    done = server.http.post("/v1/chat/completions", json=body).json()
    assert done["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]
    again = server.http.post("/v1/chat/completions", json=body).json()
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["usage"]["prompt_tokens"] - 1
    counted = server.http.post(
        "/v1/messages/count_tokens",
        json={"model": "any", "messages": [
            {"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "data": base64_of(5)}},
                {"type": "text", "text": "one two"},
            ]},
        ]},
    )  # fmt: skip
    assert counted.json()["input_tokens"] == done["usage"]["prompt_tokens"]
    models = server.http.get("/v1/models").json()["data"]
    assert "vision" in models[0]["capabilities"]


def test_another_clients_picture_is_no_quicker(server: Running) -> None:
    """What one has sent is not another's to feel."""
    body = chat(uri(picture_file(6)))
    server.http.post("/v1/chat/completions", json={**body, "cache_salt": "one"})
    other = server.http.post("/v1/chat/completions", json={**body, "cache_salt": "two"}).json()
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def _animated() -> bytes:
    found = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(found, "GIF", save_all=True, append_images=frames[1:])
    return found.getvalue()


def _large() -> bytes:
    """900 million pixels in a few bytes."""
    header = bytearray(picture_file())
    header[16:24] = (30_000).to_bytes(4, "big") * 2
    import zlib

    header[29:33] = zlib.crc32(bytes(header[12:29])).to_bytes(4, "big")
    return bytes(header)


BAD = {
    "900 million pixels": (uri(_large()), "30000 by 30000"),
    "truncated": (uri(picture_file()[:200]), "cannot be decoded"),
    "animated": (uri(_animated()), "animated"),
    "SVG": (uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "SVG"),
    "address": ("http://127.0.0.1:1/a.png", "nothing is fetched"),
    "file": ("file:///etc/passwd", "nothing is fetched"),
    "no base64": ("data:image/png;base64,@@@@", "no base64"),
    "number": (5, "no url"),
}


def test_hostile_pictures_are_refused_while_a_client_is_served(server: Running) -> None:
    steady = chat(uri(picture_file(8)), max_tokens=60)
    expected = text_of(server, steady)
    found: list[str] = []

    def serve() -> None:
        found.extend(text_of(server, steady) for _ in range(4))

    thread = Thread(target=serve)
    thread.start()
    for name, (url, why) in BAD.items():
        done = server.http.post("/v1/chat/completions", json=chat(url))
        assert done.status_code == 400, (name, done.text)
        message = done.json()["error"]["message"]
        assert why in message, name
        assert "\n" not in message
    thread.join(timeout=60)
    assert found == [expected] * 4


@pytest.mark.parametrize(
    ("role", "content", "why"),
    [
        ("assistant", [{"type": "image_url", "image_url": {"url": "x"}}], "only a user's"),
        ("user", [{"type": "image", "image": "/etc/passwd"}], "reads text only"),
        ("user", [{"type": "input_audio"}], "reads text only"),
        ("user", [{"type": "image_url"}], "no url"),
    ],
)
def test_what_is_no_picture_is_refused(
    server: Running, role: str, content: list[Any], why: str
) -> None:
    messages = [{"role": role, "content": content}, {"role": "user", "content": "a"}]
    done = server.http.post("/v1/chat/completions", json={"messages": messages})
    assert done.status_code == 400
    assert why in done.json()["error"]["message"]


def test_the_prompt_log_keeps_no_pictures(tmp_path: Path) -> None:
    from duodec.chat.pictures import ImageFile, part_of
    from duodec.server.prompt_log import PromptLog

    log = PromptLog(tmp_path / "log.jsonl")
    log.write(
        [{"role": "user", "content": [part_of(ImageFile(b"x")), {"type": "text", "text": "a"}]}]
    )
    assert (tmp_path / "log.jsonl").read_text() == (
        '{"messages": [{"role": "user", "content": "a"}]}\n'
    )
