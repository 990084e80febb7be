"""Define the slash commands of `duodec chat`: a table, and what each does to a conversation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duodec.cli import opening
from duodec.cli.output import say
from duodec.cli.spelling import canonical
from duodec.cli.summary import draft_line, speed_line
from duodec.core.sampling.parameters import fields_of
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.methods.registry import DEFAULT_METHOD
from duodec.methods.registry import method as method_named
from duodec.models import ollama
from duodec.models.aliases import ALIASES

if TYPE_CHECKING:
    from duodec.cli.chat.conversation import Conversation

_SAMPLING = {f.name: f.number for f in fields_of(SamplingParams).values() if f.number}
SETTINGS = ("system", "method", "max_tokens", *_SAMPLING)
LEAVE = ("/bye", "/exit", "/quit")


class Leave(Exception):
    """Raised when the user ends the chat."""


def run(line: str, chat: Conversation) -> None:
    """Run a line that begins with a slash. Raises Leave, and BadOption for an invalid command."""
    name, _, rest = line.strip().partition(" ")
    name = name.lower()
    if name in LEAVE:
        raise Leave
    if name not in COMMANDS:
        near = get_close_matches(name, [*COMMANDS, *LEAVE], 1)
        hint = f"did you mean {near[0]}?" if near else "/? lists the commands"
        raise BadOption(f"unknown command {name}; {hint}")
    COMMANDS[name][0](chat, rest.strip())


def _help(chat: Conversation, rest: str) -> None:
    for name, (_, usage) in COMMANDS.items():
        if name != "/help":
            say(f"  {name:<8} {usage}", hang=11)
    say(f"  {' '.join(LEAVE)}   leave, as Ctrl-D does")
    say('  """ opens a message of several lines, and """ closes it')


def _set(chat: Conversation, rest: str) -> None:
    name, _, value = rest.removeprefix("parameter ").strip().partition(" ")
    name, value = canonical(name.lower()).replace("-", "_"), value.strip()
    if not name:
        _show(chat, "")
    elif name == "system":
        chat.system = value.strip('"') or None
    elif name == "method":
        set_method(chat, value)
    elif name == "max_tokens":
        chat.max_tokens = None if value in ("", "none") else _number(name, value, int)
        opening.check_length(chat.max_tokens, ())
    elif name in _SAMPLING:
        number = _number(name, value, _SAMPLING[name])
        changed: dict[str, Any] = {name: number}
        chat.sampling = replace(chat.sampling, **changed)
    else:
        near = get_close_matches(name, SETTINGS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose from: {', '.join(SETTINGS)}"
        raise BadOption(f"unknown setting {name}; {hint}")


def set_method(chat: Conversation, name: str) -> None:
    """Use a method. Raises BadOption for an unknown method, and for one without what it needs."""
    chosen = opening.method_or_none(name)
    wanted = method_named(chosen) if chosen else None
    if wanted and wanted.needs_draft_model and chat.engine.loaded.drafter is None:
        raise BadOption(f"method '{name}' needs a draft model; start the chat with --draft")
    if wanted and wanted.needs_datastore and chat.engine.loaded.datastore is None:
        raise BadOption(f"method '{name}' needs a datastore; start the chat with --method {name}")
    chat.method = chosen


def _number(name: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise BadOption(f"{name} is {value!r}; write a number") from None


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show(chat: Conversation, rest: str) -> None:
    say(f"  target {chat.models.name}, draft {chat.models.draft or 'none'}")
    say(f"  method {chat.method or DEFAULT_METHOD}")
    say(f"  system {chat.system or 'none'}")
    say(f"  max_tokens {chat.max_tokens or 'none'}")
    say("  " + ", ".join(f"{name} {_short(getattr(chat.sampling, name))}" for name in _SAMPLING))
    used, size = chat.num_tokens(), chat.engine.loaded.num_context
    say(f"  {len(chat.messages)} messages, {used} of {size} tokens of the context")


def _clear(chat: Conversation, rest: str) -> None:
    chat.messages.clear()
    chat.attachment = ""
    say("  the conversation is cleared")


def _regen(chat: Conversation, rest: str) -> None:
    chat.regenerate()


def _undo(chat: Conversation, rest: str) -> None:
    first, _, more = chat.undo().partition("\n")
    say(f"  taken back: {first}{' ...' if more else ''}")


def _model(chat: Conversation, rest: str) -> None:
    if not rest:
        names = ", ".join([*ALIASES, *(model.name for model in ollama.installed())])
        say(f"  {chat.models.name}; /model NAME takes another: {names}, or a file")
        return
    chat.models.switch(rest)
    draft = chat.models.draft
    say(f"  {rest}{f' with {draft}' if draft else ''}; the conversation goes on")


def _stats(chat: Conversation, rest: str) -> None:
    if chat.last is None:
        raise BadOption("there is no response yet; send a message first")
    stats = chat.last.finished.stats
    say(f"  {speed_line(stats)}")
    say(f"  {draft_line(stats, chat.last.method, chat.draft_of(chat.last))}")


def _draft(chat: Conversation, rest: str) -> None:
    if rest not in ("on", "off"):
        raise BadOption(f"/draft is {rest!r}; use /draft on or /draft off")
    if rest == "on" and chat.engine.loaded.drafter is None:
        raise BadOption("no draft model is loaded; start the chat with --draft")
    chat.method = None if rest == "on" else "ar"


def _save(chat: Conversation, rest: str) -> None:
    text = json.dumps({"messages": chat.all_messages()}, ensure_ascii=False, indent=1)
    try:
        _path(rest).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadOption(f"cannot write {rest} ({error.strerror}); choose another file") from error
    say(f"  saved {len(chat.messages)} messages to {rest}")


def _load(chat: Conversation, rest: str) -> None:
    try:
        loaded = json.loads(_text_of(rest))
    except json.JSONDecodeError as error:
        raise BadOption(f"{rest} is not JSON ({error}); give a file of /save") from error
    if isinstance(loaded, dict):
        loaded = loaded.get("messages")
    is_good = isinstance(loaded, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) and "content" in item
        for item in loaded
    )
    if not is_good:
        raise BadOption(f"{rest} holds no messages; give a JSON list of role and content")
    chat.take_over(loaded)
    say(f"  {len(chat.messages)} messages from {rest}")


def _read(chat: Conversation, rest: str) -> None:
    text = _text_of(rest)
    chat.attachment += f"{text}\n\n"
    say(f"  {rest} ({len(text)} characters) goes before your next message")


def _path(name: str) -> Path:
    if not name:
        raise BadOption("which file? write its name after the command")
    return Path(name).expanduser()


def _text_of(name: str) -> str:
    try:
        return _path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise BadOption(f"cannot read {name} ({error.strerror}); check the name") from error
    except UnicodeDecodeError as error:
        raise BadOption(f"{name} is not UTF-8 text; convert it first") from error


COMMANDS: dict[str, tuple[Callable[[Conversation, str], None], str]] = {
    "/?": (_help, "this list"),
    "/help": (_help, "this list"),
    "/set": (_set, "NAME VALUE: temperature, top_p, seed, method, system, max_tokens and others"),
    "/show": (_show, "settings, models and the context's use"),
    "/clear": (_clear, "forget the conversation"),
    "/regen": (_regen, "another response to the last message"),
    "/undo": (_undo, "take back the last message and its response"),
    "/model": (_model, "NAME: go on with another model"),
    "/save": (_save, "FILE: the messages as JSON"),
    "/load": (_load, "FILE: continue with saved messages"),
    "/read": (_read, "FILE: put a text before the next message"),
    "/stats": (_stats, "speed and drafts of the last response"),
    "/draft": (_draft, "on|off: draft, or decode plainly"),
}
