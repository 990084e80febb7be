"""Complete what is typed after a slash in `duodec chat`: commands, models, settings, files."""

from __future__ import annotations

from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from duodec.cli.chat import slash
from duodec.methods.registry import METHODS
from duodec.models import ollama
from duodec.models.aliases import ALIASES

_FILES = ("/load", "/read", "/save")
_WORDS = {
    "/draft": ("on", "off"),
    "/set": slash.SETTINGS,
    "/set method": ("auto", *METHODS),
}


class SlashCompleter(Completer):
    """Complete lines that begin with a slash."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)
        models = (*ALIASES, *(model.name for model in ollama.installed()))
        self._words = {**_WORDS, "/model": models}

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        line = document.text_before_cursor
        if not line.startswith("/"):
            return
        before, has_blank, word = line.rpartition(" ")
        if not has_blank:
            names = [*slash.COMMANDS, *slash.LEAVE]
            yield from (Completion(name, -len(word)) for name in names if name.startswith(word))
        elif before in _FILES:
            yield from self._paths.get_completions(Document(word), complete_event)
        else:
            fitting = (
                name for name in self._words.get(before.strip(), ()) if name.startswith(word)
            )
            yield from (Completion(name, -len(word)) for name in fitting)
