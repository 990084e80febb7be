"""Run what clients for Python can do against a server, and print a JSON line a client.

    python tried.py URL MODEL MODEL_WITH_TOOLS MODEL_FOR_LOOPS

It runs in the clients' environment, without duodec. A step's result is "" or what went wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel

URL, MODEL, WITH_TOOLS, FOR_LOOPS = sys.argv[1:5]
V1, KEY, ASKED = f"{URL}/v1", "none", "Name a city in France."
MESSAGES: list[Any] = [{"role": "user", "content": ASKED}]
os.environ |= {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": V1, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


class City(BaseModel):
    name: str
    inhabitants: int


SCHEMA = City.model_json_schema()
TOOL = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}  # fmt: skip
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
RESULT = "It is 7 degrees in Oslo, and it rains."
Steps = dict[str, Callable[[], Any]]


def with_openai() -> Steps:
    import openai

    client = openai.OpenAI(base_url=V1, api_key=KEY, max_retries=0)

    def stream() -> str:
        events = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=16, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        *pieces, last = events
        assert last.usage.completion_tokens == 16 or pieces[-1].choices[0].finish_reason == "stop"
        return "".join(piece.choices[0].delta.content or "" for piece in pieces)

    def tools() -> str:
        done = client.chat.completions.create(
            model=WITH_TOOLS, messages=WEATHER, tools=[TOOL], tool_choice="required", max_tokens=64
        )
        return json.loads(done.choices[0].message.tool_calls[0].function.arguments)["city"]

    def loop() -> bool:
        """Nothing forces the call; its result goes back."""
        fields: dict[str, Any] = {"model": FOR_LOOPS, "tools": [TOOL], "max_tokens": 64}
        said = client.chat.completions.create(messages=WEATHER, **fields).choices[0].message
        (call,) = said.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        turns = [*WEATHER, said, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        last = client.chat.completions.create(messages=turns, **fields).choices[0].message
        return bool(last.content or last.tool_calls)

    def responses() -> str:
        return client.responses.create(model=MODEL, input=ASKED, max_output_tokens=16).output_text

    def logprobs() -> Any:
        done = client.completions.create(
            model=MODEL, prompt="Paris is", echo=True, logprobs=1, max_tokens=1
        )
        return len(done.choices[0].logprobs.tokens) > 1

    return {
        "chat": lambda: client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=16
        ).choices[0].message.content,
        "stream": stream,
        "schema": lambda: client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=City, max_tokens=64
        ).choices[0].message.parsed.name,
        "tools": tools,
        "loop": loop,
        "responses": responses,
        "logprobs": logprobs,
    }  # fmt: skip


def with_anthropic() -> Steps:
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16}

    def stream() -> str:
        with client.messages.stream(**fields) as stream:
            return "".join(stream.text_stream)

    def tools() -> str:
        function = TOOL["function"]
        done = client.messages.create(
            model=WITH_TOOLS, messages=WEATHER, max_tokens=64, tool_choice={"type": "any"},
            tools=[{"name": "weather", "description": "The weather of a city.",
                    "input_schema": function["parameters"]}],
        )  # fmt: skip
        return next(block for block in done.content if block.type == "tool_use").input["city"]

    def loop() -> bool:
        own: dict[str, Any] = {
            "model": FOR_LOOPS, "max_tokens": 64, "tools": [{
                "name": "weather", "description": "The weather of a city.",
                "input_schema": TOOL["function"]["parameters"]}],
        }  # fmt: skip
        with client.messages.stream(messages=WEATHER, **own) as events:
            said = events.get_final_message()
        (call,) = said.content
        assert (said.stop_reason, call.input) == ("tool_use", {"city": "Oslo"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
        turns = [*WEATHER, {"role": "assistant", "content": said.content},
                 {"role": "user", "content": [result]}]  # fmt: skip
        return bool(client.messages.create(messages=turns, **own).content)

    return {
        "chat": lambda: client.messages.create(**fields).content[0].text,
        "stream": stream,
        "tools": tools,
        "loop": loop,
        "count": lambda: client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens,
    }


def with_litellm() -> Steps:
    import litellm

    where: dict[str, Any] = {"api_base": V1, "api_key": KEY}

    def complete(model: str = MODEL, messages: Any = MESSAGES, **fields: Any) -> Any:
        return litellm.completion(model=f"openai/{model}", messages=messages, **where, **fields)

    return {
        "chat": lambda: complete(max_tokens=16).choices[0].message.content,
        "stream": lambda: "".join(
            piece.choices[0].delta.content or "" for piece in complete(max_tokens=16, stream=True)
        ),
        "schema": lambda: City.model_validate_json(
            complete(max_tokens=64, response_format=City).choices[0].message.content
        ).name,
        "tools": lambda: complete(
            WITH_TOOLS, WEATHER, tools=[TOOL], tool_choice="required", max_tokens=64
        ).choices[0].message.tool_calls[0].function.arguments,
    }  # fmt: skip


def with_langchain() -> Steps:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model=MODEL, base_url=V1, api_key=KEY, max_tokens=64, max_retries=0)
    caller = ChatOpenAI(model=WITH_TOOLS, base_url=V1, api_key=KEY, max_tokens=64, max_retries=0)
    return {
        "chat": lambda: chat.invoke(ASKED).content,
        "stream": lambda: "".join(piece.text for piece in chat.stream(ASKED)),
        "schema": lambda: (
            chat.with_structured_output(City, method="json_schema").invoke(ASKED).name
        ),
        "tools": lambda: (
            caller.bind_tools([TOOL], tool_choice="any")
            .invoke(WEATHER[0]["content"])
            .tool_calls[0]["args"]["city"]
        ),
    }


def with_llama_index() -> Steps:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    def at(model: str) -> Any:
        return OpenAILike(
            model=model, api_base=V1, api_key=KEY, is_chat_model=True,
            is_function_calling_model=True, max_tokens=64, max_retries=0,
            should_use_structured_outputs=True,
        )  # fmt: skip

    def tools() -> str:
        caller, tool = at(WITH_TOOLS), FunctionTool.from_defaults(weather)
        done = caller.chat_with_tools([tool], WEATHER[0]["content"], tool_required=True)
        return caller.get_tool_calls_from_response(done)[0].tool_kwargs["city"]

    said = [ChatMessage(role="user", content=ASKED)]
    return {
        "chat": lambda: at(MODEL).chat(said).message.content,
        "stream": lambda: "".join(piece.delta for piece in at(MODEL).stream_chat(said)),
        "schema": lambda: at(MODEL).as_structured_llm(City).chat(said).raw.name,
        "tools": tools,
    }


def with_instructor() -> Steps:
    import instructor
    import openai

    def extract(model: str, mode: Any) -> str:
        client = instructor.from_openai(openai.OpenAI(base_url=V1, api_key=KEY), mode=mode)
        return client.chat.completions.create(
            model=model, messages=MESSAGES, response_model=City, max_tokens=128, max_retries=0
        ).name

    return {
        "schema": lambda: extract(MODEL, instructor.Mode.JSON_SCHEMA),
        "tools": lambda: extract(WITH_TOOLS, instructor.Mode.TOOLS),
    }


def with_pydantic_ai() -> Steps:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def agent(model: str, **options: Any) -> Any:
        chosen = OpenAIChatModel(model, provider=OpenAIProvider(base_url=V1, api_key=KEY))
        return Agent(chosen, model_settings={"max_tokens": 64}, **options)

    def stream() -> str:
        with agent(MODEL).run_stream_sync(ASKED) as run:
            return "".join(run.stream_text(delta=True))

    return {
        "chat": lambda: agent(MODEL).run_sync(ASKED).output,
        "stream": stream,
        "schema": lambda: agent(MODEL, output_type=NativeOutput(City)).run_sync(ASKED).output.name,
        "tools": lambda: agent(WITH_TOOLS, output_type=City).run_sync(ASKED).output.name,
    }


def with_llm() -> Steps:
    def run(*options: str) -> str:
        with TemporaryDirectory() as folder:
            Path(folder, "extra-openai-models.yaml").write_text(
                f"- model_id: here\n  model_name: {MODEL}\n  api_base: {V1}\n"
                "  supports_schema: true\n"
            )
            command = [sys.executable, "-m", "llm", "-m", "here", *options, ASKED]
            env = {**os.environ, "LLM_USER_PATH": folder}
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=120, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:])
        return done.stdout

    limit = ("-o", "max_tokens", "64")
    return {
        "chat": lambda: run("--no-stream", *limit),
        "stream": lambda: run(*limit),
        "schema": lambda: (
            City.model_validate_json(run("--schema", json.dumps(SCHEMA), *limit)).name
        ),
    }


CLIENTS = {
    "openai": with_openai,
    "anthropic": with_anthropic,
    "litellm": with_litellm,
    "langchain-openai": with_langchain,
    "llama-index-llms-openai-like": with_llama_index,
    "instructor": with_instructor,
    "pydantic-ai-slim": with_pydantic_ai,
    "llm": with_llm,
}


def tried(step: Callable[[], Any]) -> str:
    """ "" if a step brought something, else what went wrong."""
    try:
        return "" if step() else "nothing came"
    except Exception as error:  # noqa: BLE001  of any library
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


if __name__ == "__main__":
    for name, steps_of in CLIENTS.items():
        did = {step: tried(run) for step, run in steps_of().items()}
        print(json.dumps({"client": f"{name} {version(name)}", "did": did}), flush=True)
