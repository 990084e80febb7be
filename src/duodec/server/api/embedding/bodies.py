"""Describe bodies of requests for embeddings and for ranks."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    StrictBool,
    StrictStr,
    model_validator,
)

from duodec.server.api.fields import Limit, Object, one_of, refused
from duodec.server.api.ollama.bodies import Options
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import kind

MAX_TEXTS = 2048  # of a request; OpenAI's own limit
_HABITS = frozenset({"user", "request_id", "priority", "metadata", "encoding", "input_type"})


def _text(value: Any, place: str) -> Any:
    """A text, or tokens. Raises ApiError."""
    value = _spelled(value)
    if isinstance(value, list) and not all(type(one) is int for one in value):
        raise bad_field(place, f"{place} holds something that is no token; send whole numbers")
    if not isinstance(value, list | str):
        raise bad_field(place, f"{place} is {kind(value)}; send a text, or tokens")
    if not value:
        raise bad_field(place, f"{place} is empty; send a text")
    return value


def _spelled(value: Any) -> Any:
    """The text of an object as llama.cpp's server takes it: of a prompt, or of parts."""
    if not isinstance(value, dict):
        return value
    if isinstance(text := value.get("prompt_string"), str) and not value.get("multimodal_data"):
        return text
    parts = value.get("content")
    if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        texts = [part.get("text") for part in parts if part.get("type") == "text"]
        if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
            return "".join(texts)
    return value


def _texts(value: Any) -> Any:
    """One text or several, each as a text or as tokens."""
    if isinstance(value := _spelled(value), str):
        return [value]
    if not isinstance(value, list):
        raise refused(f"is {kind(value)}; send a text, tokens, or an array of them")
    if value and type(value[0]) is int:
        return [_text(value, "input")]
    if len(value) > MAX_TEXTS:
        raise refused(f"has {len(value)} texts; use {MAX_TEXTS} or fewer in a request")
    return [_text(text, f"input[{i}]") for i, text in enumerate(value)]


def _not_empty(value: list[Any]) -> list[Any]:
    if value in ([], [""]):
        raise refused("is empty; send a text at least")
    return value


def _documents(value: Any) -> Any:
    """Documents as texts: those of Cohere and Jina may be objects with a ``text``."""
    if isinstance(value, list):
        if len(value) > MAX_TEXTS:
            raise refused(f"has {len(value)} texts; use {MAX_TEXTS} or fewer in a request")
        return [
            one["text"] if isinstance(one, dict) and isinstance(one.get("text"), str) else one
            for one in value
        ]
    return value


class EmbeddingsBody(Object):
    """Of ``/v1/embeddings``."""

    without_effect = _HABITS
    neutral = MappingProxyType({"add_special_tokens": (True,), "embd_normalize": (2,),
                                "normalize": (True,)})  # fmt: skip

    model: StrictStr | None = None
    input: Annotated[list[Any], BeforeValidator(_texts), AfterValidator(_not_empty)]
    encoding_format: Annotated[StrictStr, one_of(("float", "base64"))] = "float"
    dimensions: Limit | None = None


class RerankBody(Object):
    """Of ``/v1/rerank``: as Jina's, Cohere's and llama.cpp's server take it, or with ``texts``, as
    text-embeddings-inference does."""

    without_effect = _HABITS | {"rank_fields"}
    neutral = MappingProxyType({"raw_scores": (True,), "truncate": (False,)})

    model: StrictStr | None = None
    query: StrictStr
    documents: Annotated[list[StrictStr], FailFast(), BeforeValidator(_documents)] = Field(
        default_factory=list
    )
    texts: Annotated[list[StrictStr], FailFast(), BeforeValidator(_documents)] = Field(
        default_factory=list
    )
    top_n: Limit | None = None
    return_documents: StrictBool = False
    return_text: StrictBool = False

    @model_validator(mode="after")
    def _is_one(self) -> RerankBody:
        given = self.model_fields_set & {"documents", "texts"}
        if len(given) != 1:
            raise bad_field("documents", "send either documents or texts, as an array of texts")
        if not self.ranked:
            (name,) = given
            raise bad_field(name, f"{name} is empty; send a text at least")
        return self

    @property
    def ranked(self) -> list[str]:
        """The texts to rank."""
        return self.texts or self.documents

    @property
    def is_short(self) -> bool:
        """The response is a list of scores."""
        return "texts" in self.model_fields_set


class _OllamaBody(Object):
    without_effect = frozenset({"keep_alive"})

    model: StrictStr | None = None
    options: Options = Options()


class OllamaEmbedBody(_OllamaBody):
    """Of ``/api/embed``."""

    input: Annotated[list[Any], BeforeValidator(_texts)] = Field(default_factory=list)
    truncate: StrictBool = True
    dimensions: Limit | None = None


class OllamaEmbeddingsBody(_OllamaBody):
    """Of ``/api/embeddings``, Ollama's earlier path."""

    prompt: StrictStr = ""
