"""Connect to servers that are not trusted: limit the bytes and the time of a response."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from socket import socket
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

MOST_BYTES = 16 << 20  # of a response with its headers: logprobs of 16,000 tokens


class TooLarge(OSError):
    """The response goes on beyond `MOST_BYTES`."""


@contextmanager
def connected(url: str, timeout_s: float) -> Iterator[HTTPConnection]:
    """A connection to the server at a URL. Whatever it sends, however slowly, its response ends
    within ``timeout_s``, with a TimeoutError, and within `MOST_BYTES`, with `TooLarge`."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    limited: Any = partial(_LimitedResponse, monotonic() + timeout_s)
    connection.response_class = limited
    try:
        yield connection
    finally:
        connection.close()


class _LimitedResponse(HTTPResponse):
    def __init__(self, end_s: float, sock: socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = BufferedReader(_Limited(sock, self.fp.detach(), end_s))


class _Limited(RawIOBase):
    """What a socket receives. All that http.client reads passes here: status lines, headers, sizes
    of chunks, trailers, and a body that may be read to its end at once."""

    def __init__(self, sock: socket, raw: RawIOBase, end_s: float) -> None:
        self._sock, self._raw, self._end_s = sock, raw, end_s
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._end_s - monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        count = self._raw.readinto(buffer) or 0
        self._num_bytes += count
        if self._num_bytes > MOST_BYTES:
            raise TooLarge(f"the response has more than {MOST_BYTES} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
