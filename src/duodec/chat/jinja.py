"""Render prompts with chat templates, which are programs that come with a model.

They run in jinja2's sandbox, which protects the machine but does not stop endless loops. So unknown
templates run in a separate process, which is this file as a program: see
`duodec.chat.template_renderer` and `duodec.machine.helper`.
"""

from __future__ import annotations

import json
import pickle
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from duodec.machine.helper import RESPONSE, SIZE

MOST_CHARACTERS = 1 << 26  # of a prompt
_MOST_BYTES = 2 << 30  # that the process may use
WRITTEN, REFUSED = 0, 1  # the kind of a response

# raised by templates that do not fit the messages: adding None to a text, for one
_REFUSALS = (
    TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RuntimeError,
    AttributeError, MemoryError,
)  # fmt: skip


class TemplateRefused(Exception):
    """A template that refuses the messages, with its own message."""


def write(template: str, values: dict[str, Any]) -> str:
    """Render a template with ``values``. Raises Refused."""
    parts, length = [], 0
    try:
        for part in _compiled(template).generate(
            raise_exception=_refuse,
            strftime_now=lambda form: datetime.now().strftime(form),
            **values,
        ):
            parts.append(part)
            length += len(part)
            if length > MOST_CHARACTERS:
                raise TemplateRefused(f"it writes more than {MOST_CHARACTERS} characters")
    except _REFUSALS as error:
        raise TemplateRefused(str(error) or type(error).__name__) from error
    return "".join(parts)


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


def _limit() -> None:
    """Limit memory, if the system can."""
    import resource

    for kind, most in ((resource.RLIMIT_AS, _MOST_BYTES), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def _respond(requests: BinaryIO, responses: BinaryIO) -> None:
    """Render requests until the input ends."""
    responses.write(RESPONSE.pack(WRITTEN, 0))  # ready
    responses.flush()
    while len(head := requests.read(SIZE.size)) == SIZE.size:
        try:
            template, values = pickle.loads(requests.read(*SIZE.unpack(head)))  # noqa: S301  our parent's
            kind, text = WRITTEN, write(template, values)
        except TemplateRefused as refusal:
            kind, text = REFUSED, str(refusal)
        except Exception as error:  # noqa: BLE001  a value of a class that is unknown here
            kind, text = REFUSED, f"{type(error).__name__}: {error}"
        data = text.encode("utf-8", "surrogatepass")
        responses.write(RESPONSE.pack(kind, len(data)))
        responses.write(data)
        responses.flush()


if __name__ == "__main__":
    _limit()
    _respond(sys.stdin.buffer, sys.stdout.buffer)
