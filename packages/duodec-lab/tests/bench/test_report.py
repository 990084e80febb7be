"""What a report makes of made-up runs: its figures, its words, its page and its refusals."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import FORWARD_S, METHODS, TASKS, Change, run

from duodec.errors import BackendUnavailable, BadOption, ResultsUnreadable
from duodec_lab.bench.figures.speed import words_and_colour
from duodec_lab.bench.reports.comparison import changes, compare
from duodec_lab.bench.reports.measures import PairMeasures, measure
from duodec_lab.bench.reports.report import write_comparison, write_report
from duodec_lab.bench.reports.sentences import cautions, failures, verdict
from duodec_lab.bench.reports.statistics import Ratio
from duodec_lab.bench.reports.tables import (
    ALL,
    Cell,
    Table,
    cost_table,
    markdown,
    paper_table,
    task_tables,
)
from duodec_lab.bench.reports.timeline import timeline
from duodec_lab.bench.results import Generation, Results
from duodec_lab.bench.tasks import TASKS as ALL_TASKS
from duodec_lab.commands import report, tables


def of(results: Results) -> PairMeasures:
    (measures,) = measure(results)
    return measures


def failing(method: str, task: str, *numbers: int) -> Change:
    """These prompts of a method fail, and their records keep nothing but the error."""

    def change(g: Generation) -> Generation:
        if g.method != method or g.prompt_id not in {f"{task}-{n}" for n in numbers}:
            return g
        head = ("task", "prompt_id", "turn", "method", "target", "draft", "repeat", "test_bed")
        kept = {name: getattr(g, name) for name in head}
        return Generation(**kept, error="DrafterLost: the drafter ended")

    return change


# Measures


def test_the_figures_are_sums_over_answers() -> None:
    results = run()
    duo = of(results).of("duo")
    mine = [g for g in results.generations if g.method == "duo"]
    assert duo.tokens_per_second == pytest.approx(63 * 12 / sum(g.decode_s or 0 for g in mine))
    assert duo.mean_accepted == pytest.approx(64 * 12 / sum(g.rounds or 0 for g in mine))
    assert duo.ttft_s == pytest.approx(0.3)
    assert duo.identical
    assert str(duo.identical) == "12 of 12"
    assert duo.memory_bytes == 2**30
    assert duo.energy_j_per_token is None


def test_plain_decoding_has_one_token_a_forward_and_accepts_nothing() -> None:
    plain = of(run()).of("ar")
    assert plain.mean_accepted == 1
    assert not any(plain.acceptance)
    assert plain.token_latency_s == pytest.approx(FORWARD_S, rel=0.01)
    assert plain.gap_p95_s == pytest.approx(FORWARD_S, rel=0.02)


def test_acceptance_by_position_falls_from_the_drafts_own() -> None:
    shares = of(run()).of("duo").acceptance
    assert shares[0] == pytest.approx(0.6, abs=0.1)
    assert list(shares) == sorted(shares, reverse=True)


def test_free_drafting_is_the_ceiling_of_who_waits_for_drafts() -> None:
    slow, duo = of(run()).of("slow"), of(run()).of("duo")
    assert slow.efficiency == pytest.approx(25 / 35, rel=0.01)
    assert duo.efficiency == pytest.approx(1, rel=0.01)
    assert slow.ceiling_share == pytest.approx(25 / 35, rel=0.02)
    assert slow.overlap == 0
    assert duo.overlap == pytest.approx(0.6, abs=0.2)


def test_the_same_method_twice_has_one_in_its_interval() -> None:
    ratio = of(run()).of("ar#2").ratio
    assert ratio
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= 1 <= ratio.high
    assert ratio.value == pytest.approx(1, abs=0.005)


def test_a_method_without_a_draft_counts_with_every_draft() -> None:
    def other_draft(g: Generation) -> Generation:
        return dataclasses.replace(g, draft="tiny" if g.draft else None)

    results = run()
    both = Results(
        [*results.generations, *(other_draft(g) for g in run().generations if g.draft)],
        results.environment,
        results.settings,
    )
    first, second = measure(both)
    assert (first.pair.draft, second.pair.draft) == ("small", "tiny")
    assert first.methods == second.methods == tuple(METHODS)
    assert first.of("duo").ratio == second.of("duo").ratio


def test_repeats_are_paired_and_make_no_new_prompts() -> None:
    measures = of(run(num_repeats=3))
    assert measures.of("duo").num_generations == 36
    assert measures.of("duo").ratio
    assert measures.of("duo").ratio.num_prompts == 12  # type: ignore[union-attr]


# Failed prompts


@pytest.mark.parametrize("method", ["duo", "ar"])
def test_a_failed_prompt_enters_no_figure(method: str) -> None:
    whole, broken = of(run()), of(run(failing(method, "qa", 1, 4)))
    assert broken.of(method, "qa").num_failed == 2
    ratio = broken.of("duo", "qa").ratio
    assert ratio
    assert ratio.num_prompts == 4, "a pair is compared only where both succeeded"
    assert broken.of("duo", "humaneval") == whole.of("duo", "humaneval")
    without = run()
    kept = [g for g in without.generations if g.prompt_id not in ("qa-1", "qa-4")]
    assert ratio == of(Results(kept, without.environment, without.settings)).of("duo", "qa").ratio


def test_failed_prompts_are_listed(tmp_path: Path) -> None:
    results = run(failing("duo", "qa", 1, 4))
    assert [g.prompt_id for g in failures(results)] == ["qa-1", "qa-4"]
    words = " ".join(cautions(results))
    assert "2 of 12 generations of duo failed" in words
    assert "DrafterLost: the drafter ended" in words
    page = page_of(results, tmp_path)
    assert "Failed prompts" in page
    assert page.count("DrafterLost") >= 2
    assert "2 of 6" in markdown(task_tables(of(results))[1])


def test_a_method_that_always_fails_is_in_the_table_without_a_figure(tmp_path: Path) -> None:
    results = run(failing("duo", "qa", *range(6)))
    lines = markdown(paper_table(of(results))).splitlines()
    row = next(line for line in lines if line.startswith("| duo"))
    assert "**failed**" in row
    assert page_of(results, tmp_path)


# Words


def test_the_verdict_names_the_best_and_the_losers_and_the_stand_in() -> None:
    words = verdict(of(run()))
    assert words.startswith("On a replayed target")
    assert "duo, the fastest of 2 methods, decodes at 2." in words
    assert "over 12 prompts" in words
    assert words.endswith("slower than ar: slow.")


def test_no_method_is_called_faster_when_none_is() -> None:
    results = run()
    kept = [g for g in results.generations if g.method != "duo"]
    words = verdict(of(Results(kept, results.environment, results.settings)))
    assert "no method is measurably faster than ar" in words


def rated(method: str, value: float, low: float, high: float, num_prompts: int) -> PairMeasures:
    """The usual run, with this speed-up for one of its methods."""
    measures = of(run())
    ratio = Ratio(value, low, high, num_prompts)
    cells = {
        key: dataclasses.replace(cell, ratio=ratio) if cell.method == method else cell
        for key, cell in measures.cells.items()
    }
    return dataclasses.replace(measures, cells=cells)


def test_a_few_prompts_judge_no_method() -> None:
    kept = [g for g in run().generations if g.method in ("ar", "duo")]
    few = [g for g in kept if g.prompt_id.endswith(("-0", "-1")) and g.task == "qa"]
    results = run()
    measures = of(Results(few, results.environment, {**results.settings, "methods": ["ar", "duo"]}))
    words = verdict(measures)
    assert "no method is measurably faster" not in words
    assert "over 2 prompts), too few to call a method faster or slower" in words
    (_, duo) = markdown(paper_table(measures)).splitlines()[-2:]
    assert "faster" not in duo


def test_a_method_that_is_faster_is_named_beside_one_that_only_reads_so() -> None:
    words = verdict(rated("slow", 9.0, 0.9, 20.0, 12))
    assert "duo decodes at 2." in words
    assert "no method" not in words
    words = verdict(rated("slow", 9.0, 5.0, 20.0, 4))
    assert "duo decodes at 2." in words, "four prompts judge nothing"


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (Ratio(2.0, 1.5, 2.5, 12), "+ 2.00"),
        (Ratio(0.5, 0.4, 0.6, 12), "\u2212 0.50"),
        (Ratio(1.2, 0.9, 1.4, 12), "= 1.20"),
        (Ratio(1.002, 1.001, 1.003, 12), "= 1.00"),
        (Ratio(2.1, 1.17, 4.43, 4), "2.10"),
        (Ratio(2.1, None, None, 1), "2.10"),
    ],
)
def test_a_sign_means_what_the_legend_says(ratio: Ratio, shown: str) -> None:
    assert words_and_colour(ratio)[0] == shown


def test_a_run_of_the_baseline_alone_has_a_verdict_too(tmp_path: Path) -> None:
    results = run()
    kept = [g for g in results.generations if g.method == "ar"]
    alone = Results(kept, results.environment, {**results.settings, "methods": ["ar"]})
    assert "no measurement can be compared with ar" in verdict(of(alone))
    assert page_of(alone, tmp_path)


def test_a_quiet_complete_run_has_no_cautions() -> None:
    assert cautions(run(num_prompts=10)) == []


@pytest.mark.parametrize(
    ("words", "results"),
    [
        ("The run was cut short", lambda: run(is_complete=False)),
        ("was restarted 12 times", lambda: run(lambda g: of_duo(g, drafter_restarts=1))),
        ("duo gave another text", lambda: run(lambda g: of_duo(g, identical=False))),
        ("ar#2 is the same method a second time", lambda: run(lambda g: slowed(g, "ar#2", 1.1))),
        ("An interval over 4 prompts", lambda: run(failing("duo", "qa", 1, 4))),
    ],
)
def test_a_caution_says_what_may_mislead(words: str, results: Callable[[], Results]) -> None:
    (caution,) = (line for line in cautions(results()) if words in line)
    assert caution.endswith(".")


def of_duo(g: Generation, **values: Any) -> Generation:
    return dataclasses.replace(g, **values) if g.method == "duo" else g


def slowed(g: Generation, method: str, factor: float) -> Generation:
    if g.method != method:
        return g
    trace = [
        dataclasses.replace(r, start_s=r.start_s * factor, end_s=r.end_s * factor) for r in g.trace
    ]
    return dataclasses.replace(g, decode_s=(g.decode_s or 0) * factor, trace=trace)


def test_a_busy_machine_is_named() -> None:
    quiet = run()
    card = {**quiet.environment, "load_average": [1.3], "other_programs_cores": 0.8}
    before, during, _ = cautions(dataclasses.replace(quiet, environment=card))
    assert "load average was 1.3" in before
    assert "Other programs kept 0.8 cores busy" in during


def test_a_generation_that_was_disturbed_is_named() -> None:
    results = run(lambda g: slowed(g, "slow", 1.9) if g.prompt_id == "qa-3" else g)
    caution, _ = cautions(results)
    assert "1 of 12 generations of slow took up to 1.9 times as long" in caution
    assert "worst: qa qa-3" in caution


# Tables


def test_every_method_is_in_every_table() -> None:
    measures = of(run())
    for table in (paper_table(measures), *task_tables(measures), cost_table(measures, "why")):
        assert [row[0].text for row in table.rows] == list(METHODS)
        assert {len(row) for row in table.rows} == {len(table.head)}


def test_a_loss_is_marked_in_words() -> None:
    lines = markdown(paper_table(of(run()))).splitlines()
    (loss,) = (line for line in lines if line.startswith("| slow"))
    assert loss.count("**slower**") == 3
    assert not any("slower" in line for line in lines if not line.startswith("| slow"))


def test_a_column_without_a_figure_is_left_out_with_a_reason() -> None:
    table = cost_table(of(run()), "no counter here")
    assert "J a token" not in table.head
    assert table.notes == ("left out: J a token (no counter here)",)


def test_markdown_cannot_be_broken_by_a_name() -> None:
    results = run(lambda g: dataclasses.replace(g, task=f"a|b\n<b>{g.task}"))
    tasks = [f"a|b\n<b>{task}" for task in TASKS]
    lines = markdown(paper_table(of(dataclasses.replace(
        results, settings={**results.settings, "tasks": tasks}
    )))).splitlines()  # fmt: skip
    rows = [line for line in lines if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
    assert not any(re.search(r"(?<!\\)<", row) for row in rows)


# The page


class Page(HTMLParser):
    """Reads a page: what it would load, its headings, and whether its tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action"):
                self.loads.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in ("meta", "br", "link", "img"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def page_of(results: Results, folder: Path) -> str:
    path = folder / "report.html"
    write_report(results, path)
    text = path.read_text("utf-8")
    assert [p.name for p in folder.iterdir()] == ["report.html"], "nothing else is left behind"
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert [link for link in page.loads if not link.startswith("#")] == ["results.json"]
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    return text


def test_the_page_stands_alone_and_has_everything(tmp_path: Path) -> None:
    page = page_of(run(notes=["The target is a stand-in."]), tmp_path)
    assert "The target is a stand-in." in page
    assert "duodec bench --methods ar,ar,slow,duo" in page
    assert '<html lang="en">' in page
    for method in METHODS:
        assert page.count(f'<th scope="row">{method}</th>') == 5  # paper, costs, all, two tasks
    # all tasks, each task, acceptance and timeline, each with a title and words
    assert page.count("<svg") == page.count("<title id=") == page.count("<desc id=") == 5
    assert "slower</span>" in page


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    assert page_of(run(), tmp_path) == page_of(run(), tmp_path)


def test_a_name_is_text_and_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>$\\frac{a}$"

    def change(g: Generation) -> Generation:
        failed = failing("duo", "qa", 1)(g)
        return dataclasses.replace(
            failed, prompt_id=evil + g.prompt_id, error=failed.error and evil
        )

    page = page_of(run(change, notes=[evil], command=evil), tmp_path)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    "change",
    [
        lambda g: dataclasses.replace(g, trace=[], acceptance_histogram=[]),
        lambda g: dataclasses.replace(g, trace=g.trace[:1], decode_s=0.0, rounds=1, new_tokens=1),
        lambda g: dataclasses.replace(g, overlap=None, draft_busy_s=None, target_busy_s=None),
        lambda g: dataclasses.replace(g, ttft_s=None, memory_bytes=None, near_ties=None),
        lambda g: g if g.prompt_id == "qa-1" else failing(g.method, g.task, *range(6))(g),
        lambda g: dataclasses.replace(g, method=f"{g.method}-{'long' * 20}"),
        lambda g: dataclasses.replace(g, task=f"\u6570\u5b66 {g.task}", score=True, energy_j=9.0),
    ],
)
def test_a_page_is_made_of_whatever_was_measured(change: Change, tmp_path: Path) -> None:
    results = run(change)
    names = {
        "methods": list(dict.fromkeys(g.method for g in results.generations)),
        "tasks": list(dict.fromkeys(g.task for g in results.generations)),
        "baseline": results.generations[0].method,
    }
    assert page_of(dataclasses.replace(results, settings={**results.settings, **names}), tmp_path)


def test_a_timeline_shows_all_methods_on_one_prompt_and_one_axis() -> None:
    results = run(failing("duo", "qa", 0))
    shown = timeline(results.generations, list(METHODS), "ar")
    assert shown
    assert shown.prompt == "qa, prompt qa-1"
    assert [lane.method for lane in shown.lanes] == list(METHODS)
    plain, _, slow, duo = shown.lanes
    assert (plain.total_tokens, len(plain.forwards)) == (12, 12)
    assert slow.total_tokens < 12 < duo.total_tokens
    assert slow.waits
    assert duo.overlaps
    assert not duo.waits
    for lane in shown.lanes:
        for start_s, length_s in (*lane.forwards, *lane.waits, *lane.overlaps):
            assert 0 <= start_s < start_s + length_s <= shown.length_s + 1e-9


# Comparisons of runs


def test_a_run_compared_with_itself_is_one() -> None:
    for change in changes(run(), run()):
        assert change.ratio
        assert change.ratio.value == pytest.approx(1)


def test_a_faster_machine_is_found_and_what_differs_is_named_first() -> None:
    slow_run = run(lambda g: slowed(g, g.method, 1.5))
    fast = dataclasses.replace(run(), environment={**run().environment, "cpu": "a faster one"})
    differing, table = compare([slow_run, fast], ["a", "b"])
    assert [[cell.text for cell in row] for row in differing.rows] == [
        ["cpu", "a processor", "a faster one"]
    ]
    assert {row[-1].text for row in table.rows} == {"1.50x"}


def test_runs_of_two_clocks_are_not_compared_in_silence() -> None:
    other = run(lambda g: dataclasses.replace(g, test_bed="simulated"))
    differing, table = compare([run(), other], ["a", "b"])
    beds = [run().generations[0].test_bed, "simulated"]
    assert [cell.text for cell in differing.rows[0]] == ["clock", *beds]
    assert f"one clock is {beds[0]}, the other simulated" in table.notes[0]


def test_busy_cores_hardly_matter_on_a_virtual_clock() -> None:
    timed, virtual = run(), run(lambda g: dataclasses.replace(g, test_bed="simulated"))
    busy = {"other_programs_cores": 1.5}
    (words, *_) = cautions(dataclasses.replace(virtual, environment=busy))
    assert "without --draft-ms" in words
    assert any(
        "measure again" in words for words in cautions(dataclasses.replace(timed, environment=busy))
    )


def test_only_prompts_of_both_runs_are_compared() -> None:
    ours = run(failing("duo", "qa", 0))
    kept = [g for g in run().generations if g.prompt_id != "qa-1"]
    theirs = Results(kept, ours.environment, ours.settings)
    (duo,) = (c for c in changes(theirs, ours) if (c.method, c.task) == ("duo", "qa"))
    assert duo.ratio
    assert duo.ratio.num_prompts == 4
    notes = " ".join(compare([theirs, ours], ["a", "b"])[1].notes)
    assert "compares the 11 prompts that both runs have; left out: 1 of this run alone" in notes


def test_a_caution_of_one_pair_names_it() -> None:
    results = run(num_prompts=10)
    others = run(lambda g: of_duo(g, draft="tiny", identical=False), num_prompts=10).generations
    both = [*results.generations, *(g for g in others if g.draft == "tiny")]
    (caution,) = cautions(Results(both, results.environment, results.settings))
    assert caution.startswith("big with tiny: duo gave another text")


def test_runs_that_share_nothing_are_told_so() -> None:
    other = run(lambda g: dataclasses.replace(g, method=f"{g.method}!"), methods=["duo!"])
    _, table = compare([run(), other], ["a", "b"])
    assert table.rows == ()
    assert "no method completed the same prompt" in table.notes[0]


def test_the_page_of_a_comparison_stands_alone(tmp_path: Path) -> None:
    write_comparison([run(), run()], ["<a>", "b"], tmp_path / "both.html")
    text = (tmp_path / "both.html").read_text("utf-8")
    assert Page(text).loads == []
    assert "&lt;a&gt; and b compared" in text


# The command


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    run().write(folder / "results.json")
    return folder / "results.json"


def test_results_come_back_as_they_were(saved: Path) -> None:
    again = Results.read(saved)
    assert (again.environment, again.settings) == (run().environment, run().settings)
    assert of(again).of("duo").tokens_per_second == of(run()).of("duo").tokens_per_second
    again.write(saved)
    assert Results.read(saved).generations == again.generations


def test_piped_it_is_markdown(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.report([saved])
    out, err = capsys.readouterr()
    assert "| method | qa | humaneval | all tasks |" in out
    assert "**slower**" in out
    assert "\x1b" not in out
    assert err == ""


def test_a_terminal_gets_a_table_that_needs_no_colour(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "60")
    report.report([saved])
    out, _ = capsys.readouterr()
    assert "|" not in out
    assert len(re.findall(r"0\.\d\dx slower", out)) == 3


def test_tasks_are_named_without_a_break_at_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "is_terminal", lambda stream: True)
    row = (Cell("lookahead"), *[Cell("1.00x", "1.00")] * (len(ALL_TASKS) + 1))
    for columns, wanted in ((80, "transl. summar. math"), (100, "translation summarization")):
        monkeypatch.setenv("COLUMNS", str(columns))
        tables.put_rich_table(Table("Speed-up", ("method", *ALL_TASKS, ALL), (row,)))
        out, _ = capsys.readouterr()
        words = set(re.findall(r"[\w.]+", out))
        assert words >= {"mt_bench", "qa", "rag", *wanted.split()}, out
        assert all(len(line) <= columns for line in out.splitlines())


def test_as_json_it_is_one_object(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.report([saved], json=True)
    record = json.loads(capsys.readouterr().out)
    (pair,) = record["pairs"]
    assert (pair["target"], pair["draft"], len(pair["measures"])) == ("big", "small", 12)
    report.report([saved, saved.parent], json=True)
    record = json.loads(capsys.readouterr().out)
    assert record["differences"] == {}
    assert len(record["changes"][str(saved.parent)]) == 12


def test_the_page_links_to_its_records(saved: Path, tmp_path: Path) -> None:
    report.report([saved.parent], output=tmp_path / "page.html")
    assert Page((tmp_path / "page.html").read_text("utf-8")).loads[-1] == "run/results.json"


def written(folder: Path, text: str) -> Path:
    path = folder / "some.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "none.json", "cannot be read"),
        (lambda folder: folder, "cannot be read"),
        (lambda folder: written(folder, ""), "is not JSON"),
        (lambda folder: written(folder, "{} trailing"), "is not JSON"),
        (lambda folder: written(folder, "[1]"), "has schema version None"),
        (lambda folder: written(folder, '{"schema_version": 99}'), "has schema version 99"),
        (lambda folder: written(folder, '{"schema_version": 1}'), "is broken"),
        (
            lambda folder: written(
                folder,
                '{"schema_version": 1, "generations": [], "environment": {}, "settings": {}}',
            ),
            "is broken",
        ),
        (
            lambda folder: written(
                folder,
                '{"schema_version": 1, "generations": [], "environment": {}, "settings": '
                '{"methods": [], "tasks": [], "baseline": "ar"}}',
            ),
            "no successful completion",
        ),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(
    make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ResultsUnreadable, match=words) as caught:
        report.report([make(tmp_path)])
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "the remedy"


def test_a_run_of_failures_is_refused_with_the_first_error(tmp_path: Path) -> None:
    results = run(lambda g: failing(g.method, g.task, *range(6))(g))
    results.write(tmp_path / "results.json")
    with pytest.raises(ResultsUnreadable, match=r"48 failed, the first with: DrafterLost"):
        report.report([tmp_path])


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("none/page.html", "there is no folder"),
        ("run", "is not an ordinary file"),
        ("run/results.json", "is the file to be read"),
        ("/dev/null", "is not an ordinary file"),
    ],
)
def test_a_place_that_cannot_take_a_page_is_refused(
    saved: Path, tmp_path: Path, place: str, words: str
) -> None:
    before = saved.read_bytes()
    with pytest.raises(BadOption, match=words):
        report.report([saved], output=tmp_path / place)
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, OSError), (errno.EACCES, BadOption)]
)
def test_a_disk_that_refuses_leaves_the_old_page(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    expected: type[Exception],
) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(expected):
        report.report([saved], output=page)
    assert page.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "run"]


def test_a_missing_library_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"-m pip install (scipy|matplotlib)"):
        report.report([saved])
