"""Run the checks of `duodec doctor`; each returns a `Check`."""

from dataclasses import dataclass
from typing import Literal

from duodec.cli.spelling import as_options
from duodec.errors import DuodecError


@dataclass(frozen=True)
class Check:
    """Hold one result; fail means that this pair cannot be used."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    words: str
    remedy: str = ""


def failed(error: DuodecError, name: str = "use") -> Check:
    """Return the check of an error that makes the pair unusable."""
    words, _, remedy = as_options(str(error)).rpartition("; ")
    return Check(name, "fail", words or remedy, remedy if words else "")


__all__ = ["Check", "failed"]
