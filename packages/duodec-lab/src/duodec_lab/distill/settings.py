"""Define what `duodec distill` does, checked before anything is loaded."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from duodec.backends.llamacpp.drafts.parallel import MOST_PARALLEL
from duodec.core.sampling.parameters import Parameter, check
from duodec.errors import BadOption

NUM_TOPS = 64  # of the target's likeliest tokens at each position, that are recorded
LOSSES = ("kl", "lk", "acceptance")
FOLDERS = ("medusa", "hydra")  # kinds of heads that are written to a folder, for torch
HEADS = (*FOLDERS, "eagle3")
FORMATS = ("q4_0", "q8_0", "f16")
_PANEL = "Distillation"


@dataclass(frozen=True)
class DistillSettings:
    """What is recorded and trained. Every described field is an option of the command line."""

    minutes: Annotated[
        float,
        Parameter(
            "Time for recording (at most 0.4 of it) and training; interruptions do not count.",
            _PANEL,
            gt=0,
            lt=math.inf,
            remedy="use minutes, more than 0",
        ),
    ] = 60.0
    heads: Annotated[
        str | None,
        Parameter(
            "Train heads of this kind on the target itself in place of a draft, for --heads of the "
            "other commands: eagle3 is a file for a GGUF target through llama.cpp, the others are "
            "a folder for one on torch.",
            _PANEL,
            metavar="KIND",
            choices=HEADS,
        ),
    ] = None
    num_heads: Annotated[
        int,
        Parameter("How many heads: each guesses a token further ahead.", _PANEL, ge=1, le=8),
    ] = 3
    steps: Annotated[
        int | None,
        Parameter(
            "Training steps, whatever they take; by default as many as --minutes allow.",
            _PANEL,
            metavar="N",
            ge=1,
        ),
    ] = None
    loss: Annotated[
        str,
        Parameter(
            "kl: the target's likeliest tokens, as far as the draft misses them; acceptance: minus "
            "the log of the probability that a drafted token is accepted; lk: the first while "
            "that is low, then its complement (docs/distill.md).",
            _PANEL,
            metavar="NAME",
            choices=LOSSES,
        ),
    ] = "kl"
    layers: Annotated[
        str | None,
        Parameter(
            "Layers of the draft to keep: a number of them, one third from the first on and the "
            "rest up to the last, or a list such as 0,6,12. By default all.",
            _PANEL,
            metavar="N",
        ),
    ] = None
    draft_parallel: Annotated[
        int,
        Parameter(
            "Tokens that the draft learns to draft in one forward pass, by mask tokens (PARD, "
            "arXiv 2504.18583); 1: one.",
            _PANEL,
            metavar="N",
            ge=1,
            le=MOST_PARALLEL,
            remedy=f"use 1 to {MOST_PARALLEL}",
        ),
    ] = 1
    quantize: Annotated[
        str,
        Parameter(
            "The format of the file: q4_0, q8_0 or f16.", _PANEL, metavar="TYPE", choices=FORMATS
        ),
    ] = "q4_0"
    written_prompts: Annotated[
        int,
        Parameter(
            "Prompts that the target writes itself, in addition to the others (Magpie, arXiv "
            "2406.08464), in a fifth of --minutes at most.",
            _PANEL,
            ("--write-prompts",),
            "N",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    num_prompts: Annotated[
        int | None,
        Parameter("Most prompts to record; by default all.", _PANEL, ("--limit",), "N", ge=4),
    ] = None
    max_tokens: Annotated[
        int,
        Parameter(
            "Most tokens of a recorded completion.",
            _PANEL,
            ("--max-tokens", "-n"),
            "N",
            ge=2,
        ),
    ] = 160
    learning_rate: Annotated[
        float,
        Parameter(
            "The optimizer's highest step size.",
            _PANEL,
            metavar="RATE",
            gt=0,
            lt=1,
            remedy="use a number between 0 and 1, such as 0.0003",
        ),
    ] = 3e-4
    batch: Annotated[
        int, Parameter("Completions in a training step.", _PANEL, metavar="N", ge=1)
    ] = 8
    parallel: Annotated[
        int, Parameter("Completions recorded at once.", _PANEL, metavar="N", ge=1)
    ] = 8
    judge_ms: Annotated[
        float,
        Parameter(
            "Time of a forward pass of the target in the simulation that judges drafts.",
            _PANEL,
            metavar="MS",
            gt=0,
            lt=math.inf,
            remedy="use milliseconds, more than 0",
        ),
    ] = 50.0

    def __post_init__(self) -> None:
        check(self)
        if self.layers is not None and not re.fullmatch(r"\d+(,\d+)*", self.layers):
            raise BadOption(
                f"layers is '{self.layers}'; give how many to keep, such as 6, or which, such as "
                "0,6,12"
            )

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The layers to keep of so many, ascending. Raises BadOption."""
        if self.layers is None:
            return tuple(range(num_layers))
        numbers = [int(number) for number in self.layers.split(",")]
        if len(numbers) == 1 and "," not in self.layers:
            (count,) = numbers
            if not 1 <= count <= num_layers:
                raise BadOption(f"layers is {count}, and the draft has {num_layers}; keep 1 to all")
            first = max(1, (count + 1) // 3)  # what is left out in the middle is missed least
            return (*range(first), *range(num_layers - count + first, num_layers))
        if max(numbers) >= num_layers or numbers != sorted(set(numbers)):
            raise BadOption(
                f"layers is {self.layers}; name layers from 0 to {num_layers - 1}, ascending"
            )
        return tuple(numbers)

    def of_training(self) -> dict[str, Any]:
        """What decides the weights, beyond the recording."""
        names = ("steps", "loss", "layers", "learning_rate", "batch", "quantize", "draft_parallel")
        return {name: value for name, value in asdict(self).items() if name in names}
