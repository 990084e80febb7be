"""Calls of tools in every format that templates use, as the `openai` client sees them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
from fakes.decoding import proven
from fakes.server import MODEL, Running, running
from fakes.tags import Tags, random_model, willing_model
from hypothesis import given
from hypothesis import strategies as st

from duodec.chat.prompting import chat_tokens
from duodec.llm import LLM
from duodec.server.api.tools.call import Call, Format, Fragment, object_of
from duodec.server.api.tools.chat_format import TaggedText, syntax_of
from duodec.server.api.tools.deepseek import DEEPSEEK_3, DEEPSEEK_31
from duodec.server.api.tools.harmony import Messages
from duodec.server.api.tools.json_calls import (
    Hermes,
    JsonList,
    Llama,
    MistralList,
    MistralNamed,
)
from duodec.server.api.tools.pythonic import LFM2, OLMO
from duodec.server.api.tools.smollm import with_tools
from duodec.server.api.tools.splitting import ToolCalls
from duodec.server.api.tools.tagged import GLM, QWEN_CODER
from duodec.server.api.tools.untagged import OrUntagged
from duodec.server.http.json_limits import parse
from duodec.server.models import output_collector

SLOW = pytest.mark.slow
openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 3},
        "is_exact": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "note", "parameters": {
        "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}},
    {"type": "function", "function": {"name": "now", "parameters": {
        "type": "object", "properties": {}, "additionalProperties": False}}},
]  # fmt: skip
MESSAGES: Any = [{"role": "user", "content": "hello"}]
ROME = ("weather", {"city": "Rome", "days": 2, "is_exact": True})
NOTE = ("note", {"text": 'a "b"\nc'})


@dataclass(frozen=True)
class Case:
    """A format: how its template writes a call in ``c``, which text a model writes for the calls
    of weather and note, and the tags that are control tokens."""

    call: str
    weather: str
    note: str = ""
    tags: tuple[str, ...] = ()
    words: str = "Let me."  # said before
    between: str = "\n"
    is_many: bool = True

    @property
    def template(self) -> str:
        """Shows tools, calls and results, as templates do."""
        return (
            "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
            "{% for m in messages %}{{ m.role[0] }}{{ m.content }}"
            "{% for c in m.tool_calls or [] %}{% set c = c.function %}" + self.call
            + "{% endfor %}{% endfor %}a"
        )  # fmt: skip


DSK = {name: f"<\uff5ctool\u2581{name.replace('_', chr(0x2581))}\uff5c>"
       for name in ("calls_begin", "calls_end", "call_begin", "call_end", "sep")}  # fmt: skip
ROME_JSON, NOTE_JSON = json.dumps(ROME[1]), json.dumps(NOTE[1])
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
CASES = {
    "hermes": Case(
        '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments|tojson }}}\n'
        "</tool_call>",
        f'<tool_call>\n{{"name": "weather", "arguments": {ROME_JSON}}}\n</tool_call>',
        f'<tool_call>\n{{"name": "note", "arguments": {NOTE_JSON}}}\n</tool_call>',
    ),
    "qwen3-coder": Case(
        "<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments.items() %}"
        "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n<parameter=is_exact>\ntrue\n</parameter>\n"
        "</function>\n</tool_call>",
        '<tool_call>\n<function=note>\n<parameter=text>\na "b"\nc\n</parameter>\n</function>\n'
        "</tool_call>",
    ),
    "glm": Case(
        "<tool_call>{{ c.name }}\n{% for k, v in c.arguments.items() %}<arg_key>{{ k }}</arg_key>"
        "\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>is_exact</arg_key>\n"
        "<arg_value>true</arg_value>\n</tool_call>",
        '<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>a "b"\nc</arg_value>\n</tool_call>',
        tags=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
              "</arg_value>"),
    ),
    "llama-3": Case(
        '<|python_tag|>{"name": "{{ c.name }}", "parameters": {{ c.arguments|tojson }}}',
        f'{{"name": "weather", "parameters": {ROME_JSON}}}',
        f'{{"name": "note", "parameters": {NOTE_JSON}}}',
        tags=("<|python_tag|>",), words="", between="; ",
    ),
    "llama-3-tagged": Case(
        '<|python_tag|>{"name": "{{ c.name }}", "parameters": {{ c.arguments|tojson }}}',
        f'<|python_tag|>{{"name": "weather", "parameters": {ROME_JSON}}}',
        f'{{"name": "note", "parameters": {NOTE_JSON}}}',
        tags=("<|python_tag|>",), words="", between="; ",
    ),
    "mistral-7": Case(
        '[TOOL_CALLS][{"name": "{{ c.name }}", "arguments": {{ c.arguments|tojson }}}]',
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ROME_JSON}}}',
        f'{{"name": "note", "arguments": {NOTE_JSON}, "id": "abcdefghi"}}]',
        tags=("[TOOL_CALLS]",), between=", ",
    ),
    "mistral-11": Case(
        "[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments|tojson }}",
        f"[TOOL_CALLS]weather[ARGS]{ROME_JSON}",
        f"[TOOL_CALLS]note[CALL_ID]abcdefghi[ARGS]{NOTE_JSON}",
        tags=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), between="",
    ),
    "deepseek-3": Case(
        "{calls_begin}{call_begin}function{sep}{{{{ c.name }}}}\n```json\n{{{{ c.arguments"
        " + '' }}}}\n```{call_end}{calls_end}".format(**DSK),
        "{calls_begin}{call_begin}function{sep}weather\n```json\n{{}}\n```{call_end}"
        .format(**DSK).replace("{}", ROME_JSON),
        "{call_begin}function{sep}note\n```json\n{{}}\n```{call_end}{calls_end}"
        .format(**DSK).replace("{}", NOTE_JSON),
        tags=tuple(DSK.values()),
    ),
    "deepseek-3.1": Case(
        "{calls_begin}{call_begin}{{{{ c.name }}}}{sep}{{{{ c.arguments + '' }}}}{call_end}"
        "{calls_end}".format(**DSK),
        "{calls_begin}{call_begin}weather{sep}{{}}{call_end}"
        .format(**DSK).replace("{}", ROME_JSON),
        "{call_begin}note{sep}{{}}{call_end}{calls_end}".format(**DSK).replace("{}", NOTE_JSON),
        tags=tuple(DSK.values()), between="",
    ),
    "harmony": Case(
        "<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json<|message|>"
        "{{ c.arguments|tojson }}<|call|>",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + ROME_JSON,
        tags=HARMONY, words="<|channel|>commentary<|message|>Let me.<|end|><|start|>assistant",
        is_many=False,
    ),
    "granite-3": Case(
        '<|tool_call|>[{"name": "{{ c.name }}", "arguments": {{ c.arguments|tojson }}}]',
        f'<|tool_call|>[{{"name": "weather", "arguments": {ROME_JSON}}}',
        f'{{"name": "note", "arguments": {NOTE_JSON}}}]',
        tags=("<|tool_call|>",), between=", ",
    ),
    "phi-4-mini": Case(
        '<|tool_call|>[{"name": "{{ c.name }}", "arguments": {{ c.arguments|tojson }}}]'
        "<|/tool_call|>",
        f'<|tool_call|>[{{"name": "weather", "arguments": {ROME_JSON}}}',
        f'{{"name": "note", "arguments": {NOTE_JSON}}}]<|/tool_call|>',
        tags=("<|tool_call|>", "<|/tool_call|>"), between=",",
    ),
    "lfm2": Case(
        "<|tool_call_start|>[{{ c.name }}()]<|tool_call_end|>",
        '<|tool_call_start|>[weather(city="Rome", days=2, is_exact=True)',
        "note(text='a \"b\"\\nc')]<|tool_call_end|>",
        tags=("<|tool_call_start|>", "<|tool_call_end|>"), between=", ",
    ),
    "olmo-3": Case(
        "<function_calls>{{ c.name }}()</function_calls>",
        '<function_calls>weather(city="Rome", days=2, is_exact=true)',
        "note(text='a \"b\"\\nc')</function_calls>",
    ),
}  # fmt: skip
named = pytest.mark.parametrize("name", CASES)


@lru_cache(maxsize=1)
def client_of(url: str) -> Any:
    """One client for each server: it takes longer to make than an answer."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)


def answered(server: Running, *, is_streamed: bool, **fields: Any) -> tuple[str, list[Any], str]:
    """What the client reads: words, calls with their names and arguments, the reason of the end."""
    fields = {"max_tokens": 800, "seed": 1, "messages": MESSAGES, "tools": TOOLS, **fields}
    create = client_of(server.url).chat.completions.create
    if not is_streamed:
        (choice,) = create(model=MODEL, **fields).choices
        message = choice.message
        calls = message.tool_calls or []
        assert len({call.id for call in calls}) == len(calls)
        pairs = [(c.function.name, json.loads(c.function.arguments)) for c in calls]
        return message.content or "", pairs, choice.finish_reason
    words, parts, reason = "", {}, ""
    for chunk in create(model=MODEL, stream=True, **fields):
        (choice,) = chunk.choices
        words += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            part = parts.setdefault(call.index, [call.function.name, ""])
            assert call.function.name == (part[0] if not part[1] else None), "told once"
            assert bool(call.id) == bool(call.function.name)
            part[1] += call.function.arguments
    assert list(parts) == list(range(len(parts)))
    return words, [(name, json.loads(text)) for name, text in parts.values()], reason


@named
def test_calls_are_read(name: str) -> None:
    case = CASES[name]
    tokenizer = Tags(case.template, case.tags)
    text = case.words + case.weather
    text += case.between + case.note if case.is_many else ""
    engine = willing_model(tokenizer, text, MESSAGES, tools=TOOLS)
    with running(engine) as server:
        for is_streamed in (False, True):
            words, calls, reason = answered(server, is_streamed=is_streamed, temperature=0)
            assert calls == [ROME, NOTE][: 1 + case.is_many]
            assert (words, reason) == ("Let me." if case.words else "", "tool_calls")
        _, calls, _ = answered(server, is_streamed=True, temperature=0, parallel_tool_calls=False)
        assert calls == [ROME]


LEAST = {"hermes": 50}  # seeds; of other formats as many as it takes to see both functions


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "llama-3-tagged"])
def test_calls_that_are_required_are_made(name: str) -> None:
    """All of many, whatever the model would have written; one of them is as plain decoding's."""
    case = CASES[name]
    tools = [TOOLS[0], TOOLS[2]]
    is_one = {"parallel_tool_calls": False, "tools": tools, "temperature": 4.0}
    names = set()
    with running(random_model(Tags(case.template, case.tags)), num_slots=4) as server:
        for seed in range(50):
            if names == {"weather", "now"} and seed >= LEAST.get(name, 8):
                break
            words, calls, reason = answered(
                server, is_streamed=seed % 2 == 1, seed=seed, tool_choice="required", **is_one
            )
            assert (words, len(calls), reason) == ("", 1, "tool_calls")
            ((called, arguments),) = calls
            names.add(called)
            if called == "now":
                assert arguments == {}
            else:
                assert arguments["city"] in ("Rome", "Oslo")
                assert arguments["days"] in (1, 2, 3)
                assert type(arguments.get("is_exact", True)) is bool
        assert names == {"weather", "now"}
        choice = {"type": "function", "function": {"name": "now"}}
        for is_streamed in (False, True):
            found = answered(server, is_streamed=is_streamed, tool_choice=choice, **is_one)
            assert found == ("", [("now", {})], "tool_calls")
        many = {**is_one, "parallel_tool_calls": True, "tool_choice": "required"}
        found = [answered(server, is_streamed=False, seed=seed, **many) for seed in range(8)]
        assert all(calls for _, calls, _ in found)
        assert any(len(calls) > 1 for _, calls, _ in found) is case.is_many
        plain = {"extra_body": {"speculation": False}}
        again = answered(server, is_streamed=False, seed=3, **many, **plain)
        assert again == found[3]


QUICK = {"hermes", "llama-3", "qwen3-coder", "deepseek-3"}
IN_PARTS = {"hermes", "llama-3", "llama-3-tagged", "mistral-11", "qwen3-coder", "glm"}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=SLOW) for n in CASES])
def test_the_arguments_of_a_required_call_come_as_they_are_written(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece of text goes out alone, however late the server's loop is."""
    monkeypatch.setattr(output_collector, "joined", iter)
    case = CASES[name]
    tool = {"type": "function", "function": {"name": "put", "parameters": {
        "type": "object", "additionalProperties": False, "required": ["a", "b"],
        "properties": {"a": {"enum": ["abcdefg " * 5, "hijklmno" * 5]},
                       "b": {"type": "integer", "minimum": 1, "maximum": 3}}}}}  # fmt: skip
    fields: Any = {
        "model": MODEL, "messages": MESSAGES, "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": False, "max_tokens": 400, "seed": 3,
    }  # fmt: skip
    with running(random_model(Tags(case.template, case.tags)), num_slots=1) as server:
        server.service.settings = replace(server.service.settings, interval_s=0.0)
        client = client_of(server.url).chat.completions
        whole = client.create(**fields).choices[0].message.tool_calls[0].function
        parts = arguments_of(list(client.create(stream=True, **fields)))
        assert "".join(parts) == whole.arguments
        assert len(json.loads(whole.arguments)["a"]) >= 30
        assert (len(parts) > 1) is (name in IN_PARTS)
        for num_tokens in (5, 20, 35):
            cut = {**fields, "max_tokens": num_tokens}
            (choice,) = client.create(**cut).choices
            chunks = list(client.create(stream=True, **cut))
            assert chunks[-1].choices[0].finish_reason == choice.finish_reason == "length"
            shown = choice.message.tool_calls or []
            assert "".join(arguments_of(chunks)) == "".join(c.function.arguments for c in shown)
        response = client_of(server.url).responses.create(
            model=MODEL, input="hello", tools=[{"type": "function", **tool["function"]}],
            tool_choice="required", parallel_tool_calls=False, max_output_tokens=400, stream=True,
        )  # fmt: skip
        events = list(response)
        deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
        assert "".join(deltas) == done.arguments
        assert json.loads(done.arguments).keys() == {"a", "b"}
        assert (len(deltas) > 1) is (name in IN_PARTS)
        assert events[-1].response.output[-1].arguments == done.arguments


def arguments_of(chunks: list[Any]) -> list[str]:
    """The parts of a call's arguments in a stream."""
    deltas = [chunk.choices[0].delta for chunk in chunks]
    return [call.function.arguments for delta in deltas for call in delta.tool_calls or ()]


@given(st.sampled_from(sorted(IN_PARTS)), st.data())
def test_parts_of_a_call_are_the_same_however_it_was_cut(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    text = case.weather + case.between + case.note.replace("[CALL_ID]abcdefghi", "")

    def split(parts: list[str]) -> list[tuple[str | None, str]]:
        syntax = syntax_of(case.template)
        assert isinstance(syntax, TaggedText)
        assert syntax.calls is not None
        reader = ToolCalls(syntax.calls, TOOLS, is_certain=True)
        found: dict[str, tuple[str | None, str]] = {}
        for one in [f for part in parts for f in reader.push(part)] + [*reader.finish()]:
            assert isinstance(one, Fragment), "nothing is said"
            known, before = found.get(one.id, (one.name, ""))
            found[one.id] = (known, before + one.arguments)
        return list(found.values())

    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    whole = split([text])
    assert [(known, json.loads(arguments)) for known, arguments in whole] == [ROME, NOTE]
    assert split([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == whole
    assert split(list(text)) == whole


ODD_NUMBERS = ("1e999", "-1e999", "NaN", "-Infinity", "inf", "float('nan')")
ODD_ARGUMENTS = (
    "1e999", "[1, -1e999]", "(1e999,)", '{"a": [1e999]}', "1e999 - 1e999", "1e999j", "nan",
    "'\\ud800'", "b'a'", "{1}", "0x" + "f" * 5000,
)  # fmt: skip


@named
def test_arguments_are_json_or_no_call_is_made(name: str) -> None:
    """Python reads numbers as infinities that JSON lacks, and so may a client's parser."""
    case = CASES[name]
    syntax = syntax_of(case.template)
    for number in ODD_NUMBERS:
        text = re.sub(r"(days\D+)2", rf"\g<1>{number}", case.weather)
        assert number in text
        text += case.note if case.is_many and "[" in case.weather[:30] else ""
        reader = syntax.reader(TOOLS, "")
        assert reader is not None
        for found in [*reader.push(text), *reader.finish()]:
            if isinstance(found, Call):
                parse(found.arguments)
                assert isinstance(json.loads(found.arguments).get("days", 2), str | int)


@pytest.mark.parametrize("value", ODD_ARGUMENTS, ids=lambda value: value[:20])
def test_arguments_written_in_python_are_json_or_no_call_is_made(value: str) -> None:
    text = f"<function_calls>weather(days={value})</function_calls>"
    for found in ToolCalls(OLMO, TOOLS).push(text):
        if isinstance(found, Call):
            parse(found.arguments)
            found.arguments.encode()
        else:
            assert found == text


@pytest.mark.parametrize("written", ["NaN", "[1e999]", "no JSON", '{"a": 1'])
def test_arguments_written_as_a_text_are_json_or_no_call_is_made(written: str) -> None:
    call = json.dumps({"name": "weather", "arguments": written})
    text = f"<tool_call>{call}</tool_call>"
    assert [*ToolCalls(Hermes(), TOOLS).push(text)] == [text]
    (found,) = ToolCalls(Hermes(), TOOLS).push(text.replace(json.dumps(written), '"{}"'))
    assert isinstance(found, Call)
    assert found.arguments == "{}"


def test_arguments_that_no_json_can_be_written_of_are_none() -> None:
    """Those that a grammar let pass, for interfaces that send them as objects."""
    assert object_of('{"days": 1e999}') == {}
    assert object_of('{"days": NaN}') == {}
    assert object_of('{"days": 2}') == {"days": 2}


@pytest.mark.parametrize("name", ["qwen3-coder", "glm"])
def test_texts_between_tags_are_free(name: str) -> None:
    """A model that wants to write a note writes it as it is, under the grammar of the format."""
    case = CASES[name]
    tokenizer = Tags(case.template, case.tags)
    engine = willing_model(tokenizer, case.note, MESSAGES, tools=TOOLS)
    with running(engine) as server:
        found = answered(server, is_streamed=True, temperature=0, tool_choice="required")
    assert found == ("", [NOTE], "tool_calls")


@named
def test_calls_and_results_go_back_through_the_template(name: str) -> None:
    case = CASES[name]
    tokenizer = Tags(case.template, case.tags)
    engine = random_model(tokenizer)
    call = {"id": "abcdefghi", "type": "function",
            "function": {"name": "weather", "arguments": ROME_JSON}}  # fmt: skip
    messages = [
        *MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "sunny <tool_call>"},
    ]  # fmt: skip
    seen: list[list[int]] = []
    with running(engine) as server:
        made = engine.scheduled

        def task(tokens: list[int], *args: Any, **options: Any) -> Any:
            seen.append(list(tokens))
            return made(tokens, *args, **options)

        engine.scheduled = task  # type: ignore[method-assign]
        answered(server, is_streamed=False, messages=messages, max_tokens=2)
    text = b"".join(map(tokenizer.token_text, seen[0])).decode()
    assert "weather" in text
    assert text.endswith("tsunny <tool_call>a")
    if "arguments" in case.call and "items" not in case.call:
        assert ROME_JSON in text
    begun = tokenizer.controls.tokens.get("<tool_call>")
    assert seen[0].count(begun) == ("<tool_call>" in case.tags)  # the result's is text


def test_every_template_has_its_format() -> None:
    kinds: dict[str, Any] = {
        "hermes": Hermes, "qwen3-coder": type(QWEN_CODER), "llama-3": Llama,
        "mistral-11": MistralNamed, "granite-3": JsonList, "lfm2": type(LFM2),
    }  # fmt: skip
    for name, kind in kinds.items():
        syntax = syntax_of(CASES[name].template)
        assert isinstance(syntax, TaggedText)
        form = syntax.calls.form if isinstance(syntax.calls, OrUntagged) else syntax.calls
        assert isinstance(form, kind)
    same = {"glm": GLM, "qwen3-coder": QWEN_CODER, "deepseek-3": DEEPSEEK_3,
            "deepseek-3.1": DEEPSEEK_31}  # fmt: skip
    for name, form in same.items():
        syntax = syntax_of(CASES[name].template)
        assert isinstance(syntax, TaggedText)
        assert syntax.calls is form
    assert not syntax_of("{% for m in messages %}{{ m.content }}{% endfor %}").has_tools


@pytest.mark.parametrize(
    "name",
    [
        "hermes",
        pytest.param("mistral-7", marks=SLOW),
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("granite-3", "phi-4-mini")),
    ],
)
def test_an_object_without_tags_is_a_call_where_it_stands_alone(name: str) -> None:
    """Small models forget the tags."""
    rome = f'{{"name": "weather", "arguments": {ROME_JSON}}}'
    note = f'{{"arguments": {NOTE_JSON}, "name": "note"}}'
    texts: list[tuple[str, list[Any]]] = [
        (rome, [ROME]),
        (f"\n{rome}\n{note}", [ROME, NOTE]),
        (f"[{rome}, {note}]", [ROME, NOTE]),
        (f"So: {rome}", []),
        (rome.replace("weather", "weathers"), []),
        (rome.replace("arguments", "values"), []),
        (f'{{"id": 1, {rome[1:]}', []),
        (f'{rome[:-1]}, "id": 1}}', []),
        ('{"name": "weather"}', []),
        (rome[:-1], []),
        ('[{"name": 3}, 4', []),
    ]
    case = CASES[name]
    tokenizer = Tags(case.template, case.tags)
    for text, calls in texts:
        with running(willing_model(tokenizer, text, MESSAGES, tools=TOOLS)) as server:
            for is_streamed in (False, True):
                words, found, reason = answered(server, is_streamed=is_streamed, temperature=0)
                assert found == calls, text
                assert (words, reason) == (("", "tool_calls") if calls else (text, "stop"))
    with running(willing_model(tokenizer, rome, MESSAGES)) as server:
        assert answered(server, is_streamed=True, temperature=0, tools=[])[0] == rome


FENCED = """```json
{
  "name": "weather",
  "arguments": {
    "city": "Rome", "days": 2, "is_exact": true
  }
}
```"""
PACKAGE = FENCED.replace('"arguments"', '"version": "1.0.0",\n  "scripts"')


def assert_read(texts: list[tuple[str, str, list[Any]]]) -> None:
    """What a model of Hermes' format writes is these words and these calls, streamed and whole."""
    case = CASES["hermes"]
    tokenizer = Tags(case.template, case.tags)
    for text, words, calls in texts:
        with running(willing_model(tokenizer, text, MESSAGES, tools=TOOLS)) as server:
            for is_streamed in (False, True):
                said, found, reason = answered(server, is_streamed=is_streamed, temperature=0)
                assert (said, found) == (words, calls), text
                assert reason == ("tool_calls" if calls else "stop")


def test_a_call_in_a_fence_is_a_call() -> None:
    """As Qwen2.5 writes them."""
    note = f'{{"arguments": {NOTE_JSON}, "name": "note"}}'
    rome = f'{{"name": "weather", "arguments": {ROME_JSON}}}'
    texts: list[tuple[str, str, list[Any]]] = [
        (FENCED, "", [ROME]),
        (f"\n{FENCED}\n", "", [ROME]),
        (f"{FENCED}\n\n```\n{note}\n```", "", [ROME, NOTE]),
        (f"```tool_call\n[{rome}, {note}]\n```", "", [ROME, NOTE]),
        (f"I look it up:\n\n{FENCED}", "I look it up:\n", [ROME]),
        (f"{FENCED}\nIt rains.", "\nIt rains.", [ROME]),
        (f"```python\nf()\n```\n{FENCED}", "```python\nf()\n```", [ROME]),
        *((text, text, []) for text in (
            f"Write {FENCED}", FENCED.replace("weather", "weathers"), PACKAGE,
            f"As this:\n{PACKAGE}\nDone.", FENCED.replace("\n```", "\n# done\n```"),
            FENCED.replace('"name"', '"id": 1, "name"'), f"`{FENCED}`",
            "\n`` `\n\n```\n", "```json",
        )),
    ]  # fmt: skip
    assert_read(texts)


def test_doubled_braces_are_those_of_a_call() -> None:
    """Qwen2.5-Coder's template shows them in its instructions."""
    rome = f'{{{{"name": "weather", "arguments": {ROME_JSON}}}}}'
    texts: list[tuple[str, str, list[Any]]] = [
        (f"<tool_call>\n{rome}\n</tool_call>", "", [ROME]),
        (f"<tool_call>\n{rome[:-1]}\n</tool_call>", "", [ROME]),  # one is closed
        (rome, "", [ROME]),
        (f"```json\n{rome}\n```", "", [ROME]),
        (f"{rome[:-1]}, it rains.", ", it rains.", [ROME]),
        *((text, text, []) for text in (
            "{{ name }}", '{{"name": "weather"}}', "{" * 100, rome.replace("weather", "weathers"),
        )),
    ]  # fmt: skip
    assert_read(texts)


def test_text_is_held_back_only_while_it_may_become_a_call() -> None:
    def said_by(text: str, end: str) -> str:
        """What is said by the time that this end has come."""
        reader = ToolCalls(OrUntagged(Hermes()), TOOLS)
        begun = text[: text.index(end) + len(end)]
        return "".join(str(found) for letter in begun for found in reader.push(letter))

    assert said_by(PACKAGE, '"v').endswith('"name": "weather",\n  "v')
    assert said_by(f"Look:\n{PACKAGE}", '"v').endswith('"v')
    assert said_by("```python\nprint()", "\np") == "```python\np"
    assert said_by(f"Look:\n{FENCED}", '"days": 2') == "Look:"
    assert said_by("a\nb\n", "b\n") == "a\nb"


def test_functions_are_the_tools_of_old() -> None:
    case = CASES["hermes"]
    tokenizer = Tags(case.template, case.tags)
    functions = [tool["function"] for tool in TOOLS]
    fields: dict[str, Any] = {"model": MODEL, "functions": functions, "max_tokens": 300,
                              "temperature": 0, "seed": 1}  # fmt: skip
    with running(willing_model(tokenizer, case.weather, MESSAGES, tools=TOOLS)) as server:
        create = client_of(server.url).chat.completions.create
        (choice,) = create(messages=MESSAGES, **fields).choices
        assert choice.finish_reason == "function_call"
        assert choice.message.tool_calls is None
        call = choice.message.function_call
        assert (call.name, json.loads(call.arguments)) == ROME
        chunks = [c.choices[0] for c in create(messages=MESSAGES, stream=True, **fields)]
        told = [c.delta.function_call for c in chunks if c.delta.function_call]
        assert told[0].name == "weather"
        assert "".join(one.arguments for one in told) == call.arguments
        assert chunks[-1].finish_reason == "function_call"
        named = create(messages=MESSAGES, function_call={"name": "now"}, **fields).choices[0]
        assert named.message.function_call.name == "now"
    old = [*MESSAGES, {"role": "assistant", "content": None, "function_call": {
        "name": "weather", "arguments": ROME_JSON}},
        {"role": "function", "name": "weather", "content": "hot"}]  # fmt: skip
    new = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [{
        "type": "function", "function": {"name": "weather", "arguments": ROME[1]}}]},
        {"role": "tool", "name": "weather", "content": "hot"}]  # fmt: skip
    with running(willing_model(tokenizer, "Sun!", new, tools=TOOLS)) as server:
        create = client_of(server.url).chat.completions.create
        assert create(messages=old, **fields).choices[0].message.content == "Sun!"


SMOLLM = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}You are named SmolLM\n"
    "{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


@pytest.mark.slow
def test_smollm2_is_told_of_tools_in_its_messages() -> None:
    tokenizer = Tags(SMOLLM, ("<|im_start|>", "<|im_end|>"))
    text = f'<tool_call>[{{"name": "weather", "arguments": {ROME_JSON}}}]</tool_call>'
    shown = with_tools(MESSAGES, TOOLS)
    with running(willing_model(tokenizer, text, shown)) as server:
        for is_streamed in (False, True):
            words, calls, reason = answered(server, is_streamed=is_streamed, temperature=0)
            assert (words, calls, reason) == ("", [ROME], "tool_calls")
    with running(random_model(tokenizer)) as server:
        for seed in range(8):
            found = answered(server, is_streamed=False, seed=seed, temperature=2.0,
                             tool_choice="required", tools=[TOOLS[0]])  # fmt: skip
            assert all(name == "weather" and values["city"] in ("Rome", "Oslo")
                       for name, values in found[1])  # fmt: skip
            assert found[1]
    called = {"id": "1", "type": "function",
              "function": {"name": "weather", "arguments": ROME[1]}}  # fmt: skip
    system = {"role": "system", "content": "Be brief."}
    turns = [system, *MESSAGES, {"role": "assistant", "content": "", "tool_calls": [called]},
             {"role": "tool", "tool_call_id": "1", "content": "hot"}]  # fmt: skip
    told = with_tools(turns, TOOLS)
    assert [message["role"] for message in told[-3:]] == ["user", "assistant", "user"]
    assert told[-2]["content"] == text
    assert told[-1]["content"].endswith("hot")
    assert told[0]["content"].startswith("Be brief.\n\n")
    assert all(tool["function"]["name"] in told[0]["content"] for tool in TOOLS)
    assert with_tools(MESSAGES, []) == MESSAGES
    for number in (1, 2, 3):  # the model does again what the last example does
        last = with_tools(MESSAGES, (TOOLS * 2)[:number])[-len(MESSAGES) - 1]["content"]
        assert last.startswith("<tool_call>"), number
    for odd in ({"enum": 3}, {"enum": []}, {"type": [[1]]}, {"type": {}}, {"const": None}, 3, None):
        parameters = {"type": "object", "properties": {"x": odd}}
        function = {"name": "f", "description": {"a": 1}, "parameters": parameters}
        told = with_tools(MESSAGES, [{"type": "function", "function": function}])
        assert all(isinstance(message["content"], str) for message in told)


@pytest.mark.slow
def test_the_default_model_calls_tools() -> None:
    add = {"type": "function", "function": {
        "name": "add", "description": "Add two numbers.", "parameters": {
            "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"]}}}  # fmt: skip
    weather = {"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather of a city.", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}},
            "required": ["city"]}}}  # fmt: skip

    def said(server: Running, text: str, **fields: Any) -> tuple[str, list[Any], str]:
        messages = [{"role": "user", "content": text}]
        return answered(server, is_streamed=True, messages=messages, tools=[weather, add],
                        temperature=0, max_tokens=60, **fields)  # fmt: skip

    with LLM("smollm2", draft=None, context=1024) as llm, running(llm, num_slots=1) as server:
        assert said(server, "I need the weather of Oslo.")[1] == [("get_weather", {"city": "Oslo"})]
        assert said(server, "Hello!")[1:] == ([], "stop")
        for text in ("Hello!", "What is the weather in Paris?", "Add 3 and 4.5"):
            words, calls, reason = said(server, text, tool_choice="required")
            assert (words, reason) == ("", "tool_calls")
            assert {name for name, _ in calls} <= {"get_weather", "add"}


FORMATS: list[Format] = [
    Hermes(), QWEN_CODER, GLM, Llama(), MistralNamed(), DEEPSEEK_31, LFM2,
    JsonList(finish="<|/tool_call|>"), OrUntagged(Hermes()), OrUntagged(MistralList()),
]  # fmt: skip
PIECES = (
    "Let me", "\n", " ", ";", "<", "<tool_call>", "</tool_call>", '{"name": "add"}', "[", "]", "{",
    "}", "<function=f>", "</function>", "<parameter=a>", "1", "</parameter>", "<arg_key>", "k",
    "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "f[ARGS]", '{"a": "[TOOL_CALLS]"}',
    *DSK.values(), "<|tool_call_start|>", "f(a=1)", "<|tool_call_end|>", "<|tool_call|>",
    "<|/tool_call|>", "<|python_tag|>", "<|start|>", "<|channel|>analysis", "<|message|>",
    "<|channel|>commentary to=functions.f", "<|end|>", '{"name": "now", "arguments": {}}', "[{",
)  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3-coder", "lfm2"])
def test_definitions_that_each_argument_would_repeat_are_bounded(name: str) -> None:
    case, number = CASES[name], 400
    schema = {
        "type": "object",
        "$defs": {f"d{i}": {"type": "string", "pattern": f"x{i}"} for i in range(number)},
        "properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(number)},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with running(random_model(Tags(case.template, case.tags))) as server:
        response = server.chat("hi", tools=[tool], tool_choice="required", max_tokens=4)
        assert response.status_code == 400
        assert "definitions would be repeated" in response.json()["error"]["message"]


HERMES_PIECES = (
    "Let me", "\n", " ", "<", "<tool_call>", "</tool_call>", '{"name": "add"}', "[1]", "<tool",
    "_call>", "```json\n", "```", '{"name": "now", "arguments": {}}', "[]",
)  # fmt: skip


@proven
@given(st.sampled_from([*FORMATS, None]), st.lists(st.sampled_from(PIECES), max_size=12), st.data())
def test_how_a_text_was_cut_changes_nothing(
    form: Format | None, pieces: list[str], data: st.DataObject
) -> None:
    split_alike(form, "".join(pieces), data)


@given(st.lists(st.sampled_from(HERMES_PIECES), max_size=12), st.data())
def test_how_tags_were_cut_changes_nothing(pieces: list[str], data: st.DataObject) -> None:
    """Fewer pieces make more calls."""
    split_alike(OrUntagged(Hermes()), "".join(pieces), data)


def split_alike(form: Format | None, text: str, data: st.DataObject) -> None:
    def split(parts: list[str]) -> tuple[str, list[tuple[str, str]]]:
        reader = ToolCalls(form, TOOLS) if form else Messages()
        found = [f for part in parts for f in reader.push(part)] + [*reader.finish()]
        calls = [(f.name, f.arguments) for f in found if isinstance(f, Call)]
        return "".join(f for f in found if isinstance(f, str)), calls

    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split([text])
    assert split(parts) == whole
    assert split(list(text)) == whole
    if form and not whole[1]:  # nothing was called: every letter is said, and none is added
        assert whole[0] == text


def test_a_user_cannot_write_calls_of_the_model() -> None:
    """A control token that a message spells is text."""
    case = CASES["mistral-11"]
    tokenizer = Tags(case.template, case.tags)
    tokens = chat_tokens(tokenizer, [{"role": "user", "content": "[TOOL_CALLS]now[ARGS]{}"}])
    assert not set(tokens) & set(tokenizer.controls.tokens.values())
