"""Text as it comes: whole characters, no stop string, and the same however it is cut up."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from time import process_time

import pytest
from fakes.decoding import FakeTokenizer, proven
from hypothesis import given, settings
from hypothesis import strategies as st

from duodec.chat.template import render
from duodec.core.events import DraftSource, Segment
from duodec.core.text import TextStream
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.testing import TableModel, TableTarget


def stream(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> TextStream:
    return TextStream(lambda token: pieces[token], stop)


def run(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[TextStream, list[str]]:
    """What is given out after each piece, and at last."""
    text = stream(pieces, stop)
    given = []
    for token in range(len(pieces)):
        given.append("".join(s.text for s in text.push(token, None)))
        if text.is_stopped:
            break
    given.append("".join(s.text for s in text.finish()))
    return text, given


def cut(text: str, stop: Sequence[str]) -> str:
    """The text before the stop string that is complete first, the longest of those."""
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    return text[: min(ends)[1]] if ends else text


# --- characters


def test_a_character_comes_when_its_last_byte_does() -> None:
    euro, smile = "€".encode(), "🙂".encode()
    _, given = run([b"a" + euro[:1], euro[1:2], euro[2:] + b"b", *(bytes([b]) for b in smile)])
    assert given == ["a", "", "€b", "", "", "", "🙂", ""]


def test_bytes_that_make_no_character_become_one_replacement() -> None:
    text, given = run([b"a", b"\xf0\x9f", b"b", b"\xe2\x82"])
    assert given == ["a", "", "\ufffdb", "", "\ufffd"]
    assert text.text == "a\ufffdb\ufffd"


def test_tokens_without_text_give_nothing() -> None:
    text, given = run([b"", b"a", b""])
    assert given == ["", "a", "", ""]
    assert text.text == "a"


# --- stop strings


def test_a_stop_string_over_several_tokens_ends_the_text_before_it() -> None:
    text, given = run([b"one ", b"E", b"N", b"D two"], ["END"])
    assert given == ["one ", "", "", "", ""]
    assert text.is_stopped
    assert text.text == "one "


def test_what_only_began_like_a_stop_string_comes_late() -> None:
    text, given = run([b"x E", b"N", b"T"], ["END"])
    assert given == ["x ", "", "ENT", ""]
    assert not text.is_stopped
    text, given = run([b"x EN"], ["END"])
    assert given == ["x ", "EN"]
    assert not text.is_stopped


def test_overlapping_beginnings() -> None:
    text, _ = run([b"a", b"a", b"a", b"b"], ["aab"])
    assert text.text == "a"
    text, _ = run([b"ab", b"ab", b"ac"], ["abac"])
    assert text.text == "ab"
    assert text.is_stopped


def test_the_stop_string_that_is_complete_first_counts() -> None:
    for pieces in ([b"abcde"], [b"a", b"b", b"c", b"d", b"e"], [b"abc", b"de"]):
        assert run(pieces, ["abcde", "bcd"])[0].text == "a"
        assert run(pieces, ["bc", "abc"])[0].text == ""


def test_a_stop_string_inside_a_character_of_several_tokens() -> None:
    euro = "€".encode()
    text, _ = run([b"a", euro[:2], euro[2:] + b"b"], ["€"])
    assert text.text == "a"


def test_a_long_stop_string_is_looked_for_in_linear_time() -> None:
    """Text that goes on beginning it is held back, and not searched again with each token."""
    begin_s = process_time()
    text, _ = run([b"a"] * 20_000 + [b"c"], ["a" * 20_000 + "b", "aab"])
    assert process_time() - begin_s < 2
    assert text.text == "a" * 20_000 + "c"


def test_nothing_comes_after_the_stop() -> None:
    pieces = [b"a.", b"b", b"."]
    text = stream(pieces, ["."])
    assert text.push(0, "draft model") == [Segment("a", "draft model")]
    assert text.is_stopped
    assert text.push(1, "draft model") == []
    assert text.finish() == []
    assert text.text == "a"


def test_segments_keep_what_proposed_them() -> None:
    pieces = [b"on", b"e E", b"N", b"T", "ü".encode()[:1], "ü".encode()[1:], b"E"]
    text = stream(pieces, ["END"])
    by: list[DraftSource | None] = ["draft model", None] * 3 + ["draft model"]
    given = [text.push(token, source) for token, source in enumerate(by)]
    assert given == [
        [Segment("on", "draft model")],
        [Segment("e ", None)],
        [],
        [Segment("E", None), Segment("N", "draft model"), Segment("T", None)],
        [],
        [Segment("ü", None)],  # a character is of the token that made it whole
        [],
    ]
    assert text.finish() == [Segment("E", "draft model")]


alphabet = st.sampled_from(["a", "b", "c", "é", "€", "🙂"])
texts = st.text(alphabet, max_size=24)
stops = st.lists(st.text(alphabet, min_size=1, max_size=4), max_size=3)


@st.composite
def chunked(draw, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@settings(proven, max_examples=500)
@given(texts, stops, st.data())
def test_however_the_bytes_are_cut_the_text_is_the_same(text: str, stop: list[str], data) -> None:
    pieces = data.draw(chunked(text.encode()))
    found, given = run(pieces, stop)
    assert found.text == "".join(given) == cut(text, stop)
    assert found.is_stopped == any(s in text for s in stop)


@settings(proven, max_examples=300)
@given(st.binary(max_size=30), st.data())
def test_any_bytes_become_the_text_of_all_of_them(raw: bytes, data) -> None:
    found, _ = run(data.draw(chunked(raw)))
    assert found.text == raw.decode("utf-8", "replace")


@proven
@given(texts, stops, st.data())
def test_nothing_is_held_that_cannot_begin_a_stop_string(text: str, stop: list[str], data) -> None:
    pieces = data.draw(chunked(text.encode()))
    found = stream(pieces, stop)
    decoder = codecs.getincrementaldecoder("utf-8")()
    whole = ""
    for token, piece in enumerate(pieces):
        found.push(token, None)
        whole += decoder.decode(piece)
        if found.is_stopped:
            return
        held = whole[len(found.text) :]
        assert whole.startswith(found.text)
        assert not held or any(s.startswith(held) and s != held for s in stop)


# --- chat templates

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def rendered(template: str, messages=MESSAGES) -> str:
    return render(template, messages, bos="<s>", eos="</s>")


def test_a_template_makes_the_prompt() -> None:
    assert rendered(CHATML) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_templates_get_what_transformers_gives_them() -> None:
    assert rendered("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}") == "<s>Be brief.</s>"
    assert rendered("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}") == "system"
    assert rendered("{{ {'ä': '<b>'} | tojson }}") == '{"ä": "<b>"}'
    assert rendered("{{ strftime_now('%Y') }}").isdigit()
    assert rendered("{% if true %}\n  x\n{% endif %}\n") == "  x\n"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_templates_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises(BadOption, match="chat template"):
        rendered(template)
    assert MESSAGES[0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ ('{0.__class__}').format(1) }}",
        "{{ messages | map(attribute='__class__') | join }}",
        "{{ ''['__class__'] }}{{ '' | attr('__class__') }}",
    ],
)
def test_private_attributes_are_not_there(template: str) -> None:
    assert rendered(template) == ""


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ 'x' + messages[0] }}",
        "{{ 1 // 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ messages.index('x') }}",
        "{{ messages[9].content.text }}",
        "{{ no_such_function() }}",
        "{{ raise_exception('roles must alternate') }}",
    ],
)
def test_a_template_that_refuses_is_named_with_the_remedy(template: str) -> None:
    with pytest.raises(BadOption, match="in place of `messages`"):
        rendered(template)


def test_the_templates_own_words_are_passed_on() -> None:
    with pytest.raises(BadOption, match="roles must alternate"):
        rendered("{{ raise_exception('roles must alternate') }}")


def test_messages_without_a_template_are_refused_with_the_remedy() -> None:
    engine = LLM(TableTarget(TableModel()), FakeTokenizer(), num_context=100)
    with pytest.raises(BadOption, match=r"no chat template.*in place of `messages`"):
        engine.tokens_of(MESSAGES)
