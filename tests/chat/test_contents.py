"""What a message says: a text, or parts that are texts, as the server reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duodec.chat.contents import NoText, names_function, text_of
from duodec.server.api.bodies import ChatMessage, tool_of
from duodec.server.api.fields import validated
from duodec.server.errors import ApiError

PART = {"type": "text", "text": "a"}
CONTENTS: list[Any] = [
    "a", "", [], [PART], [PART, {"type": "input_text", "text": "b"}], None, 5, {}, True, [5],
    [PART, "b"], [{"type": "text"}], [{"type": "text", "text": 5}], [{"text": "a"}],
    [{"type": "image_url", "image_url": {}}],
]  # fmt: skip


def _read(content: Any, calls: list[Any]) -> tuple[str, str]:
    try:
        return "text", text_of(content, has_calls=bool(calls))
    except NoText as error:
        return "refusal", f"content {error}"


def _read_by_server(content: Any, calls: list[Any]) -> tuple[str, str]:
    body = {"role": "assistant", "content": content, "tool_calls": calls}
    try:
        return "text", validated(ChatMessage, body).content
    except ApiError as error:
        return "refusal", str(error)


@pytest.mark.parametrize("calls", [[], [{"function": {"name": "f"}}]], ids=["plain", "calls"])
@pytest.mark.parametrize("content", CONTENTS, ids=json.dumps)
def test_contents_are_read_as_the_server_reads_them(content: Any, calls: list[Any]) -> None:
    assert _read(content, calls) == _read_by_server(content, calls)


@pytest.mark.parametrize(
    "tool",
    [5, None, "f", {}, {"name": "f"}, {"function": 5}, {"function": {"name": 5}},
     {"function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}],
    ids=json.dumps,
)  # fmt: skip
def test_tools_are_those_of_the_server(tool: Any) -> None:
    try:
        tool_of(tool)
        is_taken = True
    except Exception:  # noqa: BLE001  pydantic's, outside of a model
        is_taken = False
    assert names_function(tool) is is_taken
