"""Read the settings of vLLM's drafter from the environment, or from a file that it names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from duodec.errors import BadOption
from duodec.machine.cores import listed_cores

PREFIX = "DUODEC_VLLM_"
FILE = f"{PREFIX}CONFIG"
ON_FAULT = ("continue", "refuse")
MAX_TEXTS = 64  # more texts could not each have leaves


@dataclass(frozen=True)
class Settings:
    """Every field is set by `DUODEC_VLLM_` and its name in capitals, or by a line of the file."""

    draft: str = "none"  # a GGUF file, a repository of the hub or an alias; none: earlier text only
    cores: tuple[int, ...] = ()  # the drafter's; none: those that vLLM leaves
    threads: int = 0  # 0: one for each of these cores, 8 at most
    memory: int = 1024  # MiB of cache that the drafter may fill
    texts: int = 32  # requests that it drafts for at once
    on_fault: str = "continue"  # without the drafter; or refuse to start

    def __post_init__(self) -> None:
        if self.on_fault not in ON_FAULT:
            raise BadOption(f"on_fault is '{self.on_fault}'; choose from: {', '.join(ON_FAULT)}")
        for name, least, most in (
            ("threads", 0, None), ("memory", 1, None), ("texts", 1, MAX_TEXTS),
        ):  # fmt: skip
            value = getattr(self, name)
            if value < least or (most and value > most):
                upper = f" to {most}" if most else " or more"
                raise BadOption(f"{name} is {value}; use {least}{upper}")

    @property
    def has_draft(self) -> bool:
        return self.draft not in ("", "none")

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The environment's settings over those of the file. Raises BadOption."""
        found = dict(_of_file(Path(environment[FILE]))) if environment.get(FILE) else {}
        for field in fields(cls):
            if value := environment.get(f"{PREFIX}{field.name.upper()}"):
                found[field.name] = value
        return replace(cls(), **{name: _value(name, value) for name, value in found.items()})

    def environment(self) -> dict[str, str]:
        """The variables of these settings; unset fields are left out."""
        default = Settings()
        words = {
            "cores": ",".join(map(str, self.cores)),
            **{f.name: str(getattr(self, f.name)) for f in fields(self) if f.name != "cores"},
        }
        return {
            f"{PREFIX}{name.upper()}": word
            for name, word in words.items()
            if getattr(self, name) != getattr(default, name)
        }


def _of_file(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise BadOption(f"cannot read {path} ({reason}); name a YAML file with {FILE}") from error
    if not isinstance(found, dict):
        raise BadOption(f"{path} holds no settings; write, say, draft: smollm2-draft")
    known = [field.name for field in fields(Settings)]
    for name in found:
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose from: {', '.join(known)}"
            raise BadOption(f"{path} has no setting '{name}' to make; {hint}")
    return found


def _value(name: str, value: Any) -> Any:
    """A setting as its field stores it. Raises BadOption."""
    words = str(value).strip()
    if name == "cores":
        return parse_cores(value if isinstance(value, str) else ",".join(map(str, _list(value))))
    if name in ("threads", "memory", "texts"):
        if not words.isdecimal():
            raise BadOption(f"{name} is '{words}'; use a whole number")
        return int(words)
    return words


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def parse_cores(words: str) -> tuple[int, ...]:
    """``0-3,8``. Raises BadOption."""
    try:
        return tuple(sorted(listed_cores(words)))
    except ValueError as error:
        raise BadOption(f"cores is '{words}'; write, say, 4-7 or 4,5,12") from error
