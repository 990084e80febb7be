"""Read and write a benchmark's records: one a generation, in a file with a version.

``results.json`` holds `Results`; `docs/evaluation.md` documents its fields. During a run, records
are appended to ``generations.jsonl`` in the same folder, so that an interruption loses nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from duodec.errors import ResultsUnreadable
from duodec.machine.files import replacing

SCHEMA_VERSION = 1
RESULTS, JOURNAL = "results.json", "generations.jsonl"


@dataclass(frozen=True)
class RoundTrace:
    """One forward pass of the target in a generation; seconds count from the request."""

    start_s: float
    end_s: float
    num_tokens: int  # that joined the text
    num_accepted: int  # of them, drafted ones
    num_scored: int  # draft tokens in the forward pass
    draft_wait_s: float  # before the pass, spent on drafting or waiting for it
    overlap_s: float  # of the pass, during which the drafter worked


@dataclass(frozen=True)
class Generation:
    """One completion of one method. A failed one has an ``error`` and no measures (None, [])."""

    task: str
    prompt_id: str
    turn: int  # 1, 2, ... of a conversation
    method: str  # its label: a method named twice is `ar`, `ar#2`
    target: str
    draft: str | None
    repeat: int  # 0, 1, ...
    test_bed: str  # real, replay or simulated; clocked or enforced in older files
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    ttft_s: float | None = None
    decode_s: float | None = None  # from the first token to the last
    rounds: int | None = None
    mean_accepted: float | None = None  # tokens a forward pass, the target's own included
    acceptance_histogram: list[int] = field(default_factory=list)  # rounds that accepted 0, 1, ...
    sequence_histogram: list[int] = field(default_factory=list)
    """Rounds in parallel with which 1, 2, ... sequences were drafted."""
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    target_busy_s: float | None = None
    draft_busy_s: float | None = None
    overlap: float | None = None  # share of the target's time during which the drafter works
    identical: bool | None = None  # to plain decoding; None if that is not promised
    near_ties: int | None = None
    drafter_restarts: int | None = None
    ceiling_tokens_per_second: float | None = None  # the target's latency or bandwidth allows
    memory_bytes: int | None = None  # resident at its end, the drafter's process included
    energy_j: float | None = None
    score: bool | None = None  # a correct answer, if the task has one and scoring is on
    error: str | None = None
    trace: list[RoundTrace] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        """The key of a record, unique in a run."""
        parts = (self.target, self.draft or "", self.method, self.repeat, *self.prompt_key)
        return tuple(str(part) for part in parts)

    @property
    def prompt_key(self) -> tuple[str, str, int]:
        return self.task, self.prompt_id, self.turn

    @property
    def rate(self) -> tuple[float, float] | None:
        """(tokens, seconds) of decoding without the first round; None if there is nothing to
        measure."""
        if self.error or len(self.trace) < 2 or not self.decode_s:
            return None
        return float((self.new_tokens or 0) - self.trace[0].num_tokens), self.decode_s

    @property
    def whole_rate(self) -> tuple[float, float] | None:
        """(tokens, seconds) from the request to the last token, prefill included, as the paper's
        scripts count; None if there is nothing to measure."""
        if self.error or not self.new_tokens or self.ttft_s is None or self.decode_s is None:
            return None
        return float(self.new_tokens), self.ttft_s + self.decode_s

    @property
    def gaps_s(self) -> list[float]:
        """Between one arrival of tokens and the next."""
        ends = [r.end_s for r in self.trace]
        return [b - a for a, b in pairwise(ends)]

    def as_json(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        record["trace"] = [[round(v, 6) for v in dataclasses.astuple(r)] for r in self.trace]
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Generation:
        """Undo `as_json`. Raises TypeError or ValueError for what it does not write."""
        trace = [RoundTrace(*values) for values in record["trace"]]
        return cls(**{**record, "trace": trace})


@dataclass(frozen=True)
class Results:
    """A run: its measurements, its machine and its settings."""

    generations: Sequence[Generation]
    environment: dict[str, Any]
    settings: dict[str, Any]

    @cached_property
    def methods(self) -> list[str]:
        """Labels in the order of the settings."""
        return list(self.settings["methods"])

    @cached_property
    def tasks(self) -> list[str]:
        return list(self.settings["tasks"])

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all. Raises OSError."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "environment": self.environment,
            "settings": self.settings,
            "generations": [g.as_json() for g in self.generations],
        }
        with replacing(path) as part:
            part.write_text(_one_record_a_line(document), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises ResultsUnreadable, which names the file."""
        path = path / RESULTS if path.is_dir() else path
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ResultsUnreadable(
                f"{path} cannot be read ({error.strerror}); name a results.json or its folder"
            ) from error
        except ValueError as error:
            raise ResultsUnreadable(
                f"{path} is not JSON ({error}); name a results.json of duodec bench"
            ) from error
        version = document.get("schema_version") if isinstance(document, dict) else None
        if version != SCHEMA_VERSION:
            raise ResultsUnreadable(
                f"{path} has schema version {version}, and this duodec reads {SCHEMA_VERSION}; "
                "measure again, or use the duodec that wrote it"
            )
        try:
            generations = [Generation.from_json(g) for g in document["generations"]]
            return cls(generations, document["environment"], document["settings"])
        except (KeyError, TypeError, ValueError) as error:
            raise ResultsUnreadable(f"{path} is broken ({error}); measure again") from error


def _one_record_a_line(document: dict[str, Any]) -> str:
    head = {name: value for name, value in document.items() if name != "generations"}
    records = ",\n".join(json.dumps(g) for g in document["generations"])
    return f'{json.dumps(head, indent=1)[:-2]},\n "generations": [\n{records}\n]}}\n'


@dataclass(frozen=True)
class Pair:
    """A target and its draft; None if no method used one."""

    target: str
    draft: str | None

    def __str__(self) -> str:
        return f"{self.target} with {self.draft}" if self.draft else self.target


def pairs_of(results: Results) -> list[Pair]:
    """Every target with every draft it was measured with, in the order of the records."""
    found = dict.fromkeys(Pair(g.target, g.draft) for g in results.generations)
    with_draft = {pair.target for pair in found if pair.draft}
    return [pair for pair in found if pair.draft or pair.target not in with_draft]


def generations_of(results: Results, pair: Pair) -> list[Generation]:
    """The pair's records. A method measured without a draft (plain decoding, lookup) belongs to
    every draft of its target."""
    ours = [g for g in results.generations if g.target == pair.target]
    drafted = {g.method for g in ours if g.draft == pair.draft}
    return [g for g in ours if g.draft == (pair.draft if g.method in drafted else None)]


def succeeded(generations: Iterable[Generation]) -> list[Generation]:
    """The generations without an error. A failed one is a missing value: it enters no figure."""
    return [g for g in generations if not g.error]
