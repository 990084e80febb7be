"""Write the table of fields in docs/server.md from the bodies: python scripts/fields_table.py"""

from __future__ import annotations

import json
import re
from pathlib import Path

from duodec.server.api.anthropic.message_bodies import MessagesBody
from duodec.server.api.embedding.bodies import EmbeddingsBody, OllamaEmbedBody, RerankBody
from duodec.server.api.fields import Object
from duodec.server.api.ollama.bodies import GenerateBody, OllamaChatBody, Options
from duodec.server.api.openai.completion_bodies import ChatBody, CompletionBody
from duodec.server.api.openai.response_bodies import ResponsesBody

PAGE = Path(__file__).parents[1] / "docs" / "server.md"
APIS: dict[str, type[Object]] = {
    "chat": ChatBody, "completions": CompletionBody, "responses": ResponsesBody,
    "messages": MessagesBody, "Ollama's chat": OllamaChatBody, "generate": GenerateBody,
    "`options` of both": Options, "embeddings": EmbeddingsBody, "rerank": RerankBody,
    "embed": OllamaEmbedBody,
}  # fmt: skip
_PLACE = re.compile(r"(?s)(<!-- fields -->\n).*?(<!-- end of fields -->)")


def table() -> str:
    """One row a field: served, served with one value, or without effect."""
    names = {
        name: None
        for body in APIS.values()
        for name in [*body.names(), *sorted(body.neutral), *sorted(body.without_effect)]
    }
    rows = [["field", *APIS], ["---"] * (1 + len(APIS))]
    rows += [[f"`{name}`", *(_cell(body, name) for body in APIS.values())] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def page() -> str:
    """The page with the table of now."""
    text = PAGE.read_text("utf-8")
    return _PLACE.sub(lambda found: found[1] + table() + found[2], text)


def _cell(body: type[Object], name: str) -> str:
    if name in body.names():
        return "yes"
    if name in body.without_effect:
        return "no effect"
    served = body.neutral.get(name)
    return f"only {' or '.join(map(json.dumps, served))}" if served else ""


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
