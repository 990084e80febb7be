"""Check completions with JSON schemas: all valid, one seed one text, drafts still useful.

Every request goes through `duodec serve` plainly and with drafts, with its schema, and some of them
with drafts and no schema. An independent validator checks the completions. The results also have
tokens a forward pass with and without the schema: a drafter that did not follow the grammar would
lose there.

    python -m benchmarks.exactness.structured --data FOLDER
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import httpx
import jsonschema
import typer

from benchmarks import RESULTS
from benchmarks.serving.servers import Served, ours
from duodec.bench.card import environment
from duodec.bench.tasks import read_prompts

_TASKS = ("mt_bench", "qa", "math_reasoning", "humaneval", "summarization", "translation", "rag")
_MOST_CHARS = 900  # of a prompt
_FREE = 60  # requests that are also sent without their schema
_WORD = {"type": "string", "maxLength": 20}
_NOTE = {"type": "string", "maxLength": 60}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    names = list(properties)
    return {
        "type": "object", "properties": properties, "required": names,
        "additionalProperties": False, **more,
    }  # fmt: skip


SCHEMAS = [
    _object({"answer": _NOTE, "is_certain": {"type": "boolean"}}),
    _object({"kind": {"enum": ["question", "task", "story", "other"]}, "reason": _NOTE}),
    _object({"keywords": {"type": "array", "items": _WORD, "minItems": 1, "maxItems": 5}}),
    _object({"score": {"type": "integer", "minimum": 0, "maximum": 100}, "why": _NOTE}),
    _object({"a": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 99}]}}),
    _object({"person": _object({"name": _WORD, "age": {"type": "integer", "minimum": 0,
                                                       "maximum": 120}})}),
    _object({"items": {"type": "array", "maxItems": 3, "items": {"$ref": "#/$defs/item"}}},
            **{"$defs": {"item": _object({"name": _WORD, "count": {"enum": [1, 2, 3, 12]}})}}),
    {"type": "array", "minItems": 2, "maxItems": 4, "items": {"enum": ["yes", "no", "perhaps"]}},
    _object({"code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, "note": _NOTE}),
    _object({"day": {"type": "string", "format": "date"}, "tags": {
        "type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3}}),
]  # fmt: skip

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Answered:
    """One response of the server."""

    text: str
    finish_reason: str
    num_tokens: int
    num_forwards: int


def requests(data: Path, number: int, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Prompts and schemas in turn; greedy and sampled ones."""
    prompts = [p.turns[0] for p in read_prompts(data, _TASKS, None)]
    texts = cycle([text for text in prompts if len(text) <= _MOST_CHARS])
    for i, text in enumerate(islice(texts, number)):
        schema = SCHEMAS[i % len(SCHEMAS)]
        words = f"{text}\n\nAnswer in JSON of this schema: {json.dumps(schema)}"
        yield {
            "messages": [{"role": "user", "content": words}], "seed": i, "max_tokens": max_tokens,
            "temperature": (0.0, 0.7, 1.0)[i // len(SCHEMAS) % 3],
            "response_format": {"type": "json_schema", "json_schema": {
                "name": f"schema{i % len(SCHEMAS)}", "schema": schema, "strict": True}},
        }  # fmt: skip


def ask(served: Served, body: dict[str, Any], method: str) -> Answered:
    response = httpx.post(
        f"{served.url}/v1/chat/completions", json={**body, "speculation": {"method": method}},
        timeout=300,
    )  # fmt: skip
    assert response.status_code == 200, response.text
    whole = response.json()
    (choice,) = whole["choices"]
    speculative = whole["metrics"]["speculative_decoding"] or {}
    num_tokens = whole["usage"]["completion_tokens"]
    num_accepted = speculative.get("num_accepted_draft_tokens", 0)
    return Answered(
        choice["message"]["content"], choice["finish_reason"], num_tokens, num_tokens - num_accepted
    )


def is_valid(answer: Answered, schema: Any) -> bool:
    try:
        checker = jsonschema.FormatChecker()
        jsonschema.validate(json.loads(answer.text), schema, format_checker=checker)
    except (ValueError, jsonschema.ValidationError):
        return False
    return answer.finish_reason == "stop"


def per_forward(answers: Sequence[Answered]) -> float:
    """Tokens a forward pass of the target."""
    return sum(a.num_tokens for a in answers) / sum(a.num_forwards for a in answers)


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="Prompts, in Spec-Bench's format.")],
    number: Annotated[int, typer.Option(help="Of requests.")] = 200,
    target: str = "smollm2",
    draft: str = "smollm2-draft",
    method: str = "duo",
    max_tokens: int = 300,
    output: str = "structured",
) -> None:
    """Measure schema-constrained completions through the server."""
    num_valid = num_same = 0
    held: list[Answered] = []
    free: list[Answered] = []
    failed: list[str] = []
    with ours("-m", target, "--draft", draft, "--context", "2048") as served:
        for i, body in enumerate(requests(data, number, max_tokens)):
            plain, found = (ask(served, body, name) for name in ("ar", method))
            schema = body.pop("response_format")["json_schema"]["schema"]
            if is_valid(found, schema) and is_valid(plain, schema):
                num_valid += 1
            else:
                failed.append(found.text)
            num_same += found.text == plain.text
            if i < _FREE:
                free.append(ask(served, {**body, "max_tokens": found.num_tokens}, method))
                held.append(found)
            print(f"{i + 1}: {num_valid} valid, {num_same} the same", flush=True)
    results = {
        "environment": environment(), "target": target, "draft": draft, "method": method,
        "requests": number,
        "valid": num_valid, "same_as_plain": num_same, "failed": failed,
        "tokens_per_forward": round(per_forward(held), 3),
        "tokens_per_forward_without_schema": round(per_forward(free), 3),
    }  # fmt: skip
    (RESULTS / f"{output}.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({k: v for k, v in results.items() if k != "environment"}, indent=1))


if __name__ == "__main__":
    app()
