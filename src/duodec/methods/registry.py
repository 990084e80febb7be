"""Look up methods by their names on the command line; other packages add theirs."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib.metadata import EntryPoint
from inspect import signature

from duodec.core.sampling.parameters import shown
from duodec.core.traits import TargetTraits
from duodec.errors import BadOption
from duodec.machine import plugins
from duodec.methods.ar import Autoregressive
from duodec.methods.auto import Auto
from duodec.methods.dflash import DFlash, DFlash2, DSpark
from duodec.methods.duo import DuoDecoding
from duodec.methods.eagle import Eagle
from duodec.methods.eagle3 import Eagle3
from duodec.methods.hydra import Hydra
from duodec.methods.lookahead import Lookahead
from duodec.methods.lookup import PromptLookup
from duodec.methods.medusa import Medusa
from duodec.methods.method import Method
from duodec.methods.mtp import MultiTokenPrediction
from duodec.methods.pearl import Pearl
from duodec.methods.recycling import TokenRecycling
from duodec.methods.rest import Rest
from duodec.methods.sps import SpeculativeSampling
from duodec.methods.sps_rejection import RejectionSampling
from duodec.methods.stream import Stream
from duodec.methods.suffix import SuffixDecoding

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        Autoregressive,
        SpeculativeSampling,
        RejectionSampling,
        PromptLookup,
        Rest,
        Lookahead,
        TokenRecycling,
        SuffixDecoding,
        Medusa,
        MultiTokenPrediction,
        Eagle3,
        DFlash,
        DFlash2,
        DSpark,
        Hydra,
        Eagle,
        Pearl,
        DuoDecoding,
        Stream,
        Auto,
    )
}
"""Our own methods, and those of other packages that were used; see `names`."""
_OURS = frozenset(METHODS)
DEFAULT_METHOD = Auto.name


def names() -> tuple[str, ...]:
    """Return every method that can be named without its module: ours, and those of installed
    packages."""
    return tuple(dict.fromkeys([*METHODS, *plugins.installed(plugins.METHODS)]))


def check_method(method: object) -> None:
    """Raise BadOption for what is neither a name nor a method."""
    if not isinstance(method, str | Method):
        raise BadOption(
            f"method is {shown(method)}; give a name, such as 'lookup', or an object of a class of "
            "duodec.methods.Method"
        )


_FURTHER = {  # the second number of a name: its words, its form, an example
    "least": ("confidence from 0 to 1", r"0?\.[0-9]+|[01]", "0.75"),
    "max_ngram": ("length of a match", "[1-9][0-9]*", "2"),
}


def method(name: str) -> Method:
    """Return a new method of that name, which has learned nothing yet. ``sps:2`` is `sps` with two
    draft tokens a round, ``sps:16:0.75`` with 16 at most and none after one that the draft model
    gives less than 0.75, ``lookup:8:2`` drafts 8 after matches of two tokens and one.
    ``module:Class`` imports a class of yours; it is known by its own name from then on. Raises
    BadOption, which lists the names."""
    base, _, number = name.partition(":")
    is_class = number.partition(":")[0].isidentifier()  # class of a module named like a method
    if base in METHODS and not (is_class and base not in _OURS):
        kind = METHODS[base]
    elif base in plugins.installed(plugins.METHODS):
        where = f"method '{base}'"
        kind = _known(plugins.load(plugins.METHODS, base, where), where)
    elif number and not number.isdecimal():
        class_name, _, number = number.partition(":")
        base = f"{base}:{class_name}"
        kind = _known(_imported(base), f"method '{base}'")
    else:
        near = get_close_matches(base, names(), 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise BadOption(
            f"unknown method '{name}'{hint}; choose from: {', '.join(names())}, or name a class of "
            "yours as module:Class"
        )
    if base == name:
        return kind()
    settings = signature(kind).parameters
    if "num_tokens" not in settings:
        raise BadOption(f"method '{base}' takes no number of draft tokens; write '{base}'")
    number, colon, more = number.partition(":")
    if not (number.isdecimal() and int(number) > 0):
        raise BadOption(f"'{name}' does not say how many tokens to draft; write, say, {base}:4")
    if not colon:
        return kind(num_tokens=int(number))  # type: ignore[call-arg]
    for setting, (words, pattern, example) in _FURTHER.items():
        if setting in settings:
            if not re.fullmatch(pattern, more):
                raise BadOption(f"'{name}' ends in no {words}; write {base}:{number}:{example}")
            further = {setting: type(settings[setting].default)(more)}
            return kind(num_tokens=int(number), **further)  # type: ignore[call-arg]
    raise BadOption(f"method '{base}' takes one number; write {base}:{number}")


def check_usable(
    method: Method, traits: TargetTraits, *, has_drafter: bool, has_datastore: bool
) -> None:
    """Raise BadOption if something that a method needs is missing."""
    if method.needs_draft_model and not has_drafter and traits.max_draft:
        raise BadOption(f"method '{method.name}' needs a draft model; name one with `draft`")
    if method.reads_off_path and traits.is_recurrent:
        raise BadOption(
            f"method '{method.name}' scores branches, and this target, which is recurrent, has "
            "none; use `method=auto`"
        )
    if method.needs_heads and method.needs_heads != traits.heads:
        raise BadOption(
            f"method '{method.name}' needs {method.needs_heads} heads of the target, which has "
            f"{traits.heads or 'none'}; name them with `heads`, or take a file that brings them"
        )
    if method.needs_datastore and not has_datastore:
        raise BadOption(
            f"method '{method.name}' needs a datastore; make one of your texts with "
            "`duodec datastore build FILES`, or name one with `datastore`"
        )


def _imported(name: str) -> object:
    """Import a class of yours, ``module:Class``. Raises BadOption."""
    where = f"method '{name}'"
    if not all(part.isidentifier() for part in re.split(r"[.:]", name)):
        raise BadOption(f"{where} is no name of a class; write module:Class")
    try:
        return EntryPoint(name, name, plugins.METHODS).load()
    except ModuleNotFoundError as error:
        raise BadOption(
            f"{where} cannot be imported: {error}; put the folder that it is in into PYTHONPATH"
        ) from error
    except (AttributeError, ImportError, SyntaxError) as error:
        raise BadOption(f"{where} cannot be imported: {error}; mend the module") from error


def _known(kind: object, where: str) -> type[Method]:
    """Keep a method by its name. Raises BadOption if it cannot be one."""
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise BadOption(f"{where} is no subclass of duodec.methods.Method; derive it from that")
    if not hasattr(kind, "name"):
        raise BadOption(f"{where} has no name; give the class one, as name = 'mine'")
    if METHODS.get(kind.name, kind) is not kind:
        raise BadOption(f"{where} is called '{kind.name}', as another method is; rename it")
    try:
        kind()
    except TypeError as error:  # it has no `decode`, or a setting without a default
        raise BadOption(f"{where} cannot be made without arguments: {error}") from error
    METHODS[kind.name] = kind
    return kind
