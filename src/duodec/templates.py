"""Write a prompt as a chat template says: templates are programs that come with a model.

They run in jinja2's sandbox, which keeps them from the machine and not from running for ever. So
those that are not known run in a process of its own, which is this file as a program: it reads
requests from its standard input and answers on its standard output, and knows nothing else of this
package. See `duodec.rendering`.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_CHARACTERS = 1 << 26  # of a prompt
_MOST_BYTES = 2 << 30  # that the process may take
WRITTEN, REFUSED = 0, 1  # how an answer begins
LENGTH = struct.Struct("<BQ")  # of an answer: its kind and its bytes
SIZE = struct.Struct("<Q")  # of a request: its bytes

# a template that cannot do with the messages what it wants to: add None to a text, for one
_REFUSALS = (
    TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RuntimeError,
    AttributeError, MemoryError,
)  # fmt: skip


class Refused(Exception):
    """A template that does not take the messages, in its own words."""


def write(template: str, values: dict[str, Any]) -> str:
    """The text that a template makes of ``values``. Raises Refused."""
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
                raise Refused(f"it writes more than {MOST_CHARACTERS} characters")
    except _REFUSALS as error:
        raise Refused(str(error) or type(error).__name__) from error
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
    """Memory, where the system can limit it."""
    import resource

    for kind, most in ((resource.RLIMIT_AS, _MOST_BYTES), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def _answer(requests: BinaryIO, answers: BinaryIO) -> None:
    """Write for whoever asks, until nobody does."""
    answers.write(LENGTH.pack(WRITTEN, 0))  # ready
    answers.flush()
    while len(head := requests.read(SIZE.size)) == SIZE.size:
        try:
            template, values = pickle.loads(requests.read(*SIZE.unpack(head)))  # noqa: S301  our parent's
            kind, text = WRITTEN, write(template, values)
        except Refused as refusal:
            kind, text = REFUSED, str(refusal)
        except Exception as error:  # noqa: BLE001  a value of a class that is not known here
            kind, text = REFUSED, f"{type(error).__name__}: {error}"
        data = text.encode("utf-8", "surrogatepass")
        answers.write(LENGTH.pack(kind, len(data)))
        answers.write(data)
        answers.flush()


if __name__ == "__main__":
    _limit()
    _answer(sys.stdin.buffer, sys.stdout.buffer)
