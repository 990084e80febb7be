"""Bodies of requests with anything in any field, as strategies of Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from duodec.methods.registry import METHODS

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([0, 1, -1, 1 << 63, 1 << 80, 1e308]),
    st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=30),
    st.sampled_from(["", "auto", "none", "\x00", "\ud83d\ude00", "assistant", "<|im_end|>"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What a client means, or anything at all."""
    return st.integers(0, 9).flatmap(lambda n: values if n == 0 else good)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with a few of these fields, each of which may be wrong."""
    names = st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True)
    return names.flatmap(lambda own: st.fixed_dictionaries({n: mostly(fields[n]) for n in own}))


words = st.text(max_size=40)
parts = st.lists(some(type=st.sampled_from(["text", "image_url"]), text=words), max_size=3)
calls = st.lists(
    some(id=words, type=st.just("function"), function=some(name=words, arguments=words)), max_size=2
)
messages = st.lists(
    some(
        role=st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]),
        content=st.one_of(words, parts, st.none()), name=words, tool_calls=calls,
        tool_call_id=words,
    ),
    max_size=4,
)  # fmt: skip
schemas = some(
    type=st.sampled_from(["object", "array", "string", "integer", "frob", "null"]),
    properties=st.dictionaries(words, st.just({"type": "integer"}), max_size=3),
    required=st.lists(words, max_size=2), enum=st.lists(scalars, max_size=3),
    items=st.just({"type": "string"}), pattern=st.sampled_from(["a+", "(", "[0-9]{3}", "^x$"]),
)  # fmt: skip
tools = st.lists(
    some(
        type=st.just("function"), function=some(name=words, description=words, parameters=schemas)
    ),
    max_size=3,
)
formats = some(
    type=st.sampled_from(["text", "json_object", "json_schema", "regex", "xml"]),
    json_schema=some(name=words, schema=schemas, strict=st.booleans()), regex=words,
)  # fmt: skip
stops = st.one_of(words, st.lists(words, max_size=4))
common: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "stream_options": some(include_usage=st.booleans()),
    "n": st.integers(-1, 5),
    "stop": stops,
    "temperature": st.floats(-1, 3),
    "top_p": st.floats(-0.5, 1.5),
    "top_k": st.integers(-2, 50),
    "min_p": st.floats(-0.5, 1.5),
    "presence_penalty": st.floats(-3, 3),
    "frequency_penalty": st.floats(-3, 3),
    "repetition_penalty": st.floats(-1, 3),
    "logit_bias": st.dictionaries(
        st.from_regex(r"[0-9]{1,6}", fullmatch=True), st.floats(-120, 120), max_size=3
    ),
    "seed": st.integers(-2, 1 << 65),
    "speculation": st.one_of(
        st.booleans(),
        some(method=st.sampled_from([*METHODS, "sps:4", "magic"]), max_draft=st.integers(-1, 100),
             show_drafted=st.booleans()),
    ),
    "response_format": formats,
    "timings_per_token": st.booleans(),
    "user": words,
}  # fmt: skip
chats = some(
    **common, max_completion_tokens=st.integers(-1, 6), logprobs=st.booleans(),
    top_logprobs=st.integers(-1, 25), tools=tools,
    tool_choice=st.one_of(st.sampled_from(["auto", "none", "required"]),
                          some(type=st.just("function"), function=some(name=words))),
)  # fmt: skip
completions = some(
    **common, echo=st.booleans(), logprobs=st.integers(-1, 25), suffix=words,
    best_of=st.integers(0, 3),
)  # fmt: skip
prompts = st.one_of(
    words, st.lists(words, max_size=3), st.lists(st.integers(-1, 60), max_size=6),
    st.lists(st.lists(st.integers(0, 20), max_size=3), max_size=3),
)  # fmt: skip
items = st.lists(
    some(
        type=st.sampled_from(["message", "reasoning", "function_call", "function_call_output"]),
        role=st.sampled_from(["user", "assistant", "system"]), content=st.one_of(words, parts),
        name=words, arguments=words, output=words, call_id=words,
    ),
    max_size=4,
)  # fmt: skip
responses = some(
    **{name: common[name] for name in ("stream", "temperature", "top_p", "seed", "stop")},
    instructions=words, metadata=st.dictionaries(words, values, max_size=3),
    max_output_tokens=st.integers(-1, 6), previous_response_id=words, store=st.booleans(),
    text=some(format=some(type=st.sampled_from(["text", "json_schema"]), schema=schemas)),
    tools=st.lists(some(type=st.just("function"), name=words, parameters=schemas), max_size=2),
    reasoning=some(effort=st.sampled_from(["low", "none", "much"])), tool_choice=words,
)  # fmt: skip


def _short(path: str) -> dict[str, int]:
    return {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 5}


bodies = st.one_of(
    st.tuples(
        st.just("/v1/chat/completions"),
        st.tuples(st.fixed_dictionaries({"messages": mostly(messages)}), chats),
    ),
    st.tuples(
        st.just("/v1/completions"),
        st.tuples(st.fixed_dictionaries({"prompt": mostly(prompts)}), completions),
    ),
    st.tuples(
        st.just("/v1/responses"),
        st.tuples(st.fixed_dictionaries({"input": mostly(st.one_of(words, items))}), responses),
    ),
).map(lambda found: (found[0], {**found[1][1], **found[1][0], **_short(found[0])}))
