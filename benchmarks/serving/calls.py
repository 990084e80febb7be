"""Ask models for calls of tools: how many do they make, and how many of those are right?

Requests about the weather, files and mail, with three tools, in the three APIs, once with the
choice left to the model and once with a call required. A call is right if its tool is, and its
arguments name what was asked for.

    python -m benchmarks calls --targets qwen2.5-coder-0.5b,qwen2.5-coder-1.5b
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import typer

from benchmarks import Figures, markdown
from benchmarks.serving.servers import ours

_TIMEOUT_S, _MOST_TOKENS = 600.0, 120
_CITIES = (
    "Oslo", "Rome", "Lima", "Cairo", "Tokyo", "Paris", "Quito", "Delhi", "Bern", "Dakar", "Kyiv",
    "Riga", "Seoul", "Hanoi", "Accra", "Tunis", "Prague", "Vienna", "Dublin", "Athens",
)  # fmt: skip
_FILES = (
    "notes.txt", "main.py", "README.md", "setup.cfg", "data.csv", "log/app.log", "a.json",
    "src/lib.rs", "Makefile", "index.html", "todo.md", "config.yaml", "test.c", "style.css",
    "LICENSE", "doc/api.md", "run.sh", "query.sql", "package.json", "main.go",
)  # fmt: skip
_NAMES = (
    "anna", "bob", "carla", "dan", "eva", "felix", "gina", "hugo", "ida", "jan", "kim", "leo",
    "mia", "nils", "olga", "paul", "rosa", "sven", "tina", "uwe",
)  # fmt: skip


def _tool(name: str, about: str, **fields: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": words} for key, words in fields.items()}
    parameters = {"type": "object", "properties": properties, "required": list(fields)}
    return {"name": name, "description": about, "parameters": parameters}


_TOOLS = (
    _tool("get_weather", "The current weather of a city.", city="the city"),
    _tool("read_file", "Read a file and return its text.", path="the file's path"),
    _tool("send_mail", "Send an e-mail.", to="address", subject="subject", body="text"),
)
_Call = tuple[str, Any]
"""A tool's name, and its arguments as text or as an object."""


@dataclass(frozen=True)
class _Asked:
    """A request, and what a right call has."""

    words: str
    tool: str
    field: str
    value: str

    def is_right(self, call: _Call) -> bool:
        name, arguments = call
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        return name == self.tool and self.value in str(found.get(self.field, ""))


def _requests(num: int) -> list[_Asked]:
    """``num`` of each kind."""
    kinds: Sequence[tuple[Sequence[str], Callable[[str], _Asked]]] = (
        (_CITIES, lambda city: _Asked(
            f"What is the weather in {city}?", "get_weather", "city", city,
        )),
        (_FILES, lambda path: _Asked(f"Read the file {path}", "read_file", "path", path)),
        (_NAMES, lambda name: _Asked(
            f"Send a mail to {name}@example.org, subject Lunch, saying see you at noon.",
            "send_mail", "to", f"{name}@example.org",
        )),
    )  # fmt: skip
    return [made(each) for values, made in kinds for each in values[:num]]


def _chat(http: httpx.Client, model: str, words: str, *, is_required: bool) -> list[_Call]:
    body = {
        "model": model, "max_tokens": _MOST_TOKENS,
        "messages": [{"role": "user", "content": words}],
        "tools": [{"type": "function", "function": tool} for tool in _TOOLS],
        "tool_choice": "required" if is_required else "auto",
    }  # fmt: skip
    (choice,) = _answer(http, "/v1/chat/completions", body)["choices"]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or []]
    return [(call["name"], call["arguments"]) for call in calls]


def _respond(http: httpx.Client, model: str, words: str, *, is_required: bool) -> list[_Call]:
    body = {
        "model": model, "max_output_tokens": _MOST_TOKENS, "input": words, "store": False,
        "tools": [{"type": "function", **tool} for tool in _TOOLS],
        "tool_choice": "required" if is_required else "auto",
    }  # fmt: skip
    items = _answer(http, "/v1/responses", body)["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    return [(item["name"], item["arguments"]) for item in calls]


def _message(http: httpx.Client, model: str, words: str, *, is_required: bool) -> list[_Call]:
    body = {
        "model": model, "max_tokens": _MOST_TOKENS,
        "messages": [{"role": "user", "content": words}],
        "tools": [{
            "name": tool["name"], "description": tool["description"],
            "input_schema": tool["parameters"],
        } for tool in _TOOLS],
        "tool_choice": {"type": "any" if is_required else "auto"},
    }  # fmt: skip
    blocks = _answer(http, "/v1/messages", body)["content"]
    return [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]


_APIS = {"chat": _chat, "responses": _respond, "messages": _message}


def _answer(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = http.post(path, json=body).raise_for_status().json()
    return found


def calls(
    targets: Annotated[str, typer.Option(help="Names or files, separated by commas.")],
    num: Annotated[int, typer.Option(min=1, max=20, help="Requests of each kind.")] = 20,
) -> Figures:
    """Count the calls that models make, and those that are right."""
    asked = _requests(num)
    found: dict[str, dict[str, int]] = {}
    for target in targets.split(","):
        with (
            ours("-m", target, "--context", "2048", "-np", "1") as served,
            httpx.Client(base_url=served.url, timeout=_TIMEOUT_S) as http,
        ):
            model = http.get("/v1/models").json()["data"][0]["id"]
            for name, ask in _APIS.items():
                for is_required in (False, True):
                    made = [ask(http, model, one.words, is_required=is_required) for one in asked]
                    pairs = list(zip(asked, made, strict=True))
                    row = f"{model}, {name}, {'required' if is_required else 'auto'}"
                    found[row] = {
                        "requests": len(asked),
                        "made": sum(bool(own) for own in made),
                        "right": sum(any(map(one.is_right, own)) for one, own in pairs),
                    }
                    print(row, found[row], flush=True)
    print(markdown([("model, API, choice", "requests", "made", "right"),
                    *((row, *own.values()) for row, own in found.items())]))  # fmt: skip
    return {"calls": found}
