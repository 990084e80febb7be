"""Decode a picture's file, in a process with limits: this file is its program.

A decoder of pictures is a parser of what strangers send, written in C. So it runs in a process of
its own, whose memory and time are limited: see `duodec.chat.pictures` and
`duodec.machine.helper`. What a file's header says is checked before anything is decoded.
"""

from __future__ import annotations

import io
import sys
import warnings
from contextlib import suppress
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

from duodec.machine.helper import RESPONSE, SIZE

DECODED, REFUSED = 0, 1  # the kind of a response
MOST_PIXELS = 1 << 24
MOST_ASPECT = 200  # the longer side by the shorter one
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_MOST_BYTES = 1 << 30  # that the process may use
_WHITE = (255, 255, 255)
Image.MAX_IMAGE_PIXELS = None  # what is larger is refused by `_check`, which names the limit


class PictureRefused(Exception):
    """What is wrong with a picture: what follows its name in a sentence."""


def decode(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and pixels (3 bytes each, rows from the top) of a picture's file, turned as its
    camera says and laid on white. Raises PictureRefused."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check(image)
            image.load()
            own = _on_white(ImageOps.exif_transpose(image))
            return own.width, own.height, own.tobytes()
    except UnidentifiedImageError:
        kind = "an SVG" if b"<svg" in data[:1024].lower() else "no picture that is read"
        raise PictureRefused(f"is {kind}; send {', '.join(_FORMATS)}") from None
    except MemoryError:
        raise PictureRefused("takes too much memory to decode; send a smaller one") from None
    except PictureRefused:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise PictureRefused(f"cannot be decoded ({why}); send it whole, as PNG or JPEG") from error


def _check(image: Image.Image) -> None:
    """Of the header alone. Raises PictureRefused."""
    width, height = image.size
    size = f"{width} by {height} pixels"
    if width * height > MOST_PIXELS:
        raise PictureRefused(f"has {size}, and {MOST_PIXELS} are read; send a smaller one")
    if not width or not height or max(width, height) > MOST_ASPECT * min(width, height):
        raise PictureRefused(f"has {size}: too narrow; send one that is less than {MOST_ASPECT}:1")
    if (num := getattr(image, "n_frames", 1)) > 1:
        raise PictureRefused(f"is animated, with {num} frames; send a single one")


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    below = Image.new("RGBA", layer.size, (*_WHITE, 255))
    return Image.alpha_composite(below, layer).convert("RGB")


def _limit() -> None:
    """Limit memory, if the system can."""
    import resource

    for kind, most in ((resource.RLIMIT_AS, _MOST_BYTES), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def _respond(requests: BinaryIO, responses: BinaryIO) -> None:
    """Decode until the input ends."""
    responses.write(RESPONSE.pack(DECODED, 0))  # ready
    responses.flush()
    while len(head := requests.read(SIZE.size)) == SIZE.size:
        parts: tuple[bytes, ...]
        try:
            width, height, pixels = decode(requests.read(*SIZE.unpack(head)))
            kind, parts = DECODED, (SIZE.pack(width), SIZE.pack(height), pixels)
        except PictureRefused as refusal:
            kind, parts = REFUSED, (str(refusal).encode("utf-8", "replace"),)
        responses.write(RESPONSE.pack(kind, sum(map(len, parts))))
        responses.writelines(parts)
        responses.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _limit()
    _respond(sys.stdin.buffer, sys.stdout.buffer)
