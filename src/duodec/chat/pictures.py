"""Read the pictures of messages: files in data URIs, decoded in a process with limits."""

from __future__ import annotations

import atexit
import base64
import binascii
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duodec.core.prompts.pictures import Picture
from duodec.errors import BadOption
from duodec.machine.helper import SIZE, Helper, Late

MOST_FILE_BYTES = 1 << 25
MOST_PICTURES = 32  # of a request
PART = "image"  # the type of a part of a message's content that holds an `ImageFile`
OTHERWISE = "otherwise"  # what such a part of a result says where it cannot be shown
_LIMIT_S = 10.0
_DATA = re.compile(r"data:(?:[\w.+-]+/[\w.+-]+)?(?P<more>(?:;[\w.+=-]+)*),")
_DECODED = 0  # see `duodec.chat.picture_decoder`


class NoPicture(Exception):
    """Why something is no picture: a sentence whose subject is the field's name."""


@dataclass(frozen=True)
class ImageFile:
    """A picture as somebody sent it: the bytes of a PNG, JPEG, WebP, GIF or BMP file."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class RemoteImage:
    """A picture that somebody only named, by an http or https address."""

    url: str


def part_of(file: ImageFile | RemoteImage) -> dict[str, Any]:
    """A part of a message's content."""
    return {"type": PART, PART: file}


def not_fetched(url: str) -> NoPicture:
    """What somebody is told whose address is not asked."""
    return NoPicture(
        f"has a url of the kind {url.partition(':')[0][:20]!r}, and nothing is fetched; send a "
        "data URI, data:image/png;base64,..."
    )


def file_of_uri(uri: object) -> ImageFile | RemoteImage:
    """The file in a data URI; what an address of the web names is not fetched here. Raises
    NoPicture."""
    if not isinstance(uri, str):
        raise NoPicture("has no url; send a data URI, data:image/png;base64,...")
    if uri.startswith(("http://", "https://")):
        return RemoteImage(uri)
    found = _DATA.match(uri)
    if found is None:
        raise not_fetched(uri)
    if not found["more"].lower().endswith(";base64"):
        raise NoPicture("has a data URI that is not base64; send data:image/png;base64,...")
    return file_of_base64(uri[found.end() :])


def file_of_base64(text: object) -> ImageFile:
    """The file in a base64 text. Raises NoPicture."""
    if not isinstance(text, str) or not text:
        raise NoPicture("has no data; send a picture's file as base64")
    if len(text) // 4 * 3 > MOST_FILE_BYTES:
        raise NoPicture(
            f"has more than {MOST_FILE_BYTES >> 20} MiB, which is not read; send a smaller picture"
        )
    try:
        return ImageFile(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError):
        raise NoPicture("is no base64; encode the whole file of a picture") from None


class PictureDecoder:
    """Decodes pictures. Thread-safe: no thread waits for another's picture."""

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._idle: list[Helper] = []  # as many as ever decoded at once

    def decode(self, file: ImageFile) -> Picture:
        """Raises NoPicture."""
        try:
            helper = self._idle.pop()
        except IndexError:
            helper = Helper(Path(__file__).with_name("picture_decoder.py"))
        try:
            request = SIZE.pack(len(file.data)) + file.data
            kind, found = helper.ask_bytes(request, self._limit_s)
        except Late:
            raise NoPicture(f"takes longer than {self._limit_s:g} s to decode") from None
        except OSError:
            raise NoPicture("ended the process that decodes; it is damaged, or too large") from None
        finally:
            self._idle.append(helper)
        if kind != _DECODED:
            raise NoPicture(found.decode("utf-8", "replace"))
        (width,), (height,) = SIZE.unpack_from(found), SIZE.unpack_from(found, SIZE.size)
        return Picture(width, height, found[2 * SIZE.size :])

    def close(self) -> None:
        """End the processes; a later picture starts another. Can be called twice."""
        while self._idle:
            self._idle.pop().close()


PICTURE_DECODER = PictureDecoder()
atexit.register(PICTURE_DECODER.close)


@dataclass
class Marked:
    """Messages whose pictures are marks in their texts, which no message can guess."""

    files: dict[str, ImageFile] = field(default_factory=dict)  # by mark
    otherwise: dict[str, str] = field(default_factory=dict)  # what stands for it, if need be
    _secret: str = field(default_factory=lambda: secrets.token_hex(16))

    def mark(self, file: ImageFile, otherwise: str | None = None) -> str:
        """A mark for a picture, of letters and digits. ``otherwise`` stands in its place where it
        cannot be decoded; None: that is refused. Raises NoPicture."""
        if len(self.files) == MOST_PICTURES:
            raise NoPicture(f"is one of more than {MOST_PICTURES} pictures; send fewer")
        name = f"picture{self._secret}n{len(self.files)}e"
        self.files[name] = file
        if otherwise is not None:
            self.otherwise[name] = otherwise
        return name

    def shown(self, mark: str) -> Picture | str:
        """A decoded picture, or the text in its place. Raises BadOption."""
        try:
            return decoded(self.files[mark])
        except BadOption:
            if mark not in self.otherwise:
                raise
            return self.otherwise[mark]

    def split(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Where marks lie in a text that the template wrote, and which."""
        for found in re.finditer(f"picture{self._secret}n\\d+e", text):
            yield found.start(), found.end(), found[0]


def decoded(file: ImageFile) -> Picture:
    """Raises BadOption."""
    try:
        return PICTURE_DECODER.decode(file)
    except NoPicture as error:
        raise BadOption(f"a picture {error}") from None
