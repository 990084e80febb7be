"""What strangers send as pictures: decoded in a process with limits, or refused in one line."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image, PngImagePlugin

from duodec.chat.picture_decoder import MOST_PIXELS
from duodec.chat.pictures import (
    ImageFile,
    Marked,
    NoPicture,
    PictureDecoder,
    file_of_base64,
    file_of_uri,
)
from duodec.core.prompts.pictures import Picture, blanked, run_tokens

MOST_MEMORY = 1200 << 20  # of the process that decodes, with Python


@pytest.fixture(scope="module")
def decoder() -> Iterator[PictureDecoder]:
    decoder = PictureDecoder()
    yield decoder
    decoder.close()


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    found = io.BytesIO()
    image.save(found, kind, **options)
    return found.getvalue()


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(width: int, height: int, *more: bytes, data: bytes = b"") -> bytes:
    """A file whose header says this size, whatever it holds."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    parts = [b"\x89PNG\r\n\x1a\n", header, *more, chunk(b"IDAT", zlib.compress(data))]
    return b"".join([*parts, chunk(b"IEND", b"")])


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "BMP"])
def test_pictures_keep_their_pixels(decoder: PictureDecoder, kind: str) -> None:
    image = noise(20, 10).quantize(64).convert("RGB")
    found = decoder.decode(
        ImageFile(encoded(image, kind, **({"lossless": True} if kind == "WEBP" else {})))
    )
    assert (found.width, found.height) == (20, 10)
    assert found.pixels == image.tobytes()


def test_a_photo_is_turned_as_its_camera_says(decoder: PictureDecoder) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    found = decoder.decode(ImageFile(encoded(noise(32, 16), "JPEG", exif=exif)))
    assert (found.width, found.height) == (16, 32)


def test_what_is_transparent_is_white(decoder: PictureDecoder) -> None:
    found = decoder.decode(ImageFile(encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 0)))))
    assert found.pixels == b"\xff" * 12


def _hostile() -> dict[str, tuple[bytes, str]]:
    whole = encoded(noise(64, 64))
    frames = [noise(8, 8), Image.new("RGB", (8, 8)), noise(8, 8).rotate(90)]
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "x" * (2 << 20), zip=True)
    return {
        "900 million pixels": (png(30_000, 30_000), "30000 by 30000 pixels"),
        "more than there can be": (png(2**31 - 1, 2**31 - 1), "pixels|cannot be decoded"),
        "none": (png(0, 0), "cannot be decoded|too narrow|no picture"),
        "narrow": (encoded(Image.new("RGB", (4000, 1))), "too narrow"),
        "half a file": (whole[: len(whole) // 2], "cannot be decoded"),
        "a header alone": (whole[:40], "cannot be decoded|no picture"),
        "no data behind a header": (png(64, 64), "cannot be decoded"),
        "animated GIF": (
            encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), "animated, with 3"),
        "animated WebP": (
            encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:]), "animated"),
        "animated PNG": (
            encoded(frames[0], "PNG", save_all=True, append_images=frames[1:]), "animated"),
        "SVG": (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG"),
        "HTML": (b"<html></html>", "no picture"),
        "nothing": (b"", "no picture"),
        "TIFF": (encoded(noise(8, 8), "TIFF"), "no picture"),
        "PDF": (encoded(noise(8, 8), "PDF"), "no picture"),
        "2 MB in a comment": (encoded(noise(8, 8), pnginfo=text), "cannot be decoded"),
        "a bomb": (png(4096, 4096, data=bytes(3 << 20)), "cannot be decoded"),
    }  # fmt: skip


HOSTILE = _hostile()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pictures_are_refused_in_one_line(decoder: PictureDecoder, name: str) -> None:
    data, why = HOSTILE[name]
    with pytest.raises(NoPicture, match=why) as error:
        decoder.decode(ImageFile(data))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 240


def test_after_hostile_pictures_others_are_decoded_and_memory_is_bounded(
    decoder: PictureDecoder,
) -> None:
    for data, _ in HOSTILE.values():
        with pytest.raises(NoPicture):
            decoder.decode(ImageFile(data))
    side = int(MOST_PIXELS**0.5)
    assert decoder.decode(ImageFile(encoded(Image.new("RGBA", (side, side))))).width == side
    peaks = [
        peak_bytes(child.pid)
        for child in psutil.Process().children(recursive=True)
        if any("picture_decoder" in word for word in child.cmdline())
    ]
    assert peaks
    assert max(peaks) < MOST_MEMORY


def peak_bytes(pid: int) -> int:
    """The most memory that a process has ever had resident."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("no /proc here, which tells how much memory a process had")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def test_metadata_of_a_megabyte_is_left_out(decoder: PictureDecoder) -> None:
    exif = Image.Exif()
    exif[0x010E] = "x" * 60_000
    data = encoded(
        noise(8, 8), "JPEG", exif=exif, comment=b"y" * 60_000, icc_profile=b"z" * 900_000
    )
    assert len(data) > 1_000_000
    assert decoder.decode(ImageFile(data)).width == 8


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("file:///etc/passwd", "nothing is fetched"),
        ("ftp://example.org/a.png", "nothing is fetched"),
        ("data:image/png,abc", "not base64"),
        ("data:image/png;base64,???", "no base64"),
        ("data:image/png;base64,", "no data"),
        ("", "nothing is fetched"),
        (None, "no url"),
        (["data:"], "no url"),
    ],
)
def test_only_data_uris_are_read(url: object, why: str) -> None:
    with pytest.raises(NoPicture, match=why):
        file_of_uri(url)


def test_a_data_uri_is_read_with_and_without_its_type() -> None:
    data = encoded(noise(4, 4))
    text = base64.b64encode(data).decode()
    for head in ("data:image/png;base64,", "data:;base64,", "data:image/png;charset=x;base64,"):
        assert file_of_uri(head + text).data == data
    assert file_of_base64("\n".join([text[:8], text[8:]])).data == data


def test_marks_of_pictures_cannot_be_guessed() -> None:
    file, marked, other = ImageFile(b"a"), Marked(), Marked()
    mark = marked.mark(file)
    assert mark.isalnum()
    assert mark == mark.lower()
    assert [(begin, end, found) for begin, end, found in marked.split(f"a {mark} b")] == [
        (2, 2 + len(mark), mark)
    ]
    assert not list(other.split(f"a {mark} b"))


def test_tokens_of_a_picture_are_of_its_content_and_outside_of_any_vocabulary() -> None:
    one = Picture(2, 1, b"abcdef")
    assert one.digest == Picture(2, 1, b"abcdef").digest
    assert one.digest != Picture(1, 2, b"abcdef").digest
    tokens = run_tokens(one.digest, 300)
    assert tokens.dtype == np.int32
    assert (tokens < 0).all()
    assert (run_tokens(one.digest, 20) == tokens[:20]).all()
    assert (run_tokens(Picture(1, 2, b"abcdef").digest, 20) != tokens[:20]).any()
    assert blanked(np.array([5, -3, 2], dtype=np.int32), 7).tolist() == [5, 7, 2]
