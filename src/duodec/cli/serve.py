"""Run `duodec serve`: an OpenAI-compatible server, for many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from duodec.cli import choices, options
from duodec.cli.output import say, warn
from duodec.cli.ps import announced
from duodec.errors import BackendUnavailable, BadOption
from duodec.models.config import EngineConfig
from duodec.server.settings import Settings

if TYPE_CHECKING:
    from duodec.llm import LLM
    from duodec.server.service import Service

_SERVER = "Server"

EPILOG = """
[bold]Then[/bold]

open http://127.0.0.1:8000 in a browser

give http://127.0.0.1:8000/v1 to Open WebUI, the openai library, LangChain, llm

curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "Once upon a time"}'

[bold]Examples[/bold]

duodec serve

duodec serve -m qwen2.5-coder-1.5b --port 9000 --alias coder

duodec serve --host 0.0.0.0 --api-key "$KEY" --cors-origin https://chat.example.org

DUODEC_PORT=9000 duodec serve     every option can come from the environment

duodec serve --config serve.yaml     or from a YAML file: `port: 9000`
"""


@options.derived
def serve(
    *,
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias",
            "-a",
            "--served-model-name",
            help="The name that clients use; by default the target's.",
            metavar="NAME",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format", help="text or json, one line an event.", rich_help_panel=_SERVER
        ),
    ] = "text",
    method: options.MethodName = "auto",
    config: Annotated[EngineConfig, options.Options(defaults={"datastore": "auto"})],
    settings: Annotated[Settings, options.Options()],
) -> None:
    """Serve a model through OpenAI's interface, and a chat page.

    Requests share the target; the text of each is the same as if it ran alone.

    Nothing is sent anywhere: no telemetry, no update checks.
    """
    try:
        from duodec.server import logs, running
        from duodec.server.service import Service
    except ImportError as error:
        raise BackendUnavailable(
            f"the server needs {error.name}, which is not installed; pip install 'duodec[server]'"
        ) from error

    config = choices.with_datastore(replace(config, num_slots=settings.num_slots), method)
    chosen = choices.method_or_none(method, config.draft)
    settings = replace(settings, model=alias or _name(config.target), method=chosen)
    logs.set_up(_log_format(log_format))
    sock = running.listen(settings)
    service = Service(settings)
    say(f"serving {settings.model} at {_url(sock.getsockname())}, loading; Ctrl-C ends it")
    if not settings.is_loopback and not settings.api_keys:
        warn(
            f"anybody who reaches {settings.host} can use this server; require a key with --api-key"
        )
    with announced(settings.model, _url(sock.getsockname())):
        running.serve(service, _loader(config, chosen), sock)


def _loader(config: EngineConfig, method: str | None) -> Callable[[Service], Callable[[], None]]:
    """A function that loads the model, in its own thread."""

    def load(service: Service) -> Callable[[], None]:
        from duodec import loading

        draft = choices.draft_reference(config, method)
        llm: LLM = loading.load(
            replace(config, draft=config.draft if draft else None), on_warning=warn
        )
        try:
            service.start(llm)
        except BaseException:
            llm.close()
            raise
        return llm.close

    return load


def _name(target: str) -> str:
    """A target's name without its folders."""
    return Path(target).name if "/" in target and Path(target).exists() else target


def _log_format(name: str) -> Literal["text", "json"]:
    if name == "text":
        return "text"
    if name == "json":
        return "json"
    raise BadOption(f"log-format is '{name}'; use text or json")


def _url(address: tuple[object, ...]) -> str:
    host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
    return f"http://{host}:{address[1]}"
