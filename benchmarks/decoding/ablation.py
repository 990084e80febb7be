"""Change each tuned constant, and see what `auto` gains or loses.

Each constant is doubled (a fade: its distance from 1). Where no cell moves by more than half a per
cent, it is halved, too, and set to what makes its rule inert, if there is such a value. The cells
are those of `ablation_cells`, on virtual clocks: the same constants give the same figures, to the
last digit. What was found is kept in the cache, so that the next run goes on.

    python -m benchmarks ablation --data FOLDER --cache FOLDER
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CalledProcessError
from typing import Annotated

import numpy as np
import typer

from benchmarks import Figures, in_process
from benchmarks.decoding.ablation_cells import TABLES, World
from duodec.drafting import constants

Value = float | tuple[float, ...]
Cells = dict[str, float]

_NOTICED = 0.005
_IN_ONE_RUN = 8  # constants that may do nothing, to see whether they do nothing together
_ABSENT = {
    "BACKOFF_OF_BATCH", "DATASTORE_LENGTH", "DATASTORE_MIN_SPAN", "DATASTORE_SPAN",
    "DATASTORE_TOKENS", "FEW_WINDOWS", "FIRST_TRUST", "FRESH_S",
    "LATE_AFTER", "LEARNING_SHARE", "MAX_CONTEXTS", "MAX_PATIENCE_S",
    "MAX_PAUSE", "MAX_PLACES", "MAX_STORED", "MIN_PATIENCE_S", "MIN_SEED",
    "MIN_STORE", "MIN_WAIT_S", "NUM_REHEARSED", "PATIENCE_OF_BATCH", "RECENT_PLAIN_PASSES",
    "SIMILAR_LENGTH", "TOKENS_READ_IN_STEP", "TOKENS_READ_WITH_STEP", "UNKNOWN_FORWARD_S",
    "UNKNOWN_STEP_S",
}  # fmt: skip
"""What they steer is hardly in the cells: real clocks, heads, datastores, mask tokens, full memory,
long texts."""
_WORLDS = (
    World(
        "smollm2", "smollm2", "auto", "1:0.93,2:1.31,4:1.8,8:3.1,16:5.8,32:11.4,64:22.1", 0.3,
        (
            "rtx4090-8b-q4_0@llama.cpp",
            "rtx4090-8b-bf16@torch",
            "rtx4090-8b-bf16@torch+gpu",
            "1:33.5,2:34,4:38.5,5:43,8:58,16:108,32:205@tree+turns",
        ),
    ),
    World(
        "qwen", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b",
        "1:10,2:11,4:12,8:14,16:22,32:40,64:80", 1.25,
        ("rtx4090-8b-bf16@torch", "mi50-27b-q8_0@llama.cpp+gpu"),
    ),
)  # fmt: skip
_INERT: Mapping[str, Value] = {
    "ONE_TOKEN_SHARE": 1.0,
    "BACKOFF_OF_BATCH": 2,
    "LOSS_PER_PROMISED_TOKEN": 0.0,
    "CAUTION": 0.0,
    "CLIFF_PER_ROW": 0.0,
    "REST_BEFORE_TRIAL": 0,
    "HOPELESS_BELOW": 0.0,
    "MIN_PATIENCE_S": 0.0,
    "MIN_SEED": 1.0,
    "MIN_WAIT_S": 0.0,
    "MARGIN": 1.0,
    "MARGIN_OF_BATCH": 1.0,
    "LABEL_WEIGHT_OF_MODEL": 1.0,
    "SIMILAR_LENGTH": 1 << 30,
    "NODE_S": 0.0,
    "PRIOR_OF_DEPTH": 1e-9,
    "MIN_GAIN_OF_WAIT": 1.0,
    "ALLOWANCE_REGROWTH": 0.0,
    "NOISE_POWER": 1.0,
    "COST_OF_TWICE_THE_LEAVES": 1.0,
}
"""The values with which the rules of constants do nothing."""


class Ablation:
    """Cells by what was changed, with those of earlier runs of the same tree."""

    def __init__(self, kept: Path, worlds: Sequence[Path], tables: Sequence[str]) -> None:
        self._kept, self._cells = kept, [*map(str, worlds), *tables]
        self.base = self._computed({})
        found = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
        self._changed: dict[str, Cells] = found["changed"] if self.base == found.get("base") else {}

    def changed(self, values: Mapping[str, Value]) -> Cells:
        """The change of each cell with these values, as a share of it."""
        key = ", ".join(f"{name}={value!r}" for name, value in values.items())
        if key not in self._changed:
            self._changed[key] = self._computed(values)
            text = json.dumps({"base": self.base, "changed": self._changed})
            self._kept.write_text(text, "utf-8")
        own = self._changed[key]
        return {name: own[name] / value - 1.0 for name, value in self.base.items()}

    def _computed(self, values: Mapping[str, Value]) -> Cells:
        try:
            cells: Cells = in_process(
                "-m", "benchmarks.decoding.ablated", *self._cells, "--",
                *(f"{name}={value!r}" for name, value in values.items()),
                PYTHONDONTWRITEBYTECODE="",
            )  # fmt: skip
        except CalledProcessError:
            if not values:
                raise
            return dict.fromkeys(self.base, 0.0)  # there are values with which nothing runs
        return cells

    def each(self, values: Mapping[str, Value]) -> dict[str, Cells]:
        """`changed` for each one alone. Where several do nothing together, none does anything."""
        if len(values) == 1 or not any((together := self.changed(values)).values()):
            return {name: self.changed(values) if len(values) == 1 else together for name in values}
        names, half = list(values), len(values) // 2
        return {
            name: change
            for part in (names[:half], names[half:])
            for name, change in self.each({one: values[one] for one in part}).items()
        }


def main(
    cache: Annotated[Path, typer.Option(help="A folder for recordings, and for what was found.")],
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 1,
    skip: Annotated[int, typer.Option(help="Leave out so many: held-out prompts.")] = 3,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 32,
    pairs: Annotated[str, typer.Option(help="smollm2, qwen.")] = "smollm2",
    tables: Annotated[str, typer.Option(help="Cells on tables, by commas.")] = ",".join(TABLES),
    twice: Annotated[
        bool, typer.Option(help="Only double: nothing is halved or left out.")
    ] = False,
    only: Annotated[str, typer.Option(help="Constants, by commas; none: all.")] = "",
    change: Annotated[str, typer.Option(help="NAME=VALUE, by spaces: these together.")] = "",
) -> Figures | None:
    """What happens to the speed of `auto` as each constant is changed."""
    cache.mkdir(parents=True, exist_ok=True)
    worlds = []
    for world in _WORLDS:
        if world.name in pairs.split(","):
            worlds.append(cache / f"world-{world.name}.pickle")
            if not worlds[-1].exists():
                recorded = world.recorded(data, limit, skip, max_tokens)
                worlds[-1].write_bytes(pickle.dumps(recorded))
    chosen = tables.split(",")
    if unknown := [name for name in chosen if name not in TABLES]:
        raise typer.BadParameter(
            f"--tables names {', '.join(unknown)}; choose from: {', '.join(TABLES)}"
        )
    kept = cache / f"ablation-{'-'.join([*pairs.split(','), *chosen])}.json"
    ablation = Ablation(kept, worlds, chosen)
    if change:
        values = {k: json.loads(v) for k, v in (one.split("=") for one in change.split())}
        changes = ablation.changed(values)
        for name, value in ablation.base.items():
            print(f"{name:60} {value:.3f} {changes[name]:+.2%}")
        return None
    names = only.split(",") if only else [name for name in vars(constants) if name.isupper()]
    found: dict[str, dict[str, Cells]] = {name: {} for name in names}

    def tried(values: Mapping[str, Value], num_together: int) -> None:
        for begin in range(0, len(values), num_together):
            part = dict([*values.items()][begin : begin + num_together])
            for name, changes in ablation.each(part).items():
                found[name][repr(part[name])] = changes
                print(f"{name}={part[name]!r}: {_in_words(changes)}", flush=True)

    def unnoticed() -> list[str]:
        moved = {name: [abs(v) for one in found[name].values() for v in one.values()]
                 for name in names}  # fmt: skip
        return [name for name in names if max(moved[name], default=0.0) <= _NOTICED]

    own = vars(constants)
    doubled = {name: _scaled(own[name], 2.0, name) for name in names}
    tried({name: value for name, value in doubled.items() if name in _ABSENT}, _IN_ONE_RUN)
    tried({name: value for name, value in doubled.items() if name not in _ABSENT}, 1)
    if not twice:
        tried({name: _scaled(own[name], 0.5, name) for name in unnoticed()}, _IN_ONE_RUN)
        tried({name: _INERT[name] for name in unnoticed() if name in _INERT}, _IN_ONE_RUN)
    return {
        "base": {name: round(value, 4) for name, value in ablation.base.items()},
        "num_constants": len(names),
        "unnoticed": unnoticed(),
        "changes": {
            name: {value: _summary(changes) for value, changes in by_value.items()}
            for name, by_value in found.items()
        },
    }


def _scaled(value: Value, factor: float, name: str) -> Value:
    """The value times the factor; of a fade, the distance from 1."""
    if isinstance(value, tuple):
        return tuple(_scaled(one, factor, name) for one in value)  # type: ignore[misc]
    if "FADE" in name:
        return 1.0 - factor * (1.0 - value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def _summary(changes: Mapping[str, float]) -> Figures:
    """The mean change, and the cells that changed most."""
    worst, best = (choose(changes, key=changes.__getitem__) for choose in (min, max))
    return {
        "mean": round(float(np.mean(list(changes.values()))), 5),
        "worst": [worst, round(changes[worst], 4)],
        "best": [best, round(changes[best], 4)],
    }


def _in_words(changes: Mapping[str, float]) -> str:
    if not any(changes.values()):
        return "nothing changes"
    found = _summary(changes)
    (worst, least), (best, most) = found["worst"], found["best"]
    return f"{found['mean']:+.2%} on average, {least:+.2%} ({worst}) to {most:+.2%} ({best})"
