"""Write a report's sentences: its verdict, its cautions, and the base of its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from duodec_lab.bench.reports.measures import PairMeasures, measure, ratio_to
from duodec_lab.bench.reports.statistics import FEWEST_FOR_A_MARK, Ratio, slow_outliers
from duodec_lab.bench.results import Generation, Results, generations_of, succeeded

_IDLE_LOAD = 0.5  # cores
_FEW_PROMPTS = 10
_SAME_METHOD_MAY_DIFFER = 0.02
_QUIET = "measure again on a quiet machine"

TEST_BEDS = {
    "replay": "a replayed target (waiting stands in for its forward passes)",
    "clocked": "a target whose forward passes count as a given latency",
    "simulated": "a simulated target (virtual time, costs from tables)",
    "enforced": "a target that is forced to give a recorded text",
}


def verdict(measures: PairMeasures) -> str:
    """One sentence: the fastest method that enough prompts have judged, by how much, and which ones
    lose."""
    plain, others = measures.baseline, _others(measures)
    bed = " and ".join(TEST_BEDS[bed] for bed in measures.test_beds if bed in TEST_BEDS)
    head = f"On {bed}, " if bed else ""
    ratios = {m: ratio for m in others if (ratio := measures.of(m).ratio)}
    if not ratios:
        return f"{head}no measurement can be compared with {plain}."
    judged = {m: ratio for m, ratio in ratios.items() if ratio.is_conclusive}
    best, ratio = max(
        (judged or ratios).items(), key=lambda item: (item[1].is_faster, item[1].value)
    )
    prompts = count(ratio.num_prompts, "prompt")
    figures = f"over {prompts}" if ratio.low is None else f"{interval_words(ratio)}, over {prompts}"
    if not judged:
        words = (
            f"{best} decoded at {ratio.value:.2f} times the speed of {plain} ({figures}), too few "
            f"to call a method faster or slower; measure {FEWEST_FOR_A_MARK} prompts or more"
        )
    elif ratio.is_faster:
        is_first = ratio.value == max(other.value for other in ratios.values())
        rank = f", the fastest of {len(ratios)} methods," if len(ratios) > 1 and is_first else ""
        words = f"{best}{rank} decodes at {ratio.value:.2f} times the speed of {plain} ({figures})"
        if measures.unpadded_share is not None:
            over = measures.unpadded_share * ratio.value
            words += f", which is padded: {over:.2f} times unpadded plain decoding"
    else:
        words = (
            f"no method is measurably faster than {plain}; the best, {best}, decodes at "
            f"{ratio.value:.2f} times its speed ({figures})"
        )
    slower = [m for m, r in ratios.items() if r.is_slower]
    losses = f"; slower than {plain}: {listed(slower)}" if slower else ""
    return f"{head}{words}{losses}."


def cautions(results: Results) -> list[str]:
    """Why these figures may mislead, each with its remedy; the most serious first."""
    pairs = measure(results)
    found: dict[str, list[str]] = {}  # -> the pairs that it applies to
    for measures in pairs:
        ours = generations_of(results, measures.pair)
        for words in (
            *_about_failures(ours, measures),
            *_about_the_text(measures),
            *_about_noise(ours, measures),
        ):
            found.setdefault(words, []).append(str(measures.pair))
    of_pairs = [
        words if len(names) == len(pairs) else f"{listed(names)}: {words}"
        for words, names in found.items()
    ]
    return [*_about_the_run(results), *of_pairs]


def failures(results: Results) -> list[Generation]:
    """The records that enter no figure."""
    return [g for g in results.generations if g.error]


def interval_words(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return "no interval from one prompt"
    return f"95% interval {ratio.low:.2f} to {ratio.high:.2f}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _others(measures: PairMeasures) -> list[str]:
    """All methods but the baseline and its repetitions."""
    plain = measures.baseline
    return [m for m in measures.methods if m.partition("#")[0] != plain.partition("#")[0]]


def _about_the_run(results: Results) -> Iterator[str]:
    is_timed = any(g.test_bed != "simulated" for g in results.generations)
    if not results.settings.get("is_complete", True):
        yield (
            "The run was cut short, so methods may be measured on different prompts; "
            "let it run to its end."
        )
    others = results.environment.get("other_programs_cores") or 0.0
    if not is_timed:
        if others > _IDLE_LOAD:
            yield (
                f"Other programs kept {others:.1f} cores busy. The clock is virtual: that matters "
                "only where prices were measured here, that is without --draft-ms or --host-us."
            )
        return
    load = next(iter(results.environment.get("load_average") or [0.0]))
    if load > _IDLE_LOAD:
        yield (
            f"The load average was {load:.1f} when the run began: something else was using the "
            f"machine; {_QUIET}."
        )
    if others > _IDLE_LOAD:
        yield (
            f"Other programs kept {others:.1f} cores busy during the run. Methods that wait for "
            f"each draft (sps) lose most by that, some of them nearly all their speed; {_QUIET}."
        )


def _about_failures(ours: Sequence[Generation], measures: PairMeasures) -> Iterator[str]:
    for method in measures.methods:
        cell = measures.of(method)
        if cell.num_failed:
            first = next(g for g in ours if g.method == method and g.error)
            yield (
                f"{cell.num_failed} of {cell.num_generations} generations of {method} failed and "
                f"are in no figure (first: {_place(first)}, {one_line(first.error)}); "
                "fix the cause and measure again."
            )
        restarts = sum(g.drafter_restarts or 0 for g in ours if g.method == method)
        if restarts:
            yield (
                f"The drafter of {method} was restarted {count(restarts, 'time')}, and its "
                "drafts of that time are missing; look for its cause (memory?) and measure again."
            )


def _about_the_text(measures: PairMeasures) -> Iterator[str]:
    for method in measures.methods:
        cell = measures.of(method)
        if cell.identical and cell.identical.count < cell.identical.total:
            differing = cell.identical.total - cell.identical.count
            ties = (
                "" if cell.num_near_ties is None else f", {count(cell.num_near_ties, 'near tie')}"
            )
            yield (
                f"{method} gave another text than plain decoding in {differing} of "
                f"{cell.identical.total} completions{ties}: with other kernels or widths a near "
                "tie may be decided differently; measure with --exact."
            )


def _about_noise(ours: Sequence[Generation], measures: PairMeasures) -> Iterator[str]:
    for method in measures.methods:
        mine = succeeded(g for g in ours if g.method == method)
        yield from _slow_words(method, mine)
        again = [g for g in ours if g.method == method.partition("#")[0]]
        ratio = ratio_to(mine, again) if "#" in method else None
        if ratio and abs(ratio.value - 1) > _SAME_METHOD_MAY_DIFFER:
            yield (
                f"{method} is the same method a second time and measured {ratio.value:.2f} of its "
                f"speed ({interval_words(ratio)}): smaller differences mean nothing here; {_QUIET}."
            )
    ratios = (cell.ratio for cell in measures.cells.values() if cell.method in _others(measures))
    fewest = min((ratio.num_prompts for ratio in ratios if ratio), default=_FEW_PROMPTS)
    if 1 < fewest < _FEW_PROMPTS:  # one has no interval
        yield (
            f"An interval over {count(fewest, 'prompt')} holds the true ratio less often than 95% "
            "says; raise --limit."
        )


def _slow_words(method: str, generations: Sequence[Generation]) -> Iterator[str]:
    """Compare seconds a round, drafting included, with the method's other generations on the same
    task: independent of acceptance and of the completion's length, at similar contexts."""
    timed = sorted((g for g in generations if g.rate), key=lambda g: g.task)
    found: list[tuple[float, Generation]] = []
    for _, group in groupby(timed, key=lambda g: g.task):
        mine = list(group)
        seconds = [(g.decode_s or 0.0) / (len(g.trace) - 1) for g in mine]
        usual = sorted(seconds)[len(seconds) // 2]
        found += [(seconds[i] / usual, mine[i]) for i in slow_outliers(seconds)]
    if found:
        factor, worst = max(found, key=lambda item: item[0])
        yield (
            f"{len(found)} of {len(timed)} generations of {method} took up to {factor:.1f} times "
            f"as long a round as its others on the same task (worst: {_place(worst)}): was "
            f"something else using the machine? {_QUIET.capitalize()}."
        )


def _place(g: Generation) -> str:
    turn = f", turn {g.turn}" if g.turn > 1 else ""
    repeat = f", repeat {g.repeat}" if g.repeat else ""
    return f"{g.task} {one_line(g.prompt_id)}{turn}{repeat}"


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())
