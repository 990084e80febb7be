"""Report errors that a user can cause: one line on stderr, and the exit status of their class."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Sequence

from duodec.cli.output import OutputClosed, warn
from duodec.cli.spelling import UsageError, as_typed, typed
from duodec.errors import BadOption, DuodecError
from duodec.machine.files import is_full

_CLOSED = 141  # a shell reports SIGPIPE so


def report_error(error: Exception, arguments: Sequence[str], commands: Collection[str]) -> int:
    """Report an error that users can cause, and return its exit status; raise any other error."""
    if isinstance(error, DuodecError):
        warn(_words(error, arguments))
        return error.exit_status
    if isinstance(error, UsageError):
        warn(_usage_words(error, arguments, commands))
        return 2
    if isinstance(error, OutputClosed | BrokenPipeError):
        _forget_stdout()
        return _CLOSED
    if isinstance(error, OSError) and is_full(error):
        _forget_stdout()
        is_disk = error.errno == errno.ENOSPC
        remedy = "free space on its disk" if is_disk else "raise your quota, or `ulimit -f`"
        warn(f"cannot write the output: {error.strerror}; {remedy}")
        return 1
    raise error


def _words(error: DuodecError, arguments: Sequence[str]) -> str:
    """Return a message that names the option as it was typed, if one is at fault."""
    words = str(error)
    if isinstance(error, BadOption) and error.flags:
        found = typed(error.flags, arguments)
        name = found[0] if found else error.flags[0].lstrip("-")
        return f"{name} {words.removeprefix(error.option).lstrip()}"
    return words


_REMEDIES = {  # remedies for messages of the parser
    "Input should be a valid integer": "write a whole number",
    "Input should be a valid number": "write a number",
    r"Input should be greater than or equal to (\S+)": r"use \1 or more",
}


def _usage_words(error: Exception, arguments: Sequence[str], commands: Collection[str]) -> str:
    """Return the parser's message, with options as they were typed and the value."""
    context = getattr(error, "ctx", None)
    named = " ".join(["duodec", *(word for word in arguments[:1] if word in commands)])
    command = context.command_path if context else named
    words = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    found = typed(getattr(getattr(error, "param", None), "opts", ()), arguments)
    if found and (hint := re.match(r"Invalid value for [^:]*: (.*)", words, re.DOTALL)):
        for pattern, remedy in _REMEDIES.items():
            if told := re.match(pattern, hint[1]):
                return f"{found[0]} is {found[1]!r}; {told.expand(remedy)}"
        words = f"{found[0]} is {found[1]!r}: {hint[1]}"
    return f"{as_typed(words, arguments)}; see {command} --help"


def _forget_stdout() -> None:
    """Discard what would be flushed at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
