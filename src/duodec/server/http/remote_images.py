"""Fetch the pictures that clients name by an address, where the operator wants that.

A server that fetches what strangers name can be sent to places that only it can reach. So a name is
resolved once, every address that it has must be public, and the connection goes to one of these; a
redirect is another address. Bytes and time are limited.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

from duodec.chat.pictures import OTHERWISE, PART, ImageFile, NoPicture, RemoteImage
from duodec.chat.template import Message
from duodec.server.http.limited_http import TooLarge, connected

MOST_REDIRECTS = 3
_TIMEOUT_S = 10.0
_PORTS = {"http": 80, "https": 443}
_MOVED = (301, 302, 303, 307, 308)


def has_remote(messages: Sequence[Message]) -> bool:
    """Whether a message names a picture by an address."""
    return any(isinstance(part.get(PART), RemoteImage) for part in _parts(messages))


def fetched(messages: Sequence[Message]) -> list[Message]:
    """The messages with the files that they name; those that a tool's result names stay unread
    where they cannot be fetched. Raises NoPicture."""
    return [
        {**message, "content": [_here(part) for part in message["content"]]}
        if has_remote([message])
        else message
        for message in messages
    ]


def fetch(url: str) -> ImageFile:
    """The file at an address. Raises NoPicture."""
    for _ in range(1 + MOST_REDIRECTS):
        status, data, place = _asked(url)
        if status in _MOVED and place:
            url = urljoin(url, place)
        elif status == 200:
            return ImageFile(data)
        else:
            raise NoPicture(
                f"cannot be fetched: {_host(url)} responds with {status}; send its data"
            )
    raise NoPicture(f"cannot be fetched: more than {MOST_REDIRECTS} redirects; send its data")


def public_address(host: str, port: int) -> str:
    """An address of a host all of whose addresses are public. Raises NoPicture."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NoPicture(f"cannot be fetched: no host {host[:100]!r}; send its data") from None
    addresses = [str(place[0]) for *_, place in found]
    if not addresses or not all(_is_public(address) for address in addresses):
        raise NoPicture(f"is at {host[:100]!r}, which is no public address; send its data")
    return addresses[0]


def _is_public(address: str) -> bool:
    own = ip_address(address.partition("%")[0])
    inner = getattr(own, "ipv4_mapped", None) or own
    return bool(inner.is_global and not inner.is_multicast)


def _asked(url: str) -> tuple[int, bytes, str | None]:
    """Status, body and the place of a redirect. Raises NoPicture."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise NoPicture("has an address that is none; send its data") from None
    usual = _PORTS.get(parts.scheme)
    if usual is None or port not in (None, usual) or not host or parts.username is not None:
        raise NoPicture(
            "has an address that is not fetched: http and https at their usual ports are; send its "
            "data"
        )
    address = public_address(host, usual)
    try:
        with connected(url, _TIMEOUT_S) as connection:
            connection._create_connection = lambda _, *options: (  # type: ignore[attr-defined]
                socket.create_connection((address, usual), *options)
            )
            path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
            connection.request("GET", path, headers={"Accept": "image/*", "User-Agent": "duodec"})
            with connection.getresponse() as response:
                return response.status, response.read(), response.getheader("Location")
    except TooLarge as error:
        raise NoPicture(f"cannot be fetched: {error}; send a smaller one") from None
    except (OSError, HTTPException, ValueError) as error:
        why = type(error).__name__
        raise NoPicture(f"cannot be fetched from {_host(url)} ({why}); send its data") from None


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "")[:100]


def _parts(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    contents = [message.get("content") for message in messages]
    return [part for content in contents if isinstance(content, list) for part in content]


def _here(part: dict[str, Any]) -> dict[str, Any]:
    file = part.get(PART)
    if not isinstance(file, RemoteImage):
        return part
    try:
        return {**part, PART: fetch(file.url)}
    except NoPicture:
        if OTHERWISE in part:
            return part
        raise
