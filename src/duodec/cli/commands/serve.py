"""Run `duodec serve`: an OpenAI-compatible server, for many clients at once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from duodec.cli import opening, options
from duodec.cli.commands.ps import announced
from duodec.cli.help import Command
from duodec.cli.output import say, warn
from duodec.cli.spelling import UsageError
from duodec.core.sampling.parameters import fields_of
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BackendUnavailable, BadOption
from duodec.loading.config import EngineConfig
from duodec.machine.install import install_command
from duodec.models import check_reference
from duodec.models.ollama import name_of
from duodec.server.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from duodec.models.metadata import Use
    from duodec.server.models.registry import Engine, Source

_SERVER = "Server"

EPILOG = """
Then:
open http://127.0.0.1:8000 in a browser
give http://127.0.0.1:8000/v1 to Open WebUI, the openai library, LangChain, llm
curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "Once upon a time"}'

Examples:
duodec serve
duodec serve -m qwen2.5-coder-1.5b --port 9000 --alias coder
duodec serve --also coder=qwen2.5-coder-1.5b --max-models 2
duodec serve --also embed=nomic-embed-text-v1.5.gguf --max-models 2  # /v1/embeddings, too
duodec serve -m bge-reranker-v2-m3.gguf  # /v1/rerank
duodec serve --temp 0.7 --top-p 0.95  # of requests that name none
duodec serve --host 0.0.0.0 --api-key "$KEY" --cors-origin https://chat.example.org
DUODEC_PORT=9000 duodec serve  # every option can come from the environment
duodec serve --config serve.yaml  # or from a YAML file: `port: 9000`
"""


@options.derived
def serve(
    *,
    alias: Annotated[str | None, options.option(
        "--alias -a --served-model-name NAME",
        "The name that clients use; by default the target's.", _SERVER
    )] = None,
    also: Annotated[list[str] | None, options.option(
        "--also [NAME=]MODEL",
        "Another model, loaded when a client asks for it; NAME= is the name that clients use, "
        "and options of the model may follow: 'coder=qwen2.5-coder-1.5b -c 16384'. May be "
        "given several times.", _SERVER
    )] = None,
    log_format: Annotated[
        str, options.option("--log-format", "text or json, one line an event.", _SERVER)
    ] = "text",
    method: options.MethodName = "auto",
    config: Annotated[EngineConfig, options.Options(defaults={"datastore": "auto"})],
    settings: Annotated[Settings, options.Options()],
    sampling: Annotated[SamplingParams, options.Options(only=DEFAULTS)],
) -> None:  # fmt: skip
    """Serve a model through OpenAI's interface, and a chat page.

    Requests share the target; the text of each is the same as if it ran alone.

    Nothing is sent anywhere: no telemetry, no update checks.
    """
    try:
        from duodec.server import logs, process
        from duodec.server.service import Service
    except ImportError as error:
        raise BackendUnavailable(
            f"the server needs {error.name}, which is not installed; run: "
            f"{install_command(error.name or 'uvicorn')}"
        ) from error

    config = replace(config, num_slots=settings.num_slots)
    settings = replace(settings, model=alias or served_name(config.target), sampling=sampling)
    models = {settings.model: config, **additional_models(also or [], config, settings.model)}
    logs.set_up(_log_format(log_format))
    tell, caution = (logs.log.info, logs.log.warning) if log_format == "json" else (say, warn)
    sources = {name: source_of(name, models, method, tell, caution) for name in models}
    sock = process.listen(settings)
    service = Service(settings, sources)
    url, whom = _url(sock.getsockname()), "" if settings.api_keys else " for one user,"
    tell(f"serving {', '.join(models)} at {url},{whom} loading; Ctrl-C ends it")
    if not settings.is_loopback and not settings.api_keys:
        caution(
            f"anybody who reaches {settings.host} can use this server; require a key with --api-key"
        )
    with announced(settings.model, url):
        process.serve(service, sock)


def source_of(
    name: str,
    models: Mapping[str, EngineConfig],
    method: str,
    tell: Callable[[str], None] = say,
    caution: Callable[[str], None] = warn,
) -> Source:
    """Return where one of the models comes from. The memory that it takes is reported, and what
    went wrong."""
    from duodec import llm
    from duodec.loading import embedding
    from duodec.loading.load import fits
    from duodec.loading.resolve import resolve_target
    from duodec.server.models.registry import Source

    config = opening.with_datastore(models[name], method)
    chosen = opening.method_or_none(method)
    target = cache(partial(resolve_target, config))
    pair = cache(partial(opening.resolve_for, config, chosen))

    def use() -> Use:
        return embedding.use_of(target())

    def is_embedder() -> bool:
        return use() != "completion"

    def load(taken: int) -> Engine:
        if is_embedder():
            found, use = embedding.load_embedder(target(), caution, taken_bytes=taken)
            tell(opening.embedder_line(use))
            return found
        opened = llm.load(pair(), on_warning=caution, taken_bytes=taken)
        if memory := opened.loaded.memory:
            tell(opening.memory_line(memory))
        return opened

    def may_load(taken: int) -> bool:
        return embedding.fits(target(), taken) if is_embedder() else fits(pair(), taken)

    return Source(load, may_load, chosen, lambda: target().file.path, use)


def _log_format(name: str) -> Literal["text", "json"]:
    if name == "text":
        return "text"
    if name == "json":
        return "json"
    raise BadOption(f"log-format is '{name}'; use text or json")


def _url(address: tuple[object, ...]) -> str:
    host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
    return f"http://{host}:{address[1]}"


# The other models: a name, a model, and options of its own

_NAMED = re.compile(r"([^=/\\:]+)=(.+)")
_ITS_OWN = (  # a model of another backend may not have all of these
    "draft", "context", "target_backend", "dtype", "gpu_layers", "cpu_moe", "n_cpu_moe",
    "override_tensor", "cache_type_k", "cache_type_v", "chat_template",
)  # fmt: skip
_OF_THE_SERVER = ("target", "exact", "fast", "parse_special", *options.GRAMMAR_LIMITS)


def additional_models(
    given: list[str], first: EngineConfig, name_of_first: str
) -> dict[str, EngineConfig]:
    """Return the models of ``--also`` by name. The options that concern the machine are those of
    the first model, unless others are given. Raises BadOption."""
    found: dict[str, EngineConfig] = {}
    for words in given:
        name, config = _model(words, first)
        if name == name_of_first or name in found:
            raise BadOption(f"also is '{words}', and '{name}' is taken; write ANOTHER={words}")
        found[name] = config
    return found


def served_name(target: str) -> str:
    """Return a target's name without its folders."""
    if (name := name_of(target)) != target:
        return name
    path = Path(target).expanduser()
    return path.name if "/" in target and path.exists() else target


def _model(words: str, first: EngineConfig) -> tuple[str, EngineConfig]:
    try:
        model, *arguments = shlex.split(words)  # an empty text is also a ValueError
    except ValueError as error:
        raise BadOption(f"also is '{words}'; name a model, as in coder=MODEL -c 16384") from error
    named = _NAMED.fullmatch(model)
    name, target = named.groups() if named else (served_name(model), model)
    check_reference(target)
    default = EngineConfig()
    shared = replace(first, datastore="auto", **{own: getattr(default, own) for own in _ITS_OWN})
    known = {options.parameter_name(f): f.name for f in fields_of(EngineConfig).values()}
    try:
        config: EngineConfig = _command().main(
            arguments,
            prog_name="also",
            standalone_mode=False,
            default_map={option: getattr(shared, own) for option, own in known.items()},
        )
    except UsageError as error:
        told = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
        raise BadOption(f"also is '{words}': {told}") from error
    except BadOption as error:
        raise BadOption(f"also is '{words}': {error}") from error
    of_server = {own: getattr(first, own) for own in (*_OF_THE_SERVER, "num_slots")}
    return name, replace(config, **{**of_server, "target": target})


def _command() -> Any:
    """Return a command that returns the configuration that its options make."""

    @options.derived
    def model(
        *, config: Annotated[EngineConfig, options.Options(without=_OF_THE_SERVER)]
    ) -> EngineConfig:
        return config

    settings = {**options.CONTEXT_SETTINGS, "help_option_names": []}
    app = typer.Typer(add_completion=False, context_settings=settings)
    app.command(cls=Command)(model)
    return typer.main.get_command(app)
