"""Run unknown chat templates in processes with limits of time, memory and length."""

from __future__ import annotations

import atexit
import pickle
from pathlib import Path
from typing import Any

from duodec.chat import jinja
from duodec.chat.jinja import WRITTEN, TemplateRefused
from duodec.machine.helper import SIZE, Helper, Late


class TemplateRenderer:
    """Renders templates. Thread-safe: no thread waits for another's prompt."""

    def __init__(self, limit_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._idle: list[Helper] = []  # as many as ever rendered at once

    def render(self, template: str, values: dict[str, Any]) -> str:
        """The text that the template makes of ``values``. Raises Refused."""
        try:
            request = pickle.dumps((template, values))
        except Exception as error:
            raise TemplateRefused(f"its values cannot be passed on: {error}") from error
        try:
            helper = self._idle.pop()
        except IndexError:
            helper = Helper(Path(jinja.__file__))
        try:
            kind, text = helper.ask(SIZE.pack(len(request)) + request, self._limit_s)
        except Late as error:
            raise TemplateRefused(f"it takes longer than {self._limit_s:g} s") from error
        except OSError as error:
            raise TemplateRefused("it ended its process: memory may be short") from error
        finally:
            self._idle.append(helper)
        if kind == WRITTEN:
            return text
        raise TemplateRefused(text)

    def close(self) -> None:
        """End the processes; a later template starts another. Can be called twice."""
        while self._idle:
            self._idle.pop().close()


TEMPLATE_RENDERER = TemplateRenderer()
atexit.register(TEMPLATE_RENDERER.close)
