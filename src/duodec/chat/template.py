"""Render chat messages into the text a model was trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from duodec.chat.jinja import TemplateRefused, write
from duodec.chat.template_renderer import TEMPLATE_RENDERER
from duodec.errors import BadOption

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}

# by SHA-256, the templates of the models that we pin: they are known to finish
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
    variables: Mapping[str, Any] = {},
) -> str:
    """The prompt that a model's own template renders from ``messages``, ``tools`` if any, and
    ``variables`` of its own, such as ``enable_thinking``.

    The template comes with the model file, so it runs in jinja2's sandbox, and in a process with
    limits unless it is one that we know. Raises BadOption when it refuses the messages, or does not
    finish.
    """
    values = {
        **variables,
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": True,
        "bos_token": bos,
        "eos_token": eos,
        **({"tools": list(tools)} if tools else {}),
    }
    is_known = hashlib.sha256(template.encode("utf-8", "replace")).hexdigest() in _KNOWN
    try:
        return write(template, values) if is_known else TEMPLATE_RENDERER.render(template, values)
    except TemplateRefused as error:
        raise BadOption(
            f"the model's chat template refuses these messages ({error}); "
            "change them, or give the text as it is in place of `messages`"
        ) from error
