"""What callers do with an LLM: after it is closed, from several threads, with plain values."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.decoding import LETTERS, Letters

import duodec
from duodec import LLM, Completion, Delta, Event, Grammar, SamplingParams
from duodec.errors import BadOption, ModelNotFound
from duodec.loading.config import EngineConfig
from duodec.methods import Method
from duodec.testing import InlineDrafter, TableModel, TableTarget

TABLE = TableModel(num_vocab=len(LETTERS) + 1, seed=7)
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=40)
MESSAGE = {"role": "user", "content": "hello"}
PART = {"type": "text", "text": "hel"}


def said(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


USES: dict[str, Callable[[LLM], object]] = {
    "generate": lambda model: model.generate("hello", PARAMS),
    "chat": lambda model: model.chat([MESSAGE], PARAMS),
    "stream": lambda model: list(model.stream("hello", PARAMS)),
    "tokens_of": lambda model: model.tokens_of("hello"),
}


def llm(num_slots: int = 1) -> LLM:
    drafter = InlineDrafter(replace(TABLE, noise=0.2).load())
    return LLM(TableTarget(TABLE), Letters(), 200, drafter, num_slots=num_slots)


@pytest.mark.parametrize("use", USES)
def test_a_closed_one_says_so(use: str) -> None:
    model = llm()
    USES[use](model)
    model.close()
    model.close()
    with pytest.raises(BadOption, match="this LLM is closed; load it again"):
        USES[use](model)


def test_a_stream_ends_with_an_error_when_its_model_is_closed() -> None:
    model = llm()
    events = model.stream("hello", PARAMS)
    next(events), next(events)
    model.close()
    with pytest.raises(BadOption, match="is closed"):
        list(events)
    unread = llm()
    next(unread.stream("hello", PARAMS))
    unread.close()


def texts(events: Any) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [1, 3])
def test_threads_take_turns_and_each_gets_its_own_text(num_slots: int) -> None:
    """On tables a race shows as a wrong text or an error; on llama.cpp it was a crash."""
    prompts = [f"{word} {number}" for number in range(3) for word in ("hello", "again", "more")]
    alone = [llm().generate(prompt, PARAMS)[0].text for prompt in prompts]
    model = llm(num_slots)

    def whole(prompt: str) -> str:
        return model.generate(prompt, PARAMS)[0].text

    def streamed(prompt: str) -> str:
        return texts(model.stream(prompt, PARAMS))

    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            found = list(pool.map(whole, prompts)), list(pool.map(streamed, prompts))
            both = [pool.submit(use, p) for p in prompts for use in (whole, streamed)]
            assert found == (alone, alone)
            assert [one.result() for one in both] == [t for text in alone for t in (text, text)]
    assert not model.scheduler.has_work


def test_one_thread_computes_at_a_time() -> None:
    num_inside, most = 0, 0

    class Watched(TableTarget):
        def score(self, queries: Any) -> Any:
            nonlocal num_inside, most
            num_inside += 1
            most = max(most, num_inside)
            for _ in range(200):  # others have the time to come in
                pass
            try:
                return super().score(queries)
            finally:
                num_inside -= 1

    model = LLM(Watched(TABLE), Letters(), 200)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda prompt: model.generate(prompt, PARAMS), ["hello"] * 12))
    assert most == 1


def test_plain_values_are_understood() -> None:
    model = llm()
    plain = model.generate("hello", PARAMS)[0].text
    values = {"temperature": 0.8, "seed": 3, "max_tokens": 40}
    assert model.generate("hello", values)[0].text == plain
    assert model.generate(["hello", "again"], [values, values])[0].text == plain
    assert texts(model.stream("hello", values)) == plain
    said = model.chat([MESSAGE], values).text
    assert model.chat("hello", values).text == model.chat(MESSAGE, values).text == said
    cut = model.generate("hello", {**values, "stop": plain[5:8]})[0]
    assert (cut.text, cut.finish_reason) == (plain[: plain.find(plain[5:8])], "stop")


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda m: m.generate("hello", {"max_token": 3}), "has no 'max_token'; did you mean max_"),
        (lambda m: m.generate("hello", {"temperature": "hot"}), "temperature is 'hot'; write a nu"),
        (lambda m: m.generate("hello", "greedy"), "params is 'greedy'; give SamplingParams"),
        (lambda m: m.generate("hello", 3), "params is 3; give SamplingParams"),
        (lambda m: m.generate(5), "the prompt is 5; give a text"),
        (lambda m: m.generate(None), "the prompt is None; give a text"),
        (lambda m: m.chat([{"role": "usr", "content": "x"}]), "'usr'; did you mean user?"),
        (lambda m: m.chat([{"content": "x"}]), "message 0 has no role; use system"),
        (lambda m: m.chat([MESSAGE, {"role": "assistant"}]), "message 1 has no content"),
        (lambda m: LLM.load("smollm2", thread=1), "has no 'thread'; did you mean threads?"),
        (lambda m: m.stream("hello", {"sed": 1}), "has no 'sed'; did you mean seed?"),
        (lambda m: LLM.load(5), "target is 5; give a name or a path"),
        (lambda m: LLM.load(b"a.gguf"), "target is b'a.gguf'; give a name or a path"),
        (lambda m: LLM.load(None), "target is None; give a name or a path"),
        (lambda m: LLM.load("smollm2", 5), "draft is 5; give a name or a path"),
        (lambda m: LLM(5), "target is 5; give a name or a path"),
        (lambda m: LLM(None), "target is None; give a name or a path"),
        (lambda m: LLM.load("smollm2", device=5), "device is 5; write a text"),
        (lambda m: LLM.load("smollm2", dtype=None), "dtype is None; write a text"),
        (lambda m: m.generate(np.zeros((1, 2, 3), int)), "array([0, 0, 0]) among its items"),
        (lambda m: m.generate("hello", method=5), "method is 5; give a name, such as 'lookup'"),
        (lambda m: m.generate("hello", method=0), "method is 0; give a name, such as 'lookup'"),
        (lambda m: m.generate("hello", method=""), "unknown method ''"),
        (lambda m: m.stream("hello", method=Method), "duodec.methods.method.Method'>; give a name"),
        (lambda m: m.generate(b"hi"), "the prompt is b'hi', which are bytes; decode them"),
        (lambda m: m.generate(["hello", bytearray(b"hi")]), "which are bytes; decode them"),
        (lambda m: m.stream(b"hi"), "the prompt is b'hi', which are bytes; decode them"),
        (lambda m: m.encode(5), "the prompt is 5; give a text"),
        (lambda m: m.generate(["hello", 5.5]), "the prompt is 5.5; give a text"),
        (lambda m: m.decode("x"), "tokens is 'x'; give a list of tokens"),
        (lambda m: m.decode(b"x"), "tokens is b'x'; give a list of tokens"),
        (lambda m: m.decode(5), "tokens is 5; give a list of tokens"),
        (lambda m: m.decode([MESSAGE]), "give a list of tokens"),
        (lambda m: m.stream("hello", choice=-1), "choice is -1; use 0 or more"),
        (lambda m: m.chat("x", tools=[5]), "tools[0] names no function; send {type, function}"),
        (lambda m: m.chat("x", tools=[{"name": "f"}]), "tools[0] names no function; send {type,"),
        (lambda m: m.chat("x", tools=5), "tools is 5; give a list of {type, function}"),
        (lambda m: m.chat("x", tools="ab"), "tools is 'ab'; give a list of {type, function}"),
        (lambda m: m.chat([said(None)]), "messages[0].content is no text; send a string"),
        (lambda m: m.chat([MESSAGE, said(5)]), "messages[1].content is no text; send a string"),
        (lambda m: m.generate([said({})]), "messages[0].content is no text; send a string"),
        (lambda m: m.chat([said([PART, {"type": "image_url"}])]), "has a part of type 'image_url'"),
    ],
)
def test_what_is_misspelled_is_named_with_the_remedy(
    use: Callable[[LLM], object], words: str
) -> None:
    with pytest.raises(BadOption, match=re.escape(words)):
        use(llm())


def test_rows_of_an_array_are_prompts() -> None:
    model = llm()
    rows = np.array([model.encode("hello"), model.encode("adieu")])
    found = model.generate(rows, PARAMS)
    assert [one.text for one in found] == [model.generate(r, PARAMS)[0].text for r in rows]
    assert found[0].text != found[1].text


def test_parts_of_a_message_are_one_text() -> None:
    model = llm()
    parts = [PART, {"type": "input_text", "text": "lo"}]
    assert model.encode([said(parts)]) == model.encode([said(tuple(parts))])
    assert model.encode([said(parts)]) == model.encode([MESSAGE])
    assert model.chat(said(parts), PARAMS).text == model.chat("hello", PARAMS).text


def test_a_call_of_tools_needs_no_text() -> None:
    model = llm()
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    wanted = model.encode([MESSAGE, {**call, "content": ""}])
    assert model.encode([MESSAGE, {**call, "content": None}]) == wanted
    assert model.encode([MESSAGE, call]) == wanted


def test_a_path_names_a_model() -> None:
    folder = Path("no", "such")
    config = EngineConfig(target=folder / "a.gguf", draft=folder / "b.gguf", heads=folder / "c")  # type: ignore[arg-type]
    assert config.target == str(folder / "a.gguf")
    assert (config.draft, config.heads) == (str(folder / "b.gguf"), str(folder / "c"))
    for load in (LLM, LLM.load):
        with pytest.raises(ModelNotFound, match=r"a\.gguf"):
            load(folder / "a.gguf", folder / "b.gguf")


def test_what_is_printed_is_short() -> None:
    model = llm()
    assert repr(model) == "<LLM target=TableTarget drafter=InlineDrafter slots=1>"
    assert "drafter=None" in repr(LLM(TableTarget(TABLE), Letters(), 200))
    params = replace(PARAMS, max_tokens=150, logprobs=2, prompt_logprobs=2)
    (found,) = model.generate("hello", params, n=3)
    *_, last = model.stream("hello", params)
    assert len(found.tokens) > 20
    for one in (found, last):
        assert repr(found.text) in repr(one)
        assert len(repr(one)) < 400 + len(found.text)


def test_the_version_is_the_packages() -> None:
    assert re.match(r"\d+\.\d+\.\d+", duodec.__version__)


def test_keywords_are_sampling_parameters() -> None:
    model, values = llm(), {"temperature": 0.8, "seed": 3, "max_tokens": 40}
    plain = model.generate("hello", PARAMS)[0]
    assert model.generate("hello", **values)[0].text == plain.text
    assert model.generate("hello", {**values, "max_tokens": 3}, max_tokens=40)[0].text == plain.text
    assert model.generate("hello", replace(PARAMS, seed=9), seed=3)[0].text == plain.text
    each = model.generate(["hello", "hello"], [{"seed": 3}, {"seed": 4}], temperature=0.8,
                          max_tokens=40)  # fmt: skip
    assert each[0].text == plain.text != each[1].text
    assert texts(model.stream("hello", **values)) == plain.text
    assert model.chat("hello", **values).text == model.chat("hello", values).text
    assert asyncio.run(async_texts(model.astream("hello", **values))) == plain.text


async def async_texts(events: AsyncIterator[Event]) -> str:
    return "".join([event.text async for event in events if isinstance(event, Delta)])


@pytest.mark.parametrize("num_slots", [1, 3])
def test_several_completions_of_a_prompt_are_its_choices(num_slots: int) -> None:
    model = llm(num_slots)
    found = model.generate(["hello", "again"], PARAMS, n=3)
    for prompt, completion in zip(["hello", "again"], found, strict=True):
        assert completion.outputs[0] is completion
        alone = [texts(model.stream(prompt, PARAMS, choice=i)) for i in range(3)]
        assert [one.text for one in completion.outputs] == alone
        assert len(set(alone)) > 1
    unseeded = model.generate("hello", temperature=1.0, n=2)[0]
    assert unseeded.outputs[0].seed == unseeded.outputs[1].seed
    (one,) = model.generate("hello", PARAMS)
    assert one.outputs == (one,)


def test_the_asynchronous_twin_gives_the_same() -> None:
    model = llm(2)
    plain = model.generate(["hello", "again"], PARAMS, n=2)

    async def both() -> list[list[Completion]]:
        own = model.agenerate(["hello", "again"], PARAMS, n=2)
        return await asyncio.gather(own, model.agenerate("hello", PARAMS))

    several, single = asyncio.run(both())
    assert [[o.text for o in one.outputs] for one in several] == [
        [o.text for o in one.outputs] for one in plain
    ]
    assert single[0].text == plain[0].text
    assert asyncio.run(model.agenerate([])) == []


def test_an_asynchronous_request_that_is_cancelled_frees_its_slot() -> None:
    model = llm()

    async def cut() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(model.agenerate("hello", max_tokens=190, temperature=1), 1e-3)

    asyncio.run(cut())
    assert not model.scheduler.has_work
    assert model.generate("hello", PARAMS)[0].text


def test_no_prompts_have_no_completions() -> None:
    assert llm().generate([]) == llm().generate(()) == llm().generate(np.array([])) == []


def test_events_have_texts() -> None:
    started, *deltas, last = llm().stream("hello", PARAMS)
    assert started.text == ""
    assert "".join(event.text for event in deltas) == last.text


def test_texts_are_encoded_and_decoded() -> None:
    model = llm()
    assert model.encode("hello") == model.tokens_of("hello")
    assert model.decode(model.encode("hello")) == "hello"
    assert model.encode([MESSAGE]) == model.tokens_of([MESSAGE])
    assert model.decode(np.array(model.encode("hello"))) == "hello"
    assert model.decode([]) == ""
    with pytest.raises(BadOption, match="token 99 is outside"):
        model.decode([99])


def test_a_schema_may_be_a_dictionary() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    assert Grammar("json_schema", schema).source == text
    assert SamplingParams(grammar=schema).grammar == Grammar("json_schema", text)
    with pytest.raises(BadOption, match="grammar is 'x'; give a Grammar"):
        SamplingParams(grammar="x")
    with pytest.raises(BadOption, match="kind is 'json'; choose from: json_schema, regex, lark"):
        Grammar("json", "{}")
    with pytest.raises(BadOption, match="source is 3; give a text"):
        Grammar("regex", 3)
    with pytest.raises(BadOption, match="is no JSON"):
        Grammar("json_schema", {"a": object()})


def test_a_name_loads_a_model() -> None:
    with LLM("smollm2-draft", draft=None, context=256) as model:
        assert model.loaded.num_context == 256
        assert repr(model) == "<LLM target=LlamaTarget drafter=None slots=1>"
        assert model.generate("Once", max_tokens=2)[0].tokens
    with pytest.raises(ModelNotFound):
        LLM("no-such-model")
    with pytest.raises(BadOption, match="has no 'thread'; did you mean threads"):
        LLM("smollm2", thread=1)


def test_the_package_lists_its_names() -> None:
    assert {*duodec.__all__, "__version__"} <= set(dir(duodec))
    names: dict[str, object] = {}
    exec("from duodec import *", names)
    assert set(duodec.__all__) <= set(names)
