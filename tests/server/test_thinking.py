"""Reasoning is told apart from what is said, whole and streamed, and can be switched off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.decoding import proven
from fakes.server import MODEL, Running, running
from fakes.tags import Tags, random_model, willing_model
from hypothesis import given
from hypothesis import strategies as st

from duodec.server.api.tools.call import Reasoning
from duodec.server.api.tools.harmony import Messages
from duodec.server.api.tools.reasoning import THINKING, PlainReader, ReasoningReader, State

openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

MESSAGES: Any = [{"role": "user", "content": "hello"}]
_SHOW = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% endfor %}a"
)
_IS_OFF = "{% if enable_thinking is defined and not enable_thinking %}"
# as Qwen 3's: closed where it is switched off, else the model begins it
WRITTEN = _SHOW + _IS_OFF + "<think>\n\n</think>\n\n{% endif %}"
# as DeepSeek R1's and Qwen 3's thinking models: the prompt begins it
BEGUN = _SHOW + _IS_OFF + "</think>{% else %}<think>\n{% endif %}"
MAGISTRAL = _SHOW + "{# [THINK] [/THINK] #}"
_EFFORT = "{{ reasoning_effort or 'medium' }}"
HARMONY = f"{_SHOW}{{# <|channel|> <|message|> #}}{_EFFORT}<|start|>assistant"
TAGS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "now",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    }
]
SHOWN_TOOLS = "{% if tools %}<tool_call>{% endif %}"

THOUGHT, WORDS = "Let me see.\n\nYes.", "Hi!\n"
CASES = {
    "written": (WRITTEN, (), f"<think>\n{THOUGHT}\n</think>\n\n{WORDS}"),
    "begun": (BEGUN, (), f"{THOUGHT}\n</think>\n\n{WORDS}"),
    "control tokens": (BEGUN, ("<think>", "</think>"), f"{THOUGHT}\n</think>\n\n{WORDS}"),
    "magistral": (MAGISTRAL, ("[THINK]", "[/THINK]"), f"[THINK]{THOUGHT}[/THINK]{WORDS}"),
    "harmony": (
        HARMONY,
        TAGS,
        (
            f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
            f"<|channel|>final<|message|>{WORDS}"
        ),
    ),
}


def ask(server: Running, *, is_streamed: bool, **fields: Any) -> tuple[str, str, list[str], str]:
    """Reasoning, words, the names of calls, and the reason of the end."""
    fields = {"max_tokens": 500, "seed": 1, "messages": MESSAGES, **fields}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        if not is_streamed:
            (choice,) = client.chat.completions.create(model=MODEL, **fields).choices
            message = choice.message
            names = [call.function.name for call in message.tool_calls or ()]
            thought = getattr(message, "reasoning_content", None)
            assert thought != ""
            assert getattr(message, "reasoning", None) == thought
            return thought or "", message.content or "", names, choice.finish_reason
        thought, words, names, reason = "", "", [], ""
        for chunk in client.chat.completions.create(model=MODEL, stream=True, **fields):
            (choice,) = chunk.choices
            more = getattr(choice.delta, "reasoning_content", None) or ""
            assert not (more and words), "reasoning comes first"
            assert (getattr(choice.delta, "reasoning", None) or "") == more
            thought += more
            words += choice.delta.content or ""
            calls = choice.delta.tool_calls or ()  # arguments may come in several pieces
            names += [call.function.name for call in calls if call.function.name]
            reason = choice.finish_reason or reason
        return thought, words, names, reason


@pytest.mark.parametrize("name", CASES)
def test_reasoning_has_a_field_of_its_own(name: str) -> None:
    template, tags, answer = CASES[name]
    engine = willing_model(Tags(template, tags), answer, MESSAGES)
    with running(engine) as server:
        for is_streamed in (False, True):
            found = ask(server, is_streamed=is_streamed, temperature=0)
            assert found == (THOUGHT, WORDS, [], "stop")
        cut = ask(server, is_streamed=False, temperature=0, max_tokens=12)
        assert cut[1] == ""
        assert cut[0]
        assert THOUGHT.startswith(cut[0])


@pytest.mark.parametrize("template", [WRITTEN, BEGUN])
@pytest.mark.parametrize(
    "switch",
    [{"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
     {"reasoning_effort": "none"}],
)  # fmt: skip
def test_it_can_be_switched_off(template: str, switch: dict[str, Any]) -> None:
    tokenizer = Tags(template)
    engine = willing_model(tokenizer, WORDS, MESSAGES, variables={"enable_thinking": False})
    with running(engine) as server:
        for is_streamed in (False, True):
            found = ask(server, is_streamed=is_streamed, temperature=0, **switch)
            assert found == ("", WORDS, [], "stop")


@pytest.mark.parametrize("effort", ["low", "high"])
def test_an_effort_is_told_to_the_template(effort: str) -> None:
    tokenizer = Tags(HARMONY, TAGS)
    answer = f"<|channel|>final<|message|>{WORDS}"
    engine = willing_model(tokenizer, answer, MESSAGES, variables={"reasoning_effort": effort})
    with running(engine) as server:
        found = ask(server, is_streamed=False, temperature=0, reasoning_effort=effort)
        assert found == ("", WORDS, [], "stop")


def test_switches_that_cannot_be() -> None:
    with running(random_model(Tags(WRITTEN))) as server:
        for fields, param in (
            ({"reasoning_effort": "extreme"}, "reasoning_effort"),
            ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
            ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
        ):
            response = server.chat(**fields)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param


SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_formats_and_calls_hold_for_what_follows_the_reasoning(name: str) -> None:
    """The model thinks as it likes, and then what it may say is limited: it would have said
    something else."""
    template, tags, answer = CASES[name]
    tokenizer = Tags(SHOWN_TOOLS + template, tags)
    engine = willing_model(tokenizer, answer, MESSAGES)
    with running(engine) as server:
        for is_streamed in (False, True):
            thought, words, _, _ = ask(
                server, is_streamed=is_streamed, temperature=0, response_format=FORMAT
            )
            assert thought == THOUGHT
            assert json.loads(words)["a"] in (1, 2)
    engine = willing_model(tokenizer, answer, MESSAGES, tools=TOOLS)
    with running(engine) as server:
        for is_streamed in (False, True):
            found = ask(
                server,
                is_streamed=is_streamed,
                temperature=0,
                tools=TOOLS,
                tool_choice="required",
                parallel_tool_calls=False,
            )
            assert found == (THOUGHT, "", ["now"], "tool_calls")


def test_reasoning_goes_back_to_templates_that_want_it() -> None:
    tokenizer = Tags(WRITTEN)
    messages = [*MESSAGES, {"role": "assistant", "content": "Hi", "reasoning_content": "Hm"},
                *MESSAGES]  # fmt: skip
    engine = willing_model(tokenizer, WORDS, messages)
    with running(engine) as server:
        found = ask(server, is_streamed=False, temperature=0, messages=messages)
    assert found == ("", WORDS, [], "stop")


PIECES = ("<think>", "</think>", "<", "think>", "a", " ", "\n", "b c", "</", "<|channel|>",
          "<|message|>", "analysis", "final", "<|end|>")  # fmt: skip
STATES: list[State] = ["open", "closed", "either"]


@proven
@given(st.sampled_from([*STATES, None]), st.lists(st.sampled_from(PIECES), max_size=10), st.data())
def test_how_a_text_was_cut_changes_nothing(
    state: State | None, pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)

    def split(parts: list[str]) -> tuple[str, str]:
        reader = ReasoningReader(THINKING[0], state, PlainReader()) if state else Messages()
        found = [f for part in parts for f in reader.push(part)] + [*reader.finish()]
        thought = "".join(f.text for f in found if isinstance(f, Reasoning))
        return thought, "".join(f for f in found if isinstance(f, str))

    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split([text])
    assert split(parts) == whole
    assert split(list(text)) == whole
    if state == "closed":
        assert whole == ("", text)
