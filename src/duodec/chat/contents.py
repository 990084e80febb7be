"""Read what a message says, and whether a tool is one, alike for the library and the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from duodec.chat.pictures import (
    OTHERWISE,
    PART,
    ImageFile,
    NoPicture,
    RemoteImage,
    file_of_base64,
    file_of_uri,
    not_fetched,
    part_of,
)

_TEXTS = ("text", "input_text", "output_text")  # the types of parts that are texts
_RESULTS = ("tool", "function")  # the roles of results
_NAMES = ("tool_name", "filename", "title", "name")  # what a part may be called
_LONGEST_NAME = 100
_URL = "image_url"
_SENT = (_URL, "input_image")  # OpenAI's types of a part that is a picture


class Mark(Protocol):
    """Writes what stands for a picture in a text."""

    def __call__(self, file: ImageFile, otherwise: str | None = None) -> str:
        """``otherwise`` stands in its place where it cannot be shown; None: that is refused.
        Raises NoPicture."""


class NoText(Exception):
    """Why a content is not a text: a sentence whose subject is the field's name."""


def content_of(role: object, content: object, *, has_calls: bool, mark: Mark | None = None) -> str:
    """The text of a message of this role, with what ``mark`` writes for its pictures; None: the
    model reads text only. Raises NoText."""
    if role in _RESULTS:
        return result_of(content, mark)
    if role != "user" and any(map(_is_picture, _parts(content))):
        raise NoText("has a picture, and only a user's message may; send it in one")
    return text_of(content, has_calls=has_calls, mark=mark)


def with_files(role: object, content: object, *, has_calls: bool) -> str | list[dict[str, Any]]:
    """The text of a message of this role; where it has pictures, its texts and their files as
    parts. Nothing that a client sends is opened but data URIs. Raises NoText."""
    parts = _parts(content)
    if role in _RESULTS and any(map(_is_sent_picture, parts)):
        found = [_part_of_result(part) for part in parts]
        return found if any(PART in part for part in found) else result_of(content)
    if role != "user" or not any(map(_is_sent_picture, parts)):
        return content_of(role, content, has_calls=has_calls)
    return [
        part_of(_sent_file(part)) if _is_sent_picture(part)
        else {"type": "text", "text": _text_of_part(part, None)}
        for part in parts
    ]  # fmt: skip


def text_of(content: object, *, has_calls: bool, mark: Mark | None = None) -> str:
    """A message's text, or the texts of a list of parts; a message that calls tools may have none.
    Raises NoText."""
    if isinstance(content, str):
        return content
    if content is None and has_calls:
        return ""
    if not isinstance(content, list | tuple):
        raise NoText("is no text; send a string")
    return "".join(_text_of_part(part, mark) for part in content)


def result_of(content: object, mark: Mark | None = None) -> str:
    """The text of a tool's result, with what ``mark`` writes for its pictures. What cannot be shown
    becomes a line that says so: clients send a result again in every later turn, so that to refuse
    it once would end the conversation. Raises NoText where there are no parts."""
    if isinstance(content, list | tuple) and not all(map(_is_text, content)):
        return "\n".join(
            part["text"] if _is_text(part) else _marked_or_line(part, mark) for part in content
        )
    return text_of(content, has_calls=False)


def _marked_or_line(part: Any, mark: Mark | None) -> str:
    """What stands for a part of a result that is no text."""
    line = part[OTHERWISE] if isinstance(part, Mapping) and OTHERWISE in part else unseen(part)
    if mark is not None:
        with suppress(NoText, NoPicture):
            if (file := _file_of(part)) is not None:
                return mark(file, line)
    return line


def _part_of_result(part: Any) -> dict[str, Any]:
    """A part of a result as a text, or with the file that a client sent."""
    if _is_sent_picture(part):
        with suppress(NoText):
            return {**part_of(_sent_file(part)), OTHERWISE: unseen(part)}
    return {"type": "text", "text": part["text"] if _is_text(part) else unseen(part)}


def unseen(part: object) -> str:
    """A line for a picture, or another part, that the model cannot be shown."""
    fields = part if isinstance(part, Mapping) else {}
    own = (fields[name] for name in _NAMES if isinstance(fields.get(name), str))
    words = " ".join(f"{fields.get('type') or 'part'} {next(own, '')}".split())
    return f"[{words[:_LONGEST_NAME]}: not shown, this model reads text only]"


def _is_text(part: object) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") in _TEXTS
        and isinstance(part.get("text"), str)
    )


def _parts(content: object) -> Sequence[Any]:
    return content if isinstance(content, list | tuple) else ()


def _is_picture(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in (PART, *_SENT)


def _is_sent_picture(part: object) -> bool:
    """OpenAI's, or Anthropic's."""
    return isinstance(part, Mapping) and (
        part.get("type") in _SENT
        or (part.get("type") == PART and isinstance(part.get("source"), Mapping))
    )


def _sent_file(part: Mapping[str, Any]) -> ImageFile | RemoteImage:
    """Raises NoText."""
    given = part.get("source") if part.get("type") == PART else part.get(_URL)
    try:
        if isinstance(given, Mapping) and given.get("type") == "base64":
            return file_of_base64(given.get("data"))
        return file_of_uri(given.get("url") if isinstance(given, Mapping) else given)
    except NoPicture as error:
        raise NoText(f"has a picture that {error}") from None


def _file_of(part: object) -> ImageFile | None:
    """The picture of a part, which may name a file of ours. Raises NoText."""
    if isinstance(part, Mapping) and _is_sent_picture(part):
        return _here(_sent_file(part))
    given = part.get(PART) if isinstance(part, Mapping) and part.get("type") == PART else None
    if given is None or isinstance(given, ImageFile):
        return given
    if isinstance(given, RemoteImage):
        return _here(given)
    try:
        return ImageFile(given if isinstance(given, bytes) else Path(given).read_bytes())
    except (OSError, TypeError, ValueError) as error:
        raise NoText(f"has a picture that cannot be read ({error}); give a path or bytes") from None


def _here(file: ImageFile | RemoteImage) -> ImageFile:
    """Raises NoText for what is elsewhere."""
    if isinstance(file, ImageFile):
        return file
    raise NoText(f"has a picture that {not_fetched(file.url)}")


def _text_of_part(part: object, mark: Mark | None) -> str:
    if mark is not None and (file := _file_of(part)) is not None:
        try:
            return mark(file)
        except NoPicture as error:
            raise NoText(f"has a picture that {error}") from None
    form, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
    if form not in _TEXTS or not isinstance(text, str):
        picture = "; leave it out, or load a model with `mmproj`" if form in (PART, *_SENT) else ""
        raise NoText(f"has a part of type {form!r}, and this model reads text only{picture}")
    return text


def names_function(value: object) -> bool:
    """Whether a tool, or a call of one, has a function with a name."""
    function = value.get("function") if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)
