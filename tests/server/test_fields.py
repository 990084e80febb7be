"""Nothing that a client asks for is ignored in silence: it is done, or refused by its name."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakes import ROOT
from fakes.decoding import Letters
from fakes.server import Running, engine_on_tables, running
from fakes.tags import Tags, random_model

from duodec.backends.grammar.llguidance import Masks
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.server.api.fields import validated
from duodec.server.api.formats.gbnf import in_lark
from duodec.server.api.openai.completion_bodies import ChatBody

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}a"
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400},
    "/v1/completions": {"prompt": "hi", "max_tokens": 400},
    "/v1/responses": {"input": "hi", "max_output_tokens": 400},
}
COMPLETIONS = ["/v1/chat/completions", "/v1/completions"]
# each was ignored once
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"min_tokens": 500}, None),
    ({"min_tokens": 5, "stop": "x"}, None),
    ({"min_tokens": 5, "guided_regex": "a"}, None),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"truncation_side": "left"}, "truncation_side"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"beam_width": 4}, "beam_width"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"functions": [{"name": "f"}], "tools": [{"function": {"name": "f"}}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"mirostat": 2}, "mirostat"),
    ({"mirostat": False}, "mirostat"),
    ({"dry_multiplier": 0.8}, "dry_multiplier"),
    ({"chat_template": "x"}, "chat_template"),
    ({"audio": {}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"response_format": {"type": "json_object", "strict": True}}, "response_format.strict"),
    ({"speculation": {"metod": "ar"}}, "speculation.metod"),
    ({"temprature": 1}, "temprature"),
    ({"": 1}, ""),
    ({"grammar": "root ::= x"}, "grammar"),
    ({"grammar": 'root ::= "a'}, "grammar"),
    ({"grammar": "nonsense"}, None),
    ({"guided_grammar": "root ::= ("}, "guided_grammar"),
    ({"structured_outputs": {"grammar": 'ro ::= "a"'}}, "structured_outputs.grammar"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": {"type": "frob"}}, None),
    ({"guided_regex": "("}, None),
    ({"guided_choice": []}, "guided_choice"),
    ({"json_schema": {}, "grammar": 'root ::= "a"'}, "grammar"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format"),
    ({"ignore_eos": True, "guided_regex": "a"}, "ignore_eos"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"return_token_ids": True, "stream": True}, "return_token_ids"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {}, "stream": False}, "stream_options"),
    ({"tool_choice": "required"}, "tool_choice"),  # and no tools
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(random_model(Tags(TEMPLATE))) as server:
        yield server


def text_of(server: Running, path: str, **fields: Any) -> str:
    """Of a completion that came to its end."""
    body = {**PATHS[path], "temperature": 0.8, "seed": 1, **fields}
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_served_is_refused(
    server: Running, path: str, fields: dict[str, Any], param: str | None
) -> None:
    response = server.post(path, {**PATHS[path], **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert "\n" not in error["message"]
    if param is not None and path in COMPLETIONS:
        assert error["param"] == param
        assert param in error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_what_clients_send_by_habit_is_taken(server: Running, path: str) -> None:
    fields = {
        "user": "me", "service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "x",
        "mirostat": 0, "dry_multiplier": 0.0, "typical_p": 1, "use_beam_search": False,
        "min_tokens": 0, "skip_special_tokens": True, "grammar": None, "unheard_of": None,
    }  # fmt: skip
    plain, own = (
        server.post(path, {**PATHS[path], "seed": 1, **more}).json() for more in ({}, fields)
    )
    key = "output" if path == "/v1/responses" else "choices"
    for found in (plain, own):
        for item in found["output"] if key == "output" else []:
            item["id"] = ""
    assert own[key] == plain[key]


SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
          "required": ["city"], "additionalProperties": False}  # fmt: skip
RULES = 'root ::= "<" list ">"\nlist ::= [a-c] | list "," [a-c]{2}\n'
PATTERN = "<[a-c](,[a-c]{2})*>"


@pytest.mark.parametrize("path", COMPLETIONS)
@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": RULES},
        {"guided_grammar": RULES},
        {"structured_outputs": {"grammar": RULES}},
        {"structured_outputs": {"grammar": 'start: "<" /[a-c]/ ("," /[a-c]{2}/)* ">"'}},
        {"guided_regex": PATTERN},
    ],
)
def test_a_grammar_is_kept(server: Running, path: str, fields: dict[str, Any]) -> None:
    for seed in range(3):
        text = text_of(server, path, seed=seed, **fields)
        assert re.fullmatch(PATTERN, text)
        assert text == text_of(server, path, seed=seed, speculation=False, **fields)


@pytest.mark.parametrize("path", COMPLETIONS)
@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_a_schema_is_kept(server: Running, path: str, fields: dict[str, Any]) -> None:
    assert json.loads(text_of(server, path, **fields))["city"] in ("Rome", "Oslo")
    assert text_of(server, path, guided_choice=["yes", "no"]) in ("yes", "no")


@pytest.mark.parametrize("path", COMPLETIONS)
def test_ends_are_ignored_added_and_told(path: str) -> None:
    with running(engine_on_tables(tokenizer=Letters(ends=True))) as server:
        body = {**PATHS[path], "seed": 2, "temperature": 1.5, "max_tokens": 60}
        plain = server.post(path, body).json()
        assert plain["choices"][0]["finish_reason"] == "stop"
        endless = server.post(path, {**body, "ignore_eos": True}).json()
        assert endless["choices"][0]["finish_reason"] == "length"
        assert endless["usage"]["completion_tokens"] == 60
        told = server.post(
            path, {**body, "ignore_eos": True, "return_token_ids": True, "seed": 2}
        ).json()
        choice = told["choices"][0]
        prompt = (told if "message" in choice else choice)["prompt_token_ids"]
        assert len(prompt) == told["usage"]["prompt_tokens"]
        tokens = choice["token_ids"]
        assert len(tokens) == 60
        end = tokens[7]
        ended = server.post(
            path, {**body, "ignore_eos": True, "return_token_ids": True, "stop_token_ids": [end]}
        ).json()["choices"][0]
        at = tokens.index(end)
        assert ended["finish_reason"] == "stop"
        assert ended["token_ids"] == tokens[: at + 1]
        text = ended["message"]["content"] if "message" in ended else ended["text"]
        assert len(text) == at


@pytest.mark.parametrize("path", COMPLETIONS)
def test_a_completion_has_the_tokens_that_it_must_have(path: str) -> None:
    """Those before its end are unchanged, and after them it ends where the model ends it."""
    with running(engine_on_tables(tokenizer=Letters(ends=True))) as server:
        body = {**PATHS[path], "seed": 2, "temperature": 1.5, "max_tokens": 60,
                "return_token_ids": True}  # fmt: skip

        def tokens(**fields: Any) -> list[int]:
            (choice,) = server.post(path, {**body, **fields}).json()["choices"]
            found: list[int] = choice["token_ids"]
            return found

        plain = tokens()
        assert len(plain) < 50
        for least in (len(plain), 50, 60):
            longer = tokens(min_tokens=least)
            assert len(longer) >= least
            assert longer[: len(plain) - 1] == plain[:-1]
            assert tokens(min_tokens=least, speculation=False) == longer
        assert tokens(min_tokens=len(plain) - 1) == plain
        end = plain[3]
        assert tokens(min_tokens=3, stop_token_ids=[end]) == plain[: plain.index(end, 3) + 1]


@pytest.mark.parametrize("path", COMPLETIONS)
def test_every_chunk_says_what_it_cost_so_far(server: Running, path: str) -> None:
    body = {**PATHS[path], "stream": True, "seed": 1, "max_tokens": 40, "ignore_eos": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events_of(server.post(path, {**body, "stream_options": options}).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == 40
    (prompt,) = {chunk["usage"]["prompt_tokens"] for chunk in chunks}
    assert all(chunk["usage"]["total_tokens"] == n + prompt
               for n, chunk in zip(counts, chunks, strict=True))  # fmt: skip
    assert chunks[-1]["choices"] == []
    del options["include_usage"]
    fewer = events_of(server.post(path, {**body, "stream_options": options}).text)
    assert not any(chunk.get("usage") for chunk in fewer), "as in vLLM"


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"reasoning": {"effort": "low", "max_tokens": 100}}, "low"),
        ({"reasoning": {"enabled": False}}, "none"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "medium"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "auto"}}, None),
        ({"enable_thinking": True}, "medium"),
        ({"enable_thinking": False}, "none"),
        ({"enable_thinking": False, "reasoning_effort": "high", "verbosity": "low"}, "high"),
    ],
)
def test_reasoning_is_switched_by_any_of_its_names(
    fields: dict[str, Any], effort: str | None
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert validated(ChatBody, {"messages": messages, **fields}).effort == effort


class Bytes:
    """A vocabulary of all bytes and an end."""

    num_vocab = 257

    def token_text(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b"<end>"

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def is_end(self, token: int) -> bool:
        return token == 256


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("rules", "matched", "others"),
    [
        (JSON, ['{"a": [1, -2.5e3, "x\\u00e9é", true], "b": {}}', "{}"],
         ["[1]", '{"a": 01}', '{"a": tru}', '{a: 1}']),
        ('root ::= ("true" | [a-z])+', ["true", "truetxtr", "t"], ["", "T"]),
        ('root ::= [a-z]+ "b" [0-9]?', ["aab1", "bb"], ["a1", "b"]),
        ('root ::= "a"{2} . [^\\]\\-x]{1,}', ["aa\néz", "aaab"], ["aa", "aab-", "ab"]),
        ("root ::= x-1 | Other\nx-1 ::= \"\"\nOther ::= \"\\u00e9\\x41\\t\"  # ok\n",
         ["", "éA\t"], ["A"]),
        ('root ::= e\ne ::= e "+" e | [0-9] | "(" e ")"', ["1+(2+3)", "7"], ["1+", "()"]),
        ('root ::=\n  "a" |\n  "b"\n', ["a", "b"], ["ab"]),
    ],
)  # fmt: skip
def test_rules_match_what_llama_cpp_says(rules: str, matched: list[str], others: list[str]) -> None:
    masks = Masks(Bytes())

    def matches(text: str) -> bool:
        mask = masks.mask(Grammar("lark", in_lark(rules)))
        data = [*text.encode(), 256]
        beginnings = (mask.allowed(np.array(data[:i], dtype=np.int32)) for i in range(len(data)))
        return all(
            one is not None and one[token] for one, token in zip(beginnings, data, strict=True)
        )

    assert all(map(matches, matched))
    assert not any(map(matches, others))


@pytest.mark.parametrize(
    "rules",
    ["", "root", "root := x", "root ::= y", 'root ::= "a', 'root ::= "\\q"', "root ::= [",
     "root ::= []", "root ::= [z-a]",
     'root ::= "a"{3,2}', 'root ::= "a"{9999}', "root ::= <[12]>", "root ::= ((",
     'root ::= "\\uD800"', 'root ::= "\\UFFFFFFFF"', "root ::= " + "(" * 5000, "x ::= root",
     'root ::= "a" ; "b"', "root ::= \0x\0", 'root ::= "\0x\0"'],
)  # fmt: skip
def test_what_are_no_rules_is_refused_with_a_reason(rules: str) -> None:
    with pytest.raises((ValueError, BadOption)) as refused:
        Masks(Bytes()).mask(Grammar("lark", in_lark(rules)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_operator_chooses_the_sampling_of_who_names_none(path: str) -> None:
    def tokens(server: Running, **fields: Any) -> str:
        body = {**PATHS[path], "max_tokens": 12, "seed": 7, "ignore_eos": True, **fields}
        response = server.post(path, body)
        assert response.status_code == 200, response.text
        return json.dumps(response.json()["choices"])

    engine = random_model(Tags(TEMPLATE))
    with running(engine) as server:
        greedy, sampled = tokens(server), tokens(server, temperature=1.5)
    with running(engine, sampling=SamplingParams(temperature=1.5)) as hot:
        assert tokens(hot) == tokens(hot, temperature=None) == sampled
        assert tokens(hot, temperature=0) == greedy != sampled
        assert hot.post("/tokenize", {"content": "a"}).status_code == 200


def test_the_docs_list_every_field() -> None:
    spec = importlib.util.spec_from_file_location("table", ROOT / "scripts" / "fields_table.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "server.md").read_text("utf-8")
    assert module.page() == written, "run: python scripts/fields_table.py"
    assert "| `temperature` | yes | yes | yes | yes |" in written
