"""What is compared on a curve: a method, its settings, where its draft model runs, and in how many
rows its passes are.

    sps:2             ours: in passes of the curve's own shape, the draft model on a core of the CPU
    sps:2@free        as users of that method have it: as many rows as it wants, as a tree
    sps:2@gpu         as llama.cpp and vLLM have it: the draft model on the target's card, in turns
                      with it; chains, as many rows as it wants
    auto+gpu          ours, with the draft model there
    sps:{1,2,4}@gpu   the best of several settings on each curve, chosen on other prompts
    ceiling           `auto` with a draft model that takes no time
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duodec.core.round import Stats
from duodec.core.targets import Candidates
from duodec.methods.method import Method
from duodec.methods.registry import method as method_named
from duodec.methods.sps_rejection import RejectionSampling
from duodec.planning.costs import Costs
from duodec_lab.bench.beds.simulated import SimulatedBed
from duodec_lab.bench.beds.virtual import RowKey
from duodec_lab.bench.recording import Conversation
from duodec_lab.bench.reports.statistics import Rate, Ratio, ratio_of_rates

ALL = "all tasks"
PLAIN, CEILING = "ar", "ceiling"
FREE, ON_GPU, IN_OUR_SHAPE, OURS = "@free", "@gpu", "+gpu", ""

Known = dict[tuple[int, ...], dict[RowKey, Candidates]]
"""Rows off the recorded texts, by the tokens of these."""


@dataclass(frozen=True)
class Entrant:
    """A row of the table: the settings of a method among which a curve has its best."""

    label: str
    settings: tuple[str, ...]  # names of methods
    bed: str  # FREE, ON_GPU, IN_OUR_SHAPE, OURS or CEILING

    @classmethod
    def parse(cls, text: str) -> Entrant:
        if text == CEILING:
            return cls(CEILING, ("auto",), CEILING)
        name, bed = text, OURS
        for suffix in (FREE, ON_GPU, IN_OUR_SHAPE):
            if text.endswith(suffix):
                name, bed = text.removesuffix(suffix), suffix
        if found := re.fullmatch(r"([^{]*):\{([^}]*)\}", name):
            settings = tuple(f"{found[1]}:{one}" for one in found[2].split(","))
            return cls(found[1] + bed, settings, bed)
        return cls(text, (name,), bed)

    @property
    def alone(self) -> list[Entrant]:
        """Each setting as an entrant of its own."""
        return [Entrant(one + self.bed, (one,), self.bed) for one in self.settings]

    def chosen(self, setting: str) -> Entrant:
        return Entrant(self.label, (setting,), self.bed)


def entrants_of(text: str) -> list[Entrant]:
    """Of a list by commas, those in braces aside; plain decoding is always among them."""
    found = [Entrant.parse(one) for one in re.split(r",(?![^{]*\})", text)]
    plain = [] if any(one.label == PLAIN for one in found) else [Entrant.parse(PLAIN)]
    return [*plain, *found]


@dataclass
class Sum:
    """Sums over the forward passes after the first, which prefills the prompt."""

    num_tokens: int = 0
    num_forwards: int = 0
    seconds: float = 0.0

    def add(self, stats: Stats) -> None:
        self.num_tokens += sum(len(r.tokens) for r in stats.rounds[1:])
        self.num_forwards += len(stats.rounds) - 1
        self.seconds += stats.decode_s


@dataclass
class Runs:
    """Entrants on one curve: their beds, what each learns, and its sums by prompt. Where it
    ``forgets``, each prompt is the first that a process decodes."""

    beds: Mapping[str, SimulatedBed]
    entrants: Sequence[Entrant]
    forgets: bool = False
    sums: dict[str, dict[tuple[str, str], Sum]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Sum))
    )

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._methods: dict[str, Method] = {}
        self._costs: dict[str, Costs] = {}
        for entrant in self.entrants:
            (setting,) = entrant.settings
            self._methods[entrant.label] = method_named(setting)
            self._costs[entrant.label] = Costs()

    @property
    def labels(self) -> list[str]:
        return [entrant.label for entrant in self.entrants]

    def answer(self, conversation: Conversation, known: Known) -> None:
        """Complete all turns with each entrant."""
        prompt = conversation.prompt
        if self.forgets:
            self._begin()
        for entrant in self.entrants:
            label, bed = entrant.label, self.beds[entrant.bed]
            bed.forget()
            for turn in conversation.turns:
                key = turn.prompt_tokens + turn.answer
                bed.known = {key: known[key]}
                answer = bed.answer(self._methods[label], turn, self._costs[label])
                is_its_own = self._methods[label].name == RejectionSampling.name  # where sampled
                assert is_its_own or answer.tokens == turn.answer, f"{label} gives another text"
                self.sums[label][prompt.task, prompt.prompt_id].add(answer.stats)

    def of(self, label: str, task: str) -> dict[tuple[str, str], Sum]:
        """The sums by prompt."""
        return {key: one for key, one in self.sums[label].items() if task in (ALL, key[0])}

    def rates(self, label: str, task: str) -> list[Rate]:
        return [(one.num_tokens, one.seconds) for one in self.of(label, task).values()]

    def rate(self, label: str) -> float:
        """Tokens a second over all prompts."""
        rates = self.rates(label, ALL)
        return sum(tokens for tokens, _ in rates) / sum(seconds for _, seconds in rates)

    def plain(self, task: str) -> list[Rate]:
        """Plain decoding in passes of one row, as it is without us: ours are padded where a row's
        bits need it, and `ar` too."""
        curve, host = self.beds[OURS].curve, self.beds[OURS].host
        num_padded = curve.shape.num_computed(1) - 1
        excess_s = curve.forward_s - curve.forward.seconds(1)
        if not curve.shape.draws_on_device:
            excess_s += host.copy * num_padded
        sums = self.of(PLAIN, task).values()
        return [(one.num_tokens, one.seconds - one.num_forwards * excess_s) for one in sums]

    def speedup(self, label: str, task: str) -> Ratio:
        """Tokens a second over those of plain decoding as it is without us."""
        return ratio_of_rates(self.rates(label, task), self.plain(task), list(self.of(PLAIN, task)))

    def default_over(self, label: str, task: str) -> Ratio:
        """Tokens a second of `auto` over another entrant's."""
        prompts = list(self.of(label, task))
        return ratio_of_rates(self.rates("auto", task), self.rates(label, task), prompts)


def best_settings(tried: Runs, entrants: Sequence[Entrant]) -> list[Entrant]:
    """Each entrant with the setting that was fastest of those that were tried alone."""
    return [
        entrant.chosen(max(entrant.settings, key=lambda one: tried.rate(one + entrant.bed)))
        if len(entrant.settings) > 1
        else entrant
        for entrant in entrants
    ]
