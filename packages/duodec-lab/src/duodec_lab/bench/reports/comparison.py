"""Compare runs: how their settings differ, then the ratios of their speeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from duodec_lab.bench.reports.statistics import Rate, Ratio, ratio_of_rates
from duodec_lab.bench.reports.tables import ALL, Cell, Table, interval_of, ratio_cell
from duodec_lab.bench.results import Generation, Pair, Results, generations_of, pairs_of, succeeded

# what always differs, or is in the notes of each table
_UNTOLD = {
    "started", "command", "load average", "other programs cores", "peak memory", "prompts", "notes",
}  # fmt: skip
_NO_FACT = "-"

Answers = dict[tuple[str, str, int], Rate]  # of a prompt and turn, repeats averaged


@dataclass(frozen=True)
class Change:
    """A method's speed in a run over its speed in the base run, on the prompts of both."""

    pair: Pair
    method: str
    task: str | None  # None: all
    ratio: Ratio | None  # None if they share no prompt


def compare(results: Sequence[Results], names: Sequence[str]) -> list[Table]:
    """What differs between the runs, then each later run's speed over the first one's.

    Any runs can be compared: only prompts that both runs completed count, and notes list what that
    leaves out. Runs of one pair each are compared even if their pairs differ.
    """
    base, tables = results[0], [_difference_table(results, names)]
    for other, name in zip(results[1:], names[1:], strict=True):
        found = changes(base, other)
        caption = f"Speed of {name} over {names[0]}"
        if not found:
            notes = (
                "no method completed the same prompt in both runs, with the same target and draft",
            )
            tables.append(Table(caption, ("method",), (), notes))
        pairs = dict.fromkeys(change.pair for change in found)
        for pair in pairs:
            words = f" for {pair}" if len(pairs) > 1 else ""
            mine = [change for change in found if change.pair == pair]
            tables.append(_change_table(f"{caption}{words}", mine, _left_out(base, other)))
    return tables


def changes(base: Results, other: Results) -> list[Change]:
    """For each method that both runs measured: task by task, and all tasks together."""
    found = []
    for pair, base_pair in _matched_pairs(base, other):
        mine, its = generations_of(other, pair), generations_of(base, base_pair)
        tasks = [task for task in other.tasks if any(g.task == task for g in mine)]
        for method in other.methods:
            ours, theirs = _answers(mine, method), _answers(its, method)
            if ours.keys() & theirs.keys():
                found += [
                    Change(pair, method, task, _ratio(ours, theirs, task))
                    for task in (*tasks, None)
                ]
    return found


def differences(results: Sequence[Results]) -> dict[str, list[str]]:
    """Settings and facts of the machine that are not the same in all runs."""
    facts = [{"clock": _clock(r), **dict(flat({**r.environment, **r.settings}))} for r in results]
    names = dict.fromkeys(name for fact in facts for name in fact if name not in _UNTOLD)
    values = {name: [fact.get(name, _NO_FACT) for fact in facts] for name in names}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


def _clock(results: Results) -> str:
    """What its seconds are: those of two clocks say nothing together."""
    return " and ".join(dict.fromkeys(g.test_bed for g in results.generations)) or _NO_FACT


def _difference_table(results: Sequence[Results], names: Sequence[str]) -> Table:
    rows = [(Cell(name), *map(Cell, values)) for name, values in differences(results).items()]
    notes = () if rows else ("nothing but their time",)
    return Table("What differs between the runs", ("", *names), tuple(rows), notes)


def _matched_pairs(base: Results, other: Results) -> Iterator[tuple[Pair, Pair]]:
    """(the other's pair, the base's one)."""
    theirs, ours = pairs_of(base), pairs_of(other)
    if len(theirs) == len(ours) == 1:
        yield ours[0], theirs[0]
    else:
        yield from ((pair, pair) for pair in ours if pair in theirs)


def _change_table(caption: str, found: Sequence[Change], notes: Iterable[str]) -> Table:
    tasks = list(dict.fromkeys(change.task for change in found))
    cells = {(change.method, change.task): _cell(change.ratio) for change in found}
    rows = [
        (Cell(method), *(cells[method, task] for task in tasks))
        for method in dict.fromkeys(change.method for change in found)
    ]
    return Table(caption, ("method", *(t or ALL for t in tasks)), tuple(rows), tuple(notes))


def _answers(generations: Sequence[Generation], method: str) -> Answers:
    """The mean of the repeats, so that a prompt weighs the same in both runs."""
    found: dict[tuple[str, str, int], list[Rate]] = {}
    for g in succeeded(generations):
        if g.method == method and g.rate and g.rate[0] > 0:
            found.setdefault(g.prompt_key, []).append(g.rate)
    return {
        key: (sum(t for t, _ in rates) / len(rates), sum(s for _, s in rates) / len(rates))
        for key, rates in found.items()
    }


def _ratio(ours: Answers, theirs: Answers, task: str | None) -> Ratio | None:
    both = [key for key in ours if key in theirs and task in (None, key[0])]
    if not both:
        return None
    prompts = [key[:2] for key in both]
    return ratio_of_rates([ours[k] for k in both], [theirs[k] for k in both], prompts)


def _cell(ratio: Ratio | None) -> Cell:
    return ratio_cell(ratio, interval_of(ratio) if ratio else "")


def _left_out(base: Results, other: Results) -> Iterator[str]:
    clocks = _clock(base), _clock(other)
    if clocks[0] != clocks[1]:
        yield f"these ratios mean nothing: one clock is {clocks[0]}, the other {clocks[1]}"
    for word, of in (("prompts", _prompts), ("methods", _methods)):
        ours, theirs = of(other), of(base)
        if ours != theirs:
            yield (
                f"compares the {len(ours & theirs)} {word} that both runs have; left out: "
                f"{len(ours - theirs)} of this run alone, {len(theirs - ours)} of the first alone"
            )


def _prompts(results: Results) -> set[object]:
    return {g.prompt_key for g in succeeded(results.generations)}


def _methods(results: Results) -> set[object]:
    return {g.method for g in succeeded(results.generations)}


_NONE = "-"
_LONG_LIST = 16


def flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, words) of every fact; a nested one is named as in `packages numpy`."""
    for key, value in facts.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict) and value:
            yield from flat(value, f"{name} ")
        elif isinstance(value, list):
            yield name, _listed(list(map(str, value)))
        elif key.endswith("_bytes") and isinstance(value, (int, float)):
            yield name.removesuffix(" bytes"), f"{value / 2**30:.2f} GiB"
        elif key.endswith("_gib") and value is not None:
            yield name.removesuffix(" gib"), f"{value} GiB"
        elif isinstance(value, bool):
            yield name, "yes" if value else "no"
        else:
            yield name, _NONE if value in (None, "", {}) else str(value)


def _listed(words: list[str]) -> str:
    if len(words) > _LONG_LIST:
        return f"{len(words)}, from {words[0]} to {words[-1]}"
    return ", ".join(words) or _NONE


def headline(results: Results) -> list[tuple[str, str]]:
    """What a reader needs to know before any figure."""
    settings = results.settings
    completions = results.generations
    facts: list[tuple[str, object]] = [
        ("prompts", len({(g.task, g.prompt_id) for g in completions})),
        ("tasks", len(results.tasks)),
        ("methods", len(results.methods)),
        ("completions", len(completions)),
        ("repeats", settings.get("repeats")),
        ("test bed", ", ".join(dict.fromkeys(g.test_bed for g in completions))),
        ("ms a forward pass", settings.get("replay_ms") or settings.get("simulate_ms")),
        ("what these costs are", (settings.get("curve") or {}).get("origin")),
        ("ms of a draft step, by tokens", settings.get("draft_ms")),
        ("us of the host's work", settings.get("host_us")),
        ("tokens a completion, at most", settings.get("max_tokens")),
        ("temperature", settings.get("temperature")),
        ("control", settings.get("control")),
    ]
    return [(name, str(value)) for name, value in facts if value is not None]
