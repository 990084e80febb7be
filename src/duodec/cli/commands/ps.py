"""Run `duodec ps`: list the servers that run on this machine."""

from __future__ import annotations

import json as json_format
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from duodec.cli.options import Json
from duodec.cli.output import put, put_table, say_dim
from duodec.errors import BadOption
from duodec.machine.files import cache_folder

EPILOG = {
    "ps": "Examples:\nduodec ps\nduodec ps --json",
    "stop": "Examples:\nduodec stop\nduodec stop smollm2\nduodec stop 8000\n"
    "duodec stop http://127.0.0.1:8000",
}

_SCHEMA_VERSION = 1
_PATIENCE_S = 2.0  # how long a server may take to report its state
_STOPPING_S = 5.0  # how long to wait for a server to end


@dataclass(frozen=True)
class RunningServer:
    """Describe a server of this user."""

    model: str
    url: str
    pid: int
    started_s: float  # start of its process, since the epoch


def folder() -> Path:
    """Return the folder in which servers announce themselves, with one file each."""
    return cache_folder() / "servers"


@contextmanager
def announced(model: str, url: str) -> Iterator[None]:
    """While entered, let `duodec ps` list this process. It serves even if the folder cannot be
    written."""
    import psutil

    serving = RunningServer(model, url, os.getpid(), psutil.Process().create_time())
    file = folder() / f"{serving.pid}.json"
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        file.write_text(json_format.dumps(asdict(serving)), "utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def servers() -> list[RunningServer]:
    """Return the running servers, oldest first, and remove the files of servers that were
    killed."""
    found = []
    for file in folder().glob("*.json"):
        try:
            serving = RunningServer(**json_format.loads(file.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # it is being written, or is not ours
        if _runs(serving):
            found.append(serving)
        else:
            with suppress(OSError):
                file.unlink()
    return sorted(found, key=lambda serving: serving.started_s)


def _runs(serving: RunningServer) -> bool:
    """Return whether this process is running; its number may belong to another process by now."""
    import psutil

    try:
        return abs(psutil.Process(serving.pid).create_time() - serving.started_s) < 1
    except psutil.Error:
        return False


def _state(serving: RunningServer) -> str:
    """Return the server's own state: ready, loading or shutting down, or nothing."""
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(f"{serving.url}/health", timeout=_PATIENCE_S) as response:  # noqa: S310
            status = _status(response) or "ok"
    except HTTPError as error:
        return _status(error) or f"error {error.code}"
    except (OSError, ValueError):
        return "no response"
    return "ready" if status == "ok" else status


def _status(response: IO[bytes]) -> str:
    """Return the status in one of our responses; empty for another program's. Raises OSError."""
    try:
        return str(json_format.load(response)["status"])
    except (ValueError, KeyError, TypeError):
        return ""


def ps(*, json: Json = False) -> None:
    """List the servers of `duodec serve` that run on this machine."""
    found = [(serving, _state(serving)) for serving in servers()]
    if json:
        listed: list[dict[str, Any]] = [{**asdict(one), "state": state} for one, state in found]
        record = {"schema_version": _SCHEMA_VERSION, "servers": listed}
        put(f"{json_format.dumps(record, ensure_ascii=False)}\n")
        return
    if not found:
        say_dim("no server runs; start one with duodec serve")
        return
    put_table(
        ("MODEL", "URL", "PID", "UP", "STATE"),
        [
            (one.model, one.url, str(one.pid), _age(time.time() - one.started_s), state)
            for one, state in found
        ],
    )


def stop(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            help="The model that it serves, its URL or its port; needed if several run."
        ),
    ] = None,
) -> None:
    """Stop a server of `duodec serve` on this machine, as Ctrl-C does."""
    import psutil

    running = servers()
    found = [one for one in running if model is None or _is_named(one, model)]
    listed = ", ".join(f"{one.model} at {one.url}" for one in found or running)
    if not found:
        others = f"{listed} does" if running else "start one with `duodec serve`"
        raise BadOption(f"no server {f'of {model} ' if model else ''}runs; {others}")
    if len(found) > 1:
        raise BadOption(
            f"several servers run: {listed}; name the model, the URL or the port of one"
        )
    process = psutil.Process(found[0].pid)
    process.terminate()
    try:
        process.wait(_STOPPING_S)
    except psutil.TimeoutExpired:
        say_dim(f"{found[0].model} finishes its requests and ends then")
        return
    say_dim(f"stopped {found[0].model} at {found[0].url}")


def _is_named(serving: RunningServer, name: str) -> bool:
    """Return whether a name is the server's model, its URL or its port."""
    is_port = name.isdecimal() and serving.url.endswith(f":{int(name)}")
    return is_port or name in (serving.model, serving.url)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
