"""Chat templates: from messages to the text a model was trained to answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from duodec.errors import BadOption
from duodec.rendering import RENDERER
from duodec.templates import Refused, write

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}

# by SHA-256, the templates of the models that we pin: they are known to come to their end
_KNOWN = frozenset({
    "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",
    "d5495a1e5db0611132a97e46a65dbb64a642a499421228b9c8b93229097fa9a4",
    "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
})  # fmt: skip


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos: str,
    eos: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt that a model's own template makes of ``messages``, and of ``tools`` if any.

    The template comes with the model file, so it runs in jinja2's sandbox, and in a process with
    limits where it is not one that we know. Raises BadOption when it refuses the messages, or
    comes to no end.
    """
    values = {
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": True,
        "bos_token": bos,
        "eos_token": eos,
        **({"tools": list(tools)} if tools else {}),
    }
    is_known = hashlib.sha256(template.encode("utf-8", "replace")).hexdigest() in _KNOWN
    try:
        return write(template, values) if is_known else RENDERER.render(template, values)
    except Refused as error:
        raise BadOption(
            f"the model's chat template refuses these messages ({error}); "
            "change them, or give the text as it is with --raw"
        ) from error
