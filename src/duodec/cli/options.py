"""Derive the options of commands from the dataclasses that they fill, and share the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from duodec.cli.spelling import canonical
from duodec.core.parameters import Field, fields_of
from duodec.methods.registry import METHODS, names

_DECODING, _OUTPUT, _PROMPTS = "Decoding", "Output", "Prompts"
_PANELS = (  # in the order in which the help shows them
    None, "Server", "Limits", "Access", "Benchmark", "Plan", "Distillation", "Drafter",
    _PROMPTS, "Models", _DECODING, "Sampling", "Machine", _OUTPUT,
)  # fmt: skip

_SEVERAL = tuple[str, ...]  # the type of fields whose options may be given several times

CONTEXT_SETTINGS = {"token_normalize_func": canonical, "help_option_names": ["-h", "--help"]}


def methods_help() -> str:
    """One line on every method, for the end of a help text."""
    lines = [f"[bold]{name}[/bold]  {_first_line(kind)}" for name, kind in METHODS.items()]
    lines += [f"[bold]{name}[/bold]  From another package." for name in names()[len(METHODS) :]]
    lines.append("[bold]module:Class[/bold]  A method of your own: docs/methods.md.")
    return "\n\n".join(["[bold]Methods[/bold]", *lines])


def _first_line(kind: object) -> str:
    """The first line of a method's module."""
    return (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n")[0]


GRAMMAR_LIMITS = ("grammar_s", "grammar_bytes")  # where there are no grammars, they say nothing


@dataclass(frozen=True)
class Options:
    """Which fields of a dataclass are options of a command, and the command's own defaults."""

    only: tuple[str, ...] = ()  # empty: every described field
    without: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def of(self, record: type) -> list[Field]:
        fields = [f for f in fields_of(record).values() if f.name not in self.without]
        return [f for f in fields if not self.only or f.name in self.only]


def derived(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each parameter of a command that is `Annotated` with `Options` by one option a field
    of its dataclass; the command is called with the dataclass."""
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
        parameters += [_option(name, f, record, options.defaults) for name, f in own]
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


def _option(
    name: str, field: Field, record: type, defaults: Mapping[str, Any]
) -> inspect.Parameter:
    """A field as an option of typer."""
    default = defaults.get(field.name, getattr(record, field.name))
    kind: Any = field.kind
    if kind == _SEVERAL:
        kind, default = list[str] | None, list(default) or None
    elif str in get_args(kind) and float in get_args(kind):  # a number, or a text that says more
        kind, default = str, f"{default:g}"
    option = typer.Option(
        *field.flags,
        help=field.parameter.help.replace("[", "\\["),  # rich would read it as markup
        metavar=field.parameter.metavar,
        show_default=default is not None,
        rich_help_panel=field.parameter.panel or None,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, option], default=default
    )


def _value(field: Field, given: Any) -> Any:
    """An option's value as its field stores it."""
    return tuple(given or ()) if field.kind == _SEVERAL else given


def _panel(parameter: inspect.Parameter) -> str | None:
    """The part of the help that lists a command's own parameter."""
    infos = getattr(parameter.annotation, "__metadata__", ())
    return next((info.rich_help_panel for info in infos), None)


# Decoding

MethodName = Annotated[
    str,
    typer.Option(
        "--method",
        help="How to decode; auto: what pays on this machine and text, plain decoding "
        "included; stream where you name a draft. All of them are listed below.",
        metavar="NAME",
        rich_help_panel=_DECODING,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        help="End before this text; may be given several times.",
        metavar="TEXT",
        rich_help_panel=_DECODING,
        show_default=False,
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        "--system",
        help="Instructions that come before the prompt.",
        metavar="TEXT",
        rich_help_panel=_DECODING,
        show_default=False,
    ),
]

ParseSpecial = Annotated[
    bool,
    typer.Option(
        "--parse-special",
        help="Read control tokens spelled in prompts and messages (<|im_end|>) as control tokens; "
        "otherwise they are text, and only the chat template writes control tokens.",
        rich_help_panel=_DECODING,
    ),
]

# Prompts

Prompt = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        "-p",
        help="The prompt as an option; it follows the text of --file, if both are given.",
        metavar="PROMPT",
        show_default=False,
    ),
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        help="A file whose text is the prompt, or comes before it.",
        metavar="FILE",
        show_default=False,
    ),
]
Tasks = Annotated[
    str,
    typer.Option(
        "--tasks",
        help="Tasks, comma-separated: mt_bench, translation, summarization, qa, math_reasoning, "
        "rag, humaneval; or all.",
        metavar="A,B,...",
        rich_help_panel=_PROMPTS,
    ),
]
PromptFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A folder of prompts in Spec-Bench's format; without it, our own.",
        metavar="FOLDER",
        show_default=False,
        rich_help_panel=_PROMPTS,
    ),
]

# Simulations

DraftCosts = Annotated[
    str | None,
    typer.Option(
        "--draft-ms",
        help="Time of a forward pass of the draft model in a simulation, by its tokens: "
        "TOKENS:MS, comma-separated; measured at the start if absent.",
        metavar="1:1.3,4:2.5,...",
        show_default=False,
        rich_help_panel="Benchmark",
    ),
]

SimulateAs = Annotated[
    str,
    typer.Option(
        "--simulate-as",
        help="The shape of the target's forward pass in a simulation: tree (up to 80 tokens, as "
        "many rows), chain (the same, without branches), torch (trees, 32 rows a pass), llama.cpp "
        "(on a device: what it chooses for these costs, chains in passes of one number of rows, or "
        "trees); torch:64 and llama.cpp:8 say the rows.",
        metavar="NAME",
        rich_help_panel="Benchmark",
    ),
]
HostCosts = Annotated[
    str | None,
    typer.Option(
        "--host-us",
        help="Microseconds of the host's work in a simulation: of a row copied from the device, "
        "drawn from, searched for its likeliest tokens, and of a draft selected; 0: none. Measured "
        "at the start if absent.",
        metavar="copy:8,draw:120,candidates:60,selection:40",
        show_default=False,
        rich_help_panel="Benchmark",
    ),
]

# Output

ShowDraft = Annotated[
    bool,
    typer.Option(
        "--show-draft",
        help="Tint and underline accepted draft text; on a terminal only.",
        rich_help_panel=_OUTPUT,
    ),
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain",
        help="The text as the model writes it; on a terminal, Markdown is rendered otherwise.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No closing lines; warnings stay.", rich_help_panel=_OUTPUT),
]
