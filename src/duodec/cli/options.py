"""Derive the options of commands from the dataclasses that they fill, and share the others.

`register` adds the options that every command has.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from duodec.backends.curves import published
from duodec.cli import config_file
from duodec.cli.help import Command, show_all
from duodec.cli.spelling import canonical
from duodec.core.sampling.parameters import Field, fields_of
from duodec.errors import BadOption

_DECODING, _OUTPUT, _PROMPTS = "Decoding", "Output", "Prompts"
_PANELS = (  # in the order in which the help shows them
    None, "Server", "Limits", "Access", "Audit", "Benchmark", "Plan", "Distillation", "Drafter",
    _PROMPTS, "Models", _DECODING, "Sampling", "Machine", _OUTPUT,
)  # fmt: skip

_SEVERAL = tuple[str, ...]  # type of fields whose options may be given several times

CONTEXT_SETTINGS = {"token_normalize_func": canonical, "help_option_names": ["-h", "--help"]}


GRAMMAR_LIMITS = ("grammar_s", "grammar_bytes")  # without grammars these have no effect
OF_DECODING = (  # where models are only measured, these have no effect
    "datastore", "draft_window", "draft_head", "draft_weights", "draft_parallel", "pace",
    *GRAMMAR_LIMITS,
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Say which fields of a dataclass are options of a command, with the command's own defaults and
    help texts."""

    only: tuple[str, ...] = ()  # empty: every described field
    without: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    helps: Mapping[str, str] = field(default_factory=dict)

    def of(self, record: type) -> list[Field]:
        fields = [f for f in fields_of(record).values() if f.name not in self.without]
        return [f for f in fields if not self.only or f.name in self.only]


def derived(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each parameter of a command that is `Annotated` with `Options` by one option per
    field of its dataclass. The command is called with the dataclass."""
    parameters: list[inspect.Parameter] = []
    records: dict[str, tuple[type, dict[str, Field]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        record, *notes = get_args(parameter.annotation) or (parameter.annotation,)
        options = next((note for note in notes if isinstance(note, Options)), None)
        if options is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        own = [(parameter_name(f), f) for f in options.of(record)]
        records[parameter.name] = (record, dict(own))
        parameters += [_option(name, f, record, options) for name, f in own]
    parameters.sort(key=lambda parameter: _PANELS.index(_panel(parameter)))

    def run(**values: Any) -> Any:
        for name, (record, own) in records.items():
            values[name] = record(**{f.name: _value(f, values.pop(o)) for o, f in own.items()})
        return command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__module__ = command.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def parameter_name(field: Field) -> str:
    return field.option.replace("-", "_")


def _option(name: str, field: Field, record: type, options: Options) -> inspect.Parameter:
    """Return a field as an option of typer."""
    default = options.defaults.get(field.name, getattr(record, field.name))
    kind: Any = field.kind
    if kind == _SEVERAL:
        kind, default = list[str] | None, list(default) or None
    elif str in get_args(kind) and float in get_args(kind):  # a number, or a text that says more
        kind, default = str, f"{default:g}"
    option = typer.Option(
        *field.flags,
        help=options.helps.get(field.name, field.parameter.help),
        metavar=field.parameter.metavar,
        show_default=default not in (None, ""),
        rich_help_panel=field.parameter.panel or None,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, option], default=default
    )


def _value(field: Field, given: Any) -> Any:
    """Return an option's value as its field stores it."""
    return tuple(given or ()) if field.kind == _SEVERAL else given


def _panel(parameter: inspect.Parameter) -> str | None:
    """Return the part of the help that lists a command's own parameter."""
    infos = getattr(parameter.annotation, "__metadata__", ())
    return next((info.rich_help_panel for info in infos), None)


def option(spelled: str, words: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option, spelled as its help shows it: its flags, then the name of its value."""
    flags = [word for word in spelled.split() if word.startswith("-")]
    metavar = spelled.split()[-1] if len(flags) < len(spelled.split()) else None
    return typer.Option(*flags, help=words, metavar=metavar, rich_help_panel=panel, **more)


# Decoding

MethodName = Annotated[str, option(
    "--method NAME",
    "How to decode; auto: what pays on this machine and text, plain decoding included. All of "
    "them are listed below.", _DECODING
)]  # fmt: skip
Stop = Annotated[
    list[str] | None,
    option("--stop TEXT", "End before this text; may be given several times.", _DECODING),
]
System = Annotated[
    str | None, option("--system TEXT", "Instructions that come before the prompt.", _DECODING)
]

# Prompts

Prompt = Annotated[str | None, option(
    "--prompt -p PROMPT",
    "The prompt as an option; it follows the text of --file, if both are given."
)]  # fmt: skip
PromptFile = Annotated[
    Path | None, option("--file -f FILE", "A file whose text is the prompt, or comes before it.")
]
Tasks = Annotated[str, option(
    "--tasks A,B,...",
    "Tasks, comma-separated: mt_bench, translation, summarization, qa, math_reasoning, rag, "
    "humaneval; or all.", _PROMPTS
)]  # fmt: skip
PromptFolder = Annotated[Path | None, option(
    "--data FOLDER", "A folder of prompts in Spec-Bench's format; without it, our own.", _PROMPTS
)]  # fmt: skip

# Simulations

CURVES = f"""Curves:
25  milliseconds, however many rows (to 81): a limit that flatters, no hardware's curve
1:47.6,2:57,4:64,8:95  milliseconds by rows; linear between, beyond as between the last two
{", ".join(published())}  measured by others up to a number of rows, and a model beyond it: \
results and docs/evaluation.md name the sources
curves.json:NAME  of a file that `python -m benchmarks gpu` has measured
roofline:1008GB/s,165TFLOPS,4.7GB  a model, not a measurement: the longer of reading the weights \
and of the rows' arithmetic, at 4.5 bits a weight; a fourth part, such as 16bit, says otherwise
"""

DraftCosts = Annotated[str | None, option(
    "--draft-ms 1:1.3,4:2.5,...",
    "Time of a forward pass of the draft model in a simulation, by its tokens: TOKENS:MS, "
    "comma-separated; measured at the start if absent.", "Benchmark"
)]  # fmt: skip

SimulateAs = Annotated[str | None, option(
    "--simulate-as NAME",
    "The shape of the target's forward pass in a simulation: tree (up to 80 tokens, as many "
    "rows), chain (the same, without branches), torch (on a GPU: trees, in passes of 8, 16 or 32 "
    "rows, as it chooses for these costs), llama.cpp (on a device: chains, in passes of as many "
    "rows as it chooses); torch:64 and llama.cpp:8 say the rows. By default "
    "what the curve's name says: llama.cpp of quantised weights, torch of 16 bits, tree of "
    "numbers.", "Benchmark"
)]  # fmt: skip
HostCosts = Annotated[str | None, option(
    "--host-us copy:8,draw:120,candidates:60,selection:40",
    "Microseconds of the host's work in a simulation: of a row copied from the device, drawn "
    "from, searched for its likeliest tokens, of a draft selected, of all else between two passes "
    "(between:60), and of a message to the drafter (handover:300, which is taken where it is not "
    "given); 0: none but that. Measured at the start if absent. heads:1500: of the target's own "
    "heads a pass; else they cost what they read of its weights.", "Benchmark"
)]  # fmt: skip

# Measurements

Wait = Annotated[float, option(
    "--wait SECONDS",
    "Most seconds to wait for other programs that use the cores; nothing is measured while "
    "they do.", "Machine"
)]  # fmt: skip

# Output

Json = Annotated[bool, option("--json", "One JSON object instead.", _OUTPUT)]
ShowDraft = Annotated[
    bool,
    option("--show-draft", "Tint and underline accepted draft text; on a terminal only.", _OUTPUT),
]
Plain = Annotated[bool, option(
    "--plain", "The text as the model writes it; on a terminal, Markdown is rendered otherwise.",
    _OUTPUT
)]  # fmt: skip
Quiet = Annotated[bool, option("--quiet -q", "No closing lines; warnings stay.", _OUTPUT)]

# Of every command

_COMMON_PANEL = "Common"
LEVELS = ("debug", "info", "warning", "error")


def _set_level(level: str | None) -> str | None:
    if level is None:
        return None
    if level.lower() not in LEVELS:
        raise BadOption(f"--log-level is '{level}'; choose from: {', '.join(LEVELS)}")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for name in ("", "duodec"):
        logging.getLogger(name).setLevel(level.upper())
    if level.lower() == "debug":
        os.environ["DUODEC_LLAMA_LOG"] = "1"
    return level.lower()


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A YAML file with options by their long names; without it ~/.config/duodec/"
        "config.yaml, if there is one. The command line and the environment override it.",
        metavar="FILE",
        envvar=[config_file.VARIABLE, "DUODEC_CONFIG_FILE"],
        callback=config_file.apply,
        is_eager=True,
        show_default=False,
        rich_help_panel=_COMMON_PANEL,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        help="How much is logged to stderr: debug (with llama.cpp's own log), info, warning or "
        "error.",
        metavar="LEVEL",
        callback=_set_level,
        show_default=False,
        rich_help_panel=_COMMON_PANEL,
    ),
]
HelpAll = Annotated[bool, typer.Option(
    "--help-all", help="Show every option.", callback=show_all, is_eager=True,
    rich_help_panel=_COMMON_PANEL
)]  # fmt: skip
_COMMON: dict[str, tuple[Any, Any]] = {
    "config_file": (ConfigFile, None),
    "log_level": (LogLevel, None),
    "help_all": (HelpAll, False),
}


def register(app: typer.Typer, commands: Sequence[tuple[str, Callable[..., None]]]) -> None:
    """Add commands by name. The ``EPILOG`` of a command's module follows its help; a module of
    several commands has one for each, by name."""
    for name, command in commands:
        words = vars(inspect.getmodule(command)).get("EPILOG", "")
        if isinstance(words, Mapping):
            words = words.get(name, "")
        settings: dict[str, Any] = dict(CONTEXT_SETTINGS)
        if name == "serve":
            settings["auto_envvar_prefix"] = "DUODEC"
        app.command(name, cls=Command, epilog=words, context_settings=settings)(_common(command))


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every command has; the command itself does not receive them."""
    signature = inspect.signature(command, eval_str=True)
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in _COMMON.items()
        if name not in signature.parameters
    ]

    def run(**values: Any) -> None:
        command(**{p.name: values[p.name] for p in own})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    return run
