"""Run the process: listen, respond while the model loads, and end without loss."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import signal
import socket
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import NoReturn

import uvicorn

from duodec.errors import BadOption
from duodec.machine.signals import ending_signals
from duodec.native.library import address, library
from duodec.server.app import make_app
from duodec.server.http.connections import Connections, allow_open_files
from duodec.server.logs import log
from duodec.server.service import Service
from duodec.server.settings import Settings

_LONGEST_MARGIN_S = 5.0  # after the time that running requests are given, for all that follows
_MARGIN_S = 3.0  # for connections that are left when all responses have ended
_MOST_S = 10**9  # that the system's timer counts, and some decades
_LOOK_S = 0.1  # between two looks whether it shall end at once
_SWITCH_S = 0.001  # after which threads that prepare requests make way: Python's own is 5 ms
_COMPUTING_MARGIN_S = 3.0  # for the forward pass that is under way
_LOADING_MARGIN_S = 0.5  # for a model that is loading still


def listen(settings: Settings) -> socket.socket:
    """A socket that is ours, before anything is loaded. Raises BadOption."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise BadOption(
            f"host is '{settings.host}', which is no address of this machine ({error.strerror}); "
            "use 127.0.0.1, or 0.0.0.0 for all of them"
        ) from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if user_timeout := getattr(socket, "TCP_USER_TIMEOUT", None):
            # connections are ended whose clients read nothing; Linux only
            sock.setsockopt(socket.IPPROTO_TCP, user_timeout, int(1e3 * settings.timeout_s))
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        why = {
            errno.EADDRINUSE: f"port {settings.port} of {settings.host} is taken; choose another "
            "with --port, or end what uses it",
            errno.EACCES: f"port {settings.port} may not be used; choose one above 1023",
        }.get(error.errno or 0, f"cannot listen on {settings.host}:{settings.port} ({error})")
        raise BadOption(why) from error
    return sock


def serve(service: Service, sock: socket.socket) -> None:
    """Serve until a signal ends it. Raises what went wrong while the first model was loaded."""
    allow_open_files(service.settings.max_connections)
    sys.setswitchinterval(_SWITCH_S)
    server = Server(service)
    loader = _Loader(service, server)
    loader.start()
    try:
        server.run(sockets=[sock])
    finally:
        loader.join(_LOADING_MARGIN_S)
        # libraries that know no interruption; nobody is served yet, or waits for them
        if loader.is_alive() or service.models.is_loading:
            _leave("loading")
        if service.intake.is_busy:
            _leave("preparing")
        if not service.close(_COMPUTING_MARGIN_S):
            _leave("computing")
        service.models.free()
        sock.close()
    if loader.error is not None:
        raise loader.error


@contextmanager
def in_background(service: Service, sock: socket.socket) -> Iterator[None]:
    """Serve from a thread while entered, once the first model is loaded. Raises what went wrong
    while it was loaded."""
    server = Server(service)
    thread = Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])), name="duodec-server")
    try:
        service.start()
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()
    finally:
        service.close()
        service.models.free()
        sock.close()


def _leave(work: str) -> NoReturn:
    """End the process in the middle of this."""
    log.info("ended while %s", work)
    logging.shutdown()
    os._exit(0)


class Server(uvicorn.Server):
    """uvicorn, but signals end it with status 0 and after the responses in work."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                make_app(service),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                http=Connections(settings).protocol,
                timeout_graceful_shutdown=int(_MARGIN_S),
            )
        )
        self._service = service

    async def main_loop(self) -> None:
        watching = asyncio.ensure_future(self._service.meters.watchdog.run())
        try:
            await super().main_loop()
        finally:
            watching.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what is new, end what is in work within the time it has, then the connections.
        Until then it listens: new clients are told to come back."""
        if num_open := self._service.num_open:
            log.info(
                "requests that may finish within %g s: %d; a second signal ends them now",
                self._service.settings.grace_s, num_open,
            )  # fmt: skip
        draining = asyncio.ensure_future(asyncio.to_thread(self._service.drain))
        while not (draining.done() or self.force_exit):
            await asyncio.wait({draining}, timeout=_LOOK_S)
        await super().shutdown(sockets)
        if self.force_exit:
            await asyncio.to_thread(self._service.end_all)
        await draining

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends the server; the process then ends by itself. A second one ends the process
        at once, and so does the end of its time, whatever this thread is busy with."""
        if current_thread() is not main_thread():
            yield
            return
        numbers = array("q", ending_signals())
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        longest_s = math.ceil(self._service.settings.grace_s + _LONGEST_MARGIN_S)
        library().duodec_end_after(address(numbers), len(numbers), min(longest_s, _MOST_S))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True


class _Loader(Thread):
    """Loads the first model while the server runs, which says meanwhile that it does."""

    def __init__(self, service: Service, server: uvicorn.Server) -> None:
        super().__init__(name="duodec-load", daemon=True)
        self._service, self._server = service, server
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._service.start()
        except Exception as error:  # noqa: BLE001  raised again by the caller
            self.error = error
            self._server.should_exit = True
        else:
            if len(self._service.models.names) == 1:
                gc.collect()
                gc.freeze()  # what lives for ever is not walked over again while clients wait
            log.info("ready", extra={"facts": {"model": self._service.settings.model}})
