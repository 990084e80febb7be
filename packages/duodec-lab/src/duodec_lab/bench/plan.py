"""Define what a benchmark measures, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from duodec.backends.curves import CostCurve
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import draft_for
from duodec.methods.method import Method
from duodec.methods.registry import METHODS
from duodec.methods.registry import method as method_named
from duodec_lab.bench.beds.host import NO_PRICES, HostPrices
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.shapes import TREE, Shape
from duodec_lab.bench.beds.virtual import StepTable
from duodec_lab.bench.tasks import SHORT_TASKS, TASKS

SHUFFLED = "shuffled"  # the control in which texts make no sense
BASELINE = "ar"


@dataclass(frozen=True)
class Entrant:
    """A method and its label in reports: `ar`, and `ar#2` if it is named twice."""

    label: str
    name: str

    def new(self) -> Method:
        """A new method, which has learned nothing."""
        return method_named(self.name)


@dataclass(frozen=True)
class BenchPlan:
    """The settings of `duodec bench`."""

    methods: tuple[str, ...] = tuple(METHODS)
    targets: tuple[str, ...] = (EngineConfig.target,)
    drafts: tuple[str, ...] = ("auto",)
    config: EngineConfig = field(default_factory=lambda: EngineConfig(datastore="auto"))
    tasks: tuple[str, ...] = TASKS
    data: Path | None = None
    limit: int | None = 5  # prompts a task
    max_tokens: int = 128
    short_tasks: tuple[str, ...] = SHORT_TASKS  # whose completions have 32 tokens at most
    warm_ups: Mapping[str, int] = field(default_factory=dict)
    """The first prompts of each task that methods complete once, before the measurement; without
    any, one prompt of our own."""
    repeats: int = 1
    replay_ms: float | str | None = None  # a number (flat), points, a published curve or a roofline
    simulate_ms: float | str | None = None  # the same
    draft_ms: str | None = None  # a simulation's cost table; None: measured at the start
    draft_speed: float = 1.0  # by which a simulation divides these costs
    simulate_as: str | None = None  # the shape of a simulated forward pass; None: its card's
    host_us: str | None = None  # its prices of the host's work; None: measured at the start
    prefill_ms: float = 0.1  # a prompt token, in a replay or a simulation
    control: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    runs_code: bool = False
    paper: str | None = None  # whose prompt formats and claims: see `duodec_lab.bench.paper`

    def __post_init__(self) -> None:
        if self.sampling.seed is None:  # methods are compared on the same text
            object.__setattr__(self, "sampling", replace(self.sampling, seed=0))
        for name in self.methods:
            method_named(name)
        if not self.methods:
            raise BadOption("no methods are named; write, for instance, --methods ar,sps,duo")
        for name, least in (("max_tokens", 2), ("repeats", 1), ("limit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadOption(f"{name.replace('_', '-')} is {value}; use {least} or more")
        if not 0 <= self.prefill_ms < math.inf:
            raise BadOption(f"prefill-ms is {self.prefill_ms}; use milliseconds, 0 or more")
        for name in ("replay_ms", "simulate_ms"):
            if (value := getattr(self, name)) is not None:
                curve = CostCurve.parse(value, name.replace("_", "-"))
                object.__setattr__(self, name, _as_number(curve.text))
        if self.replay_ms is not None and self.simulate_ms is not None:
            raise BadOption("replay-ms and simulate-ms exclude each other; choose one")
        if not self.draft_speed > 0:
            raise BadOption(f"draft-speed is {self.draft_speed}; use a number above 0, or inf")
        if self.draft_ms is not None:
            if self.simulate_ms is None:
                raise BadOption(
                    "draft-ms gives the costs of a simulation; give its target's latency with "
                    "--simulate-ms"
                )
            StepTable.parse(self.draft_ms)
        self._check_simulation()
        if self.control not in (None, SHUFFLED):
            raise BadOption(f"unknown control '{self.control}'; the only one is {SHUFFLED}")
        if self.control and self.replay_ms is None:
            raise BadOption(
                f"the control '{SHUFFLED}' replays a text that makes no sense; give a latency with "
                "--replay-ms"
            )
        self._check_replay()

    def _check_replay(self) -> None:
        """Raises BadOption for a method that reads rows which a recorded text does not have."""
        off_path = [e.label for e in self.entrants if e.new().reads_off_path]
        if self.replay_ms is not None and off_path:
            raise BadOption(
                f"a replay has no rows off the recorded text for {', '.join(off_path)}; name other "
                "--methods, or run all on virtual time with --simulate-ms"
            )

    def _check_simulation(self) -> None:
        """Raises BadOption for what only a simulation has."""
        if self.simulate_ms is None:
            for name, value, usual in (
                ("simulate-as", self.simulate_as, None),
                ("host-us", self.host_us, None),
            ):
                if value != usual:
                    raise BadOption(
                        f"{name} is of a simulation; give its target's costs with --simulate-ms"
                    )
            return
        if self.config.draft_device == "gpu" and self.draft_ms is None:
            raise BadOption(
                "draft-device is gpu, and steps can be timed on this CPU only; give what they take "
                "there with --draft-ms"
            )
        Shape.parse(self.shape_name, CostCurve.parse(self.simulate_ms))
        if self.host_us is not None:
            HostPrices.parse(self.host_us)

    @property
    def shape_name(self) -> str:
        """The shape of a replayed or simulated forward pass: the one named, or its card's."""
        if self.simulate_as is not None:
            return self.simulate_as
        if self.simulate_ms is None:
            return TREE.name
        return Shape.usual(CostCurve.parse(self.simulate_ms))

    @property
    def curve(self) -> CostCurve | None:
        """What a forward pass of the target costs in a replay or a simulation."""
        given = self.simulate_ms if self.replay_ms is None else self.replay_ms
        return None if given is None else CostCurve.parse(given)

    def latency(self, host: HostPrices = NO_PRICES) -> LatencyCurve:
        """The same, with prefill. Only for a replay or a simulation."""
        curve = self.curve
        assert curve is not None, "a bed needs a latency"
        shape = Shape.parse(self.shape_name, curve, host.copy)
        return LatencyCurve(curve, self.prefill_ms / 1e3, shape)

    @property
    def entrants(self) -> list[Entrant]:
        seen: Counter[str] = Counter()
        entrants = []
        for name in self.methods:
            seen[name] += 1
            entrants.append(Entrant(name if seen[name] == 1 else f"{name}#{seen[name]}", name))
        return entrants

    @property
    def needs_datastore(self) -> bool:
        return any(entrant.new().needs_datastore for entrant in self.entrants)

    @property
    def baseline(self) -> str:
        """The label of plain decoding; of the first method if plain decoding is not measured."""
        return BASELINE if BASELINE in self.methods else self.methods[0]

    def pairs(self) -> list[EngineConfig]:
        """Every target with every draft, the drafts by name. Raises BadOption if a method needs a
        draft model and none is known."""
        return [self._pair(target, draft) for target in self.targets for draft in self.drafts]

    def _pair(self, target: str, draft: str) -> EngineConfig:
        datastore = self.config.datastore if self.needs_datastore else None
        config = dataclasses.replace(self.config, target=target, draft=draft, datastore=datastore)
        needing = [e.label for e in self.entrants if e.new().needs_draft_model]
        takes_one = any(e.new().takes_draft_model for e in self.entrants)
        reference = draft_for(config) if takes_one else None
        if needing and reference is None:
            raise BadOption(
                f"{', '.join(needing)} need a draft model and none is known for {target}; name "
                "one with --draft, or leave them out with --methods"
            )
        return dataclasses.replace(config, draft=reference)

    def settings(self, command: str, started: str, prompts: Sequence[str]) -> dict[str, Any]:
        """The settings of the record: the plan, and its prompts."""
        sampling, config = self.sampling, self.config
        return {
            "command": command,
            "started": started,
            "methods": [entrant.label for entrant in self.entrants],
            "baseline": self.baseline,
            "paper": self.paper,
            "tasks": list(self.tasks),
            "targets": list(self.targets),
            "target_backend": config.target_backend,
            "dtype": config.dtype,
            "device": config.device,
            "drafts": sorted({pair.draft for pair in self.pairs() if pair.draft}),
            "data": self.data.name if self.data else "built-in",
            "prompts": list(prompts),
            "limit": self.limit,
            "max_tokens": self.max_tokens,
            "short_tasks": list(self.short_tasks),
            "warm_ups": dict(self.warm_ups),
            "repeats": self.repeats,
            "replay_ms": self.replay_ms,
            "simulate_ms": self.simulate_ms,
            "curve": self.curve.as_json() if self.curve else None,
            "draft_ms": self.draft_ms,
            "draft_speed": self.draft_speed,
            "simulate_as": self.shape_name if self.simulate_ms is not None else None,
            "host_us": self.host_us,
            "prefill_ms": self.prefill_ms if self._is_stand_in else None,
            "control": self.control,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "context": config.context,
            "threads": config.threads,
            "draft_threads": config.draft_threads,
            "draft_device": config.draft_device,
            "draft_window": config.draft_window,
            "draft_head": config.draft_head,
            "draft_weights": config.draft_weights,
            "draft_parallel": config.draft_parallel,
            "runs_code": self.runs_code,
            "kernels": "exact" if config.exact else "fast" if config.fast else "default",
            "datastore": self._datastore_name(),
            "notes": self.notes(),
        }

    def _datastore_name(self) -> dict[str, str] | None:
        if not self.needs_datastore:
            return None
        return {"name": Path(self.config.datastore or "auto").name}

    @property
    def _is_stand_in(self) -> bool:
        return self.curve is not None

    def notes(self) -> list[str]:
        """What a reader needs to know before any figure."""
        notes = []
        curve = self.curve
        if self.simulate_ms is not None and curve:
            note = (
                f"Simulated on a virtual clock: {curve.words} a forward pass of the target "
                f"(as {self.shape_name}). Rows and drafts are computed; their time is from "
                "tables (draft_ms, host_us)."
            )
            if self.draft_speed != 1:
                note += f" Draft steps take 1/{self.draft_speed:g} of the table."
            notes.append(note)
        if self.replay_ms is not None and curve:
            notes.append(
                f"Replayed at {curve.words} a forward pass of the target: waiting stands in for "
                "its arithmetic, and its recorded text is enforced, which proves nothing about "
                "exactness. Drafts, the drafter's process and all clocks are real."
            )
        if self.paper:
            notes.append(
                f"The settings of the paper's scripts for {self.paper} (arXiv 2503.00784, commit "
                "154f0a1): their models, prompts, token limits, warm-ups and draft budgets. Two "
                "things differ. Their speculative sampling (sd, here sps:5) drafts in bf16 on the "
                f"GPU; here every draft model computes {draft_place(self.config.draft_device)}. "
                "Their ar, sd and duodec decode on "
                "after the end token, up to the limit; here a completion ends there."
            )
        if self.control:
            notes.append(
                "Control: the recorded texts were shuffled before they were replayed. No figure "
                "here says how fast anything is."
            )
        return notes


def draft_place(draft_device: str) -> str:
    """Where the draft model computes, in words."""
    places = {"cpu": "on the CPU", "gpu": "on the target's device"}
    return places.get(draft_device, "on the CPU or the target's device, whichever pays more")


def _as_number(text: str) -> float | str:
    """A latency as the record has it: a flat one is a number."""
    try:
        return float(text)
    except ValueError:
        return text
