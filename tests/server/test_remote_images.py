"""Pictures that clients name by an address: public ones alone are asked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from duodec.chat.pictures import ImageFile, NoPicture, RemoteImage, part_of
from duodec.server.http import remote_images
from duodec.server.http.remote_images import fetch, fetched, has_remote, public_address

PRIVATE = [
    "127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "::1",
    "fe80::1", "fd00::1", "::ffff:127.0.0.1", "224.0.0.1", "100.64.0.1", "localhost",
]  # fmt: skip


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/to"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.end_headers()
            return
        self.send_response(404 if self.path == "/none" else 200)
        self.end_headers()
        with suppress(OSError):  # nobody reads on
            self.wfile.write(b"x" * (20 << 20) if self.path == "/large" else self.path.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A server of ours at a public name, and the names that were resolved."""
    server = HTTPServer(("127.0.0.1", 0), Pages)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    asked: list[str] = []
    connect, look_up = socket.create_connection, socket.getaddrinfo

    def resolve(host: str, port: int, *more: Any, **_: Any) -> list[Any]:
        if more:  # by the connection itself
            return look_up(host, port, *more)
        asked.append(host)
        inside = {"inside.example": "10.0.0.1", "both.example": "10.0.0.1"}
        found = [inside.get(host, "93.184.216.34")]
        found += ["93.184.216.34"] if host == "both.example" else []
        return [(0, 0, 0, "", (address, port)) for address in found]

    def to_ours(address: tuple[str, int], *options: Any) -> socket.socket:
        assert address == ("93.184.216.34", 80)
        return connect(server.server_address[:2], *options)

    monkeypatch.setattr(remote_images.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(remote_images.socket, "create_connection", to_ours)
    yield asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("host", PRIVATE)
def test_private_addresses_are_not_asked(host: str) -> None:
    with pytest.raises(NoPicture, match="no public address"):
        public_address(host, 80)


def test_a_picture_is_fetched_and_redirects_are_followed(web: list[str]) -> None:
    assert fetch("http://pictures.example/a.png?b=1").data == b"/a.png?b=1"
    assert fetch("http://pictures.example/to?/a.png").data == b"/a.png"
    assert set(web) == {"pictures.example"}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://inside.example/", "no public address"),
        ("http://both.example/", "no public address"),
        ("http://pictures.example/to?http://inside.example/", "no public address"),
        ("http://pictures.example/to?file:///etc/passwd", "not fetched"),
        ("http://pictures.example/to?/to?/to?/to?/to", "redirects"),
        ("http://pictures.example/none", "404"),
        ("http://pictures.example/large", "more than"),
        ("http://pictures.example:8080/", "usual ports"),
        ("http://user:word@pictures.example/", "usual ports"),
        ("http://[/", "is none"),
        ("http:///a", "usual ports"),
    ],
)
def test_what_is_not_fetched(web: list[str], url: str, why: str) -> None:
    with pytest.raises(NoPicture, match=why) as error:
        fetch(url)
    assert "\n" not in str(error.value)


def test_messages_get_the_files_that_they_name(web: list[str]) -> None:
    own = part_of(ImageFile(b"own"))
    named = part_of(RemoteImage("http://pictures.example/a"))
    text = {"type": "text", "text": "a"}
    messages = [{"role": "user", "content": "b"}, {"role": "user", "content": [own, named, text]}]
    assert has_remote(messages)
    assert not has_remote(messages[:1])
    found = fetched(messages)
    assert found == [
        messages[0],
        {"role": "user", "content": [own, part_of(ImageFile(b"/a")), text]},
    ]
