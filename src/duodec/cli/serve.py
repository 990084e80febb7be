"""`duodec serve`: an OpenAI-compatible server, for many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from duodec.cli import choices, options
from duodec.cli.output import say, warn
from duodec.errors import BackendUnavailable, BadOption

if TYPE_CHECKING:
    from duodec.engine import Engine
    from duodec.loading import EngineConfig
    from duodec.server.service import Service

_SERVER, _LIMITS, _ACCESS = "Server", "Limits", "Access"

EPILOG = f"""
[bold]Then[/bold]

open http://127.0.0.1:8000 in a browser

give http://127.0.0.1:8000/v1 to Open WebUI, the openai library, LangChain, llm

curl http://127.0.0.1:8000/v1/completions -d '{{"prompt": "Once upon a time"}}'

[bold]Examples[/bold]

duodec serve

duodec serve -m qwen2.5-coder-1.5b --port 9000 --alias coder

duodec serve --host 0.0.0.0 --api-key "$KEY" --cors-origin https://chat.example.org

DUODEC_PORT=9000 duodec serve     every option can come from the environment

duodec serve --config serve.conf     or from a file: `port: 9000`, one option a line

{options.methods_help()}
"""


def _defaults(context: typer.Context, file: Path | None) -> Path | None:
    """The options of a file become the defaults of this command."""
    if file is not None:
        found = read_options(file)
        known = [str(parameter.name) for parameter in context.command.params]
        for name in found:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise BadOption(f"{file} has no option '{name}' to set{hint}")
        context.default_map = {**(context.default_map or {}), **found}
    return file


def read_options(file: Path) -> dict[str, object]:
    """The options of a file: `name: value` or `name = value` a line, # begins a comment. Raises
    BadOption, which names the line."""
    found: dict[str, object] = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"cannot read {file} ({error}); name a text file with --config") from error
    for number, line in enumerate(lines, 1):
        words = line.split(" #")[0].strip()
        if not words or words.startswith("#"):
            continue
        at = min((i for i in (words.find(":"), words.find("=")) if i > 0), default=-1)
        if at < 0:
            raise BadOption(f"line {number} of {file} is '{words}'; write, say, port: 9000")
        name = options.canonical(words[:at].strip().lstrip("-")).replace("-", "_")
        value = words[at + 1 :].strip().strip("\"'")
        if name in ("api_key", "cors_origin"):  # may be given several times
            known = found.get(name, [])
            assert isinstance(known, list)
            found[name] = [*known, value]
        else:
            found[name] = value
    return found


def serve(
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="A file with options, one a line; the command line and the environment win.",
            metavar="FILE",
            callback=_defaults,
            is_eager=True,
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Where to listen; 0.0.0.0: everywhere.", rich_help_panel=_SERVER),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.", rich_help_panel=_SERVER)] = 8000,
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias",
            "-a",
            "--served-model-name",
            help="The name that clients ask for; by default the target's.",
            metavar="NAME",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format", help="text or json, a line an event.", rich_help_panel=_SERVER
        ),
    ] = "text",
    metrics_prefix: Annotated[
        str,
        typer.Option(
            "--metrics-prefix",
            help="Of the names on /metrics: duodec, or vllm for its dashboards.",
            rich_help_panel=_SERVER,
        ),
    ] = "duodec",
    parallel: Annotated[
        int,
        typer.Option("--parallel", "-np", help="Answers in work at once.", rich_help_panel=_LIMITS),
    ] = 4,
    queue: Annotated[
        int,
        typer.Option(
            "--queue",
            help="Answers that may wait; beyond them clients are told to come back (429).",
            rich_help_panel=_LIMITS,
        ),
    ] = 64,
    timeout: Annotated[
        float,
        typer.Option("--timeout", help="Seconds that a request may take.", rich_help_panel=_LIMITS),
    ] = 600.0,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            help="Seconds that answers in work are given when the server is told to stop.",
            rich_help_panel=_LIMITS,
        ),
    ] = 30.0,
    max_body: Annotated[
        int,
        typer.Option("--max-body", help="Bytes of a request at most.", rich_help_panel=_LIMITS),
    ] = 16 << 20,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            help="Ask clients for this key (Authorization: Bearer KEY); several may be given.",
            metavar="KEY",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            help="Pages of this origin may ask too; *: all. Pages of this machine always may.",
            metavar="ORIGIN",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    target: options.Target = "smollm2",
    draft: options.DraftModel = "auto",
    target_backend: options.TargetBackend = "auto",
    datastore: options.DatastoreFile = "auto",
    offline: options.Offline = False,
    method: options.MethodName = "auto",
    exact: options.Exact = False,
    fast: options.Fast = False,
    pace: options.Pace = 0.0,
    parse_special: options.ParseSpecial = False,
    context: options.ContextSize = None,
    threads: options.Threads = None,
    draft_threads: options.DraftThreads = None,
    draft_window: options.DraftWindow = None,
    gpu_layers: options.GpuLayers = -1,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Serve a model to programs that speak OpenAI's interface, and a chat page to people.

    Requests share the target; the text of each is what it would be alone.

    Nothing is sent anywhere: no telemetry, no look for updates.
    """
    from duodec.loading import EngineConfig

    try:
        from duodec.server import logs, running
        from duodec.server.service import Service
        from duodec.server.settings import Settings
    except ImportError as error:
        raise BackendUnavailable(
            f"the server needs {error.name}, which is not installed; pip install 'duodec[server]'"
        ) from error

    config = EngineConfig(
        target=target, draft=draft, target_backend=target_backend, dtype=dtype, device=device,
        context=context, threads=threads, draft_threads=draft_threads, draft_window=draft_window,
        gpu_layers=gpu_layers, exact=exact, fast=fast, pace=pace, offline=offline,
        parse_special=parse_special, num_slots=parallel,
        datastore=choices.datastore_or_none(datastore, method),
    )  # fmt: skip
    chosen = choices.method_or_none(method, draft)
    settings = Settings(
        model=alias or _name(target), host=host, port=port, api_keys=tuple(api_key or ()),
        cors_origins=tuple(cors_origin or ()), num_slots=parallel, num_queued=queue,
        max_body_bytes=max_body, timeout_s=timeout, grace_s=grace, method=chosen,
        metrics_prefix=metrics_prefix,
    )  # fmt: skip
    logs.set_up(_log_format(log_format))
    sock = running.listen(settings)
    service = Service(settings)
    say(f"serving {settings.model} at {_url(sock.getsockname())}, loading; Ctrl-C ends it")
    if not settings.is_loopback and not settings.api_keys:
        warn(f"anybody who reaches {host} can use this server; ask for a key with --api-key")
    running.serve(service, _loader(config, chosen), sock)


def _loader(config: EngineConfig, method: str | None) -> Callable[[Service], Callable[[], None]]:
    """How the model is loaded, in a thread of its own."""

    def load(service: Service) -> Callable[[], None]:
        from duodec import loading
        from duodec.server import opening

        draft = choices.draft_reference(config, method)
        engine: Engine = loading.load(
            replace(config, draft=config.draft if draft else None), on_warning=warn
        )
        try:
            opening.start(service, engine, config)
        except BaseException:
            engine.close()
            raise
        return engine.close

    return load


def _name(target: str) -> str:
    """A target's name without the folders it lies in."""
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
