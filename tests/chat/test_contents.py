"""What a message says: a text, or parts that are texts, as the server reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duodec.chat.contents import NoText, content_of, names_function
from duodec.server.api.bodies import ChatMessage, tool_of
from duodec.server.api.fields import validated
from duodec.server.errors import ApiError

PART = {"type": "text", "text": "a"}
CONTENTS: list[Any] = [
    "a", "", [], [PART], [PART, {"type": "input_text", "text": "b"}], None, 5, {}, True, [5],
    [PART, "b"], [{"type": "text"}], [{"type": "text", "text": 5}], [{"text": "a"}],
    [{"type": "image_url", "image_url": {}}],
]  # fmt: skip


def _read(role: str, content: Any, calls: list[Any]) -> tuple[str, str]:
    try:
        return "text", content_of(role, content, has_calls=bool(calls))
    except NoText as error:
        return "refusal", f"content {error}"


def _read_by_server(role: str, content: Any, calls: list[Any]) -> tuple[str, str]:
    body = {"role": role, "content": content, "tool_calls": calls}
    try:
        return "text", validated(ChatMessage, body).content
    except ApiError as error:
        return "refusal", str(error)


@pytest.mark.parametrize("calls", [[], [{"function": {"name": "f"}}]], ids=["plain", "calls"])
@pytest.mark.parametrize("content", CONTENTS, ids=json.dumps)
def test_contents_are_read_as_the_server_reads_them(content: Any, calls: list[Any]) -> None:
    for role in ("assistant", "tool"):
        assert _read(role, content, calls) == _read_by_server(role, content, calls)


def test_what_is_no_text_in_a_result_is_a_line_that_says_so() -> None:
    parts = [PART, {"type": "image_url", "image_url": {"url": "data:..."}}, PART,
             {"type": "tool_reference", "tool_name": "read\nit"}, {}, 5,
             {"type": "text", "text": 5}]  # fmt: skip
    why = "not shown, this model reads text only]"
    assert _read("tool", parts, []) == ("text", "\n".join([
        "a", f"[image_url: {why}", "a", f"[tool_reference read it: {why}", f"[part: {why}",
        f"[part: {why}", f"[text: {why}",
    ]))  # fmt: skip
    assert _read("tool", [PART, PART], []) == ("text", "aa")
    assert _read("user", parts, [])[0] == "refusal"


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
