"""Read the models that an Ollama Modelfile names: its `FROM` line, and its `DRAFT` line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from duodec.errors import ModelUnreadable

_MOST_BYTES = 1 << 20  # licences are parts of them
_LINE = re.compile(r"^[ \t]*(FROM|DRAFT|ADAPTER)[ \t]+(\S.*?)[ \t]*$", re.IGNORECASE | re.MULTILINE)
_TEXT = re.compile(r'"""(?:.|\n)*?"""')  # a licence or a template, in which such lines mean nothing
_FIRST = re.compile(r"(?:[ \t]*(?:#.*)?\n)*[ \t]*FROM[ \t]+\S", re.IGNORECASE)


@dataclass(frozen=True)
class Modelfile:
    """Hold references, as `models.resolve` takes them; paths are relative to the Modelfile's
    folder."""

    target: str
    draft: str | None

    @classmethod
    def read(cls, reference: str) -> Modelfile | None:
        """Return the Modelfile that a reference names; None if it names anything else. Raises
        ModelUnreadable if it has an adapter, which would change the text."""
        text = _text_of(reference)
        if text is None or not _FIRST.match(text):
            return None
        found = {key.upper(): value for key, value in reversed(_LINE.findall(_TEXT.sub("", text)))}
        if "ADAPTER" in found:
            raise ModelUnreadable(
                f"{reference} applies the adapter {found['ADAPTER']}, which is not read; merge it "
                "into the model's file"
            )
        folder = Path(reference).expanduser().parent
        draft = found.get("DRAFT")
        return cls(_reference(found["FROM"], folder), draft and _reference(draft, folder))


def _text_of(reference: str) -> str | None:
    """Return the text of a small text file."""
    try:
        path = Path(reference).expanduser()
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_text("utf-8")
    except (OSError, ValueError, RuntimeError):
        return None


def _reference(value: str, folder: Path) -> str:
    value = value.strip("\"'")
    path = folder / Path(value).expanduser()
    return str(path) if path.exists() else value
