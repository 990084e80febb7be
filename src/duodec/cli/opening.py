"""Open the models of a command: downloads with a bar, loading with a spinner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duodec.__main__ import interrupted_at_once
from duodec.cli.output import status
from duodec.models.config import EngineConfig

if TYPE_CHECKING:
    from duodec.llm import LLM


def open_engine(
    config: EngineConfig, *, on_warning: Callable[[str], None], is_quiet: bool = False
) -> LLM:
    """Open a command's engine; the caller closes it."""
    from duodec import loading
    from duodec.models import resolve
    from duodec.models.targets import target_file

    draft = loading.draft_for(config)
    # downloads first: their bar and the spinner cannot share the terminal
    target_file(config)
    if draft:
        resolve(draft, offline=config.offline)
    names = f"{config.target} and {draft}" if draft else config.target
    with status(f"loading {names}", is_quiet=is_quiet), interrupted_at_once():
        return loading.load(config, on_warning=on_warning)
