"""Make the requests of an audit: texts of several kinds, calls of tools, a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from duodec_lab.bench.tasks import TASKS, read_prompts
from duodec_lab.exactness.endpoint import Case

_GREEDY = {"temperature": 0}
_CHAT = "chat/completions"


def texts(count: int, max_tokens: int) -> list[Case]:
    """Greedy completions of prompts of seven kinds, the kinds by turns."""
    each = read_prompts(None, TASKS, -(-count // len(TASKS)))
    by_task = [[p for p in each if p.task == task] for task in TASKS]
    mixed = [prompt for row in zip_longest(*by_task) for prompt in row if prompt]
    return [
        Case(
            f"{p.task} {p.prompt_id}",
            "completions",
            {"prompt": p.turns[0], "max_tokens": max_tokens, **_GREEDY},
        )
        for p in mixed[:count]
    ]


def _tool(name: str, words: str, **fields: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": words, "parameters": schema},
    }


_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}
TOOLS = (
    _tool("get_weather", "The weather of a city now.", city=_TEXT),
    _tool("read_file", "The lines of a file.", path=_TEXT, first=_WHOLE, last=_WHOLE),
    _tool("run", "Run a command in the project's folder.", command=_TEXT),
    _tool(
        "convert", "Convert an amount of money.", amount={"type": "number"},
        to={"type": "string", "enum": ["EUR", "USD", "JPY"]},
    ),
)  # fmt: skip
_WISHES = (
    "What is the weather in Oslo?",
    "Show me lines 10 to 20 of src/main.py.",
    "Run the tests with pytest.",
    "How much are 12.50 US dollars in euros?",
    "Is it raining in Nairobi right now?",
    "List the files of the folder docs.",
)


def calls(max_tokens: int, **fields: Any) -> list[Case]:
    """Greedy requests that want a tool each."""
    return [
        Case(
            wish,
            _CHAT,
            {
                "messages": [{"role": "user", "content": wish}],
                "tools": list(TOOLS),
                "max_tokens": max_tokens,
                **_GREEDY,
                **fields,
            },
        )
        for wish in _WISHES
    ]


# What an agent was told, turn by turn: the user's words, the call, and its result.
_SYSTEM = (
    "You are a careful engineer who works on a small Python project with tools. Read before you "
    "write, change as little as possible, run the tests after each change, and say in one or two "
    "sentences what you found. Never invent the content of a file."
)
_TURNS: Sequence[tuple[str, str, Mapping[str, Any], str, str]] = (
    (
        "The tests fail since this morning. Find out why.",
        "run", {"command": "pytest -q"},
        "F....\ntests/test_area.py:9: AssertionError: assert 12.0 == 24.0\n1 failed, 4 passed",
        "One test fails: the area of a rectangle comes out as half of what it should be.",
    ),
    (
        "Look at the function.",
        "read_file", {"path": "src/area.py", "first": 1, "last": 12},
        ("def triangle(base, height):\n    return base * height / 2\n\n\n"
         "def rectangle(width, height):\n    return triangle(width, height)\n"),
        "`rectangle` returns the area of a triangle, which is half of width times height.",
    ),
    (
        "Who calls it?",
        "run", {"command": "grep -rn rectangle src"},
        ("src/area.py:5:def rectangle(width, height):\n"
         "src/report.py:14:    total += rectangle(*room.size)\n"
         "src/report.py:31:    return rectangle(w, h) * price"),
        "`report.py` calls it twice: for the total of the rooms and for a price.",
    ),
    (
        "Did the report rely on the wrong area anywhere?",
        "read_file", {"path": "src/report.py", "first": 10, "last": 32},
        ("def total(rooms):\n    total = 0\n    for room in rooms:\n"
         "        total += rectangle(*room.size)\n    return total\n\n\n"
         "def cost(w, h, price):\n    return rectangle(w, h) * price\n"),
        "No: both take the area as it comes, so both were too small by half.",
    ),
    (
        "Then mend it.",
        "run", {"command": "sed -i 's/return triangle(width, height)/return width * height/' "
                           "src/area.py && pytest -q"},
        ".....\n5 passed in 0.04s",
        "Mended: `rectangle` returns width times height, and all five tests pass.",
    ),
    (
        "Is the version newer than what is released?",
        "run", {"command": "git describe --tags && grep version pyproject.toml"},
        "v1.4.2-3-g9f1c2ab\nversion = \"1.4.2\"",
        "Three commits follow the release 1.4.2, and the version still says 1.4.2.",
    ),
)  # fmt: skip
_LAST = "Summarize the fault, its cause and the change, for the list of changes."


def conversation(max_tokens: int) -> list[Case]:
    """An agent's greedy requests: each has all the messages of the one before, and a turn more."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": _SYSTEM}]
    found: list[Case] = []
    for number, (wish, name, arguments, result, words) in enumerate(_TURNS):
        messages.append({"role": "user", "content": wish})
        found.append(_turn(f"turn {len(found) + 1}", messages, max_tokens))
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        found.append(_turn(f"turn {len(found) + 1}", messages, max_tokens))
        messages.append({"role": "assistant", "content": words})
    messages.append({"role": "user", "content": _LAST})
    return [*found, _turn(f"turn {len(found) + 1}", messages, max_tokens)]


def without_tools(case: Case) -> Case:
    """The same conversation for a server that refuses tools: calls and results are texts."""
    shown = []
    for message in case.body["messages"]:
        if message["role"] == "tool":
            shown.append({"role": "user", "content": f"Result:\n{message['content']}"})
        elif calls := message.get("tool_calls"):
            shown.append({"role": "assistant", "content": json.dumps(calls[0]["function"])})
        else:
            shown.append(message)
    body = {name: value for name, value in case.body.items() if name != "tools"}
    return Case(case.name, case.path, {**body, "messages": shown})


def edited(case: Case, number: int) -> Case:
    """The conversation with another text at the beginning of a message, as agents change it."""
    messages = [dict(message) for message in case.body["messages"]]
    messages[number]["content"] = f"It is 14:0{number}. {messages[number]['content']}"
    return Case(f"{case.name}, message {number} edited", case.path,
                {**case.body, "messages": messages})  # fmt: skip


def _turn(name: str, messages: list[dict[str, Any]], max_tokens: int) -> Case:
    body = {"messages": list(messages), "tools": list(TOOLS), "max_tokens": max_tokens, **_GREEDY}
    return Case(name, _CHAT, body)
