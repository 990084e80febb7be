"""Write responses to requests for embeddings and for ranks."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from duodec.backends.loaded import Rows
from duodec.server.api.embedding.bodies import EmbeddingsBody, RerankBody

Response = dict[str, Any]


def embeddings(body: EmbeddingsBody, model: str, rows: Rows, num_tokens: int) -> Response:
    """``/v1/embeddings``'. Rows are turned into numbers where the response is encoded."""
    shown = base64_of if body.encoding_format == "base64" else numbers
    data = [
        {"object": "embedding", "index": i, "embedding": partial(shown, row)}
        for i, row in enumerate(rows)
    ]
    return {"object": "list", "model": model, "data": data, "usage": usage(num_tokens)}


def base64_of(row: Rows) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def numbers(row: Rows) -> list[float]:
    """As short as they can be written without becoming other 32-bit numbers."""
    return [float(text) for text in row.astype(str)]


def ranks(
    body: RerankBody, model: str, scores: Sequence[float], num_tokens: int
) -> Response | list[Response]:
    """``/v1/rerank``'s: the best first, equal ones as they came."""
    name = "score" if body.is_short else "relevance_score"
    order = np.argsort(-np.array(scores), kind="stable")[: body.top_n]
    results: list[Response] = [{"index": int(i), name: float(scores[i])} for i in order]
    for one in results:
        text = body.ranked[one["index"]]
        if body.is_short and body.return_text:
            one["text"] = text
        elif body.return_documents:
            one["document"] = {"text": text}
    if body.is_short:
        return results
    told = {"tokens": {"input_tokens": num_tokens}}  # where Cohere's clients look
    return {"object": "list", "model": model, "results": results, "usage": usage(num_tokens),
            "meta": told}  # fmt: skip


def usage(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
