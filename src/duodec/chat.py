"""Chat templates: from messages to the text a model was trained to answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from duodec.errors import BadOption

# a template that cannot do with the messages what it wants to: add None to a text, for one
_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RuntimeError)

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos: str,
    eos: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt that a model's own template makes of ``messages``, and of ``tools`` if any.

    The template comes with the model file, so it runs in jinja2's sandbox. Raises BadOption
    when it refuses the messages.
    """
    try:
        return _compiled(template).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=True,
            bos_token=bos,
            eos_token=eos,
            raise_exception=_refuse,
            strftime_now=lambda form: datetime.now().strftime(form),
            **({"tools": list(tools)} if tools else {}),
        )
    except _REFUSALS as error:
        raise BadOption(
            f"the model's chat template refuses these messages ({error}); "
            "change them, or give the text as it is with --raw"
        ) from error


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
