"""What a run becomes for a paper: CSV, LaTeX, figures as files, and where the figures come from."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes.runs import METHODS, TASKS, run

from duodec.cli import app
from duodec.loading.config import EngineConfig
from duodec.models import resolve
from duodec_lab.bench import provenance
from duodec_lab.bench.reports.exports import csv_text, escaped, latex_text, write_figures
from duodec_lab.bench.reports.measures import measure
from duodec_lab.bench.reports.statistics import ratio_of_rates

MODELS = {"big": {"quantisation": "Q4_K_M", "sha256": "ab" * 32}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "results.json"
    run().write(path)
    return path


def test_csv_has_a_row_for_each_method_and_task_and_the_figures_of_the_report() -> None:
    results = run()
    rows = list(csv.DictReader(io.StringIO(csv_text(results))))
    assert len(rows) == len(METHODS) * (len(TASKS) + 1)
    (pair,) = measure(results)
    for row in rows:
        one = pair.of(row["method"], None if row["task"] == "all" else row["task"])
        assert row["target"] == "big"
        assert float(row["tokens_per_second"]) == one.tokens_per_second
        assert one.ratio is not None
        assert float(row["ratio"]) == one.ratio.value
        assert int(row["num_prompts"]) == one.ratio.num_prompts
        assert row["energy_j_per_token"] == "", "what was not measured is empty"


def test_latex_is_whole_and_its_caption_says_what_was_measured() -> None:
    results = run()
    results.environment["models"] = MODELS
    results.environment["commit"] = "0123456789abcdef"
    text = latex_text(results)
    assert text.count("\\begin{table}") == text.count("\\end{table}") == 3
    for line in text.splitlines():
        assert line.count("{") - line.count("\\{") == line.count("}") - line.count("\\}") or (
            "resizebox" in line or "end{tabular}" in line
        )
    for words in ("Q4\\_K\\_M, SHA-256 abababababab", "a processor", "commit 0123456789ab"):
        assert words in text
    assert "ar\\#2" in text
    assert "$\\times$" in text
    assert re.search(r"^slow & .*slower", text, re.MULTILINE)
    body = text[text.index("\\midrule") : text.index("\\bottomrule")]
    widths = {line.count(" & ") for line in body.splitlines() if "&" in line}
    assert widths == {len(TASKS) + 1}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
def test_latex_compiles(tmp_path: Path) -> None:
    file = tmp_path / "paper.tex"
    head = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}"
    file.write_text(f"{head}\n{latex_text(run())}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", file.name]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=120)


def test_text_of_names_is_no_markup() -> None:
    assert escaped("a_b & 50% {x} \\y ~^#$") == (
        r"a\_b \& 50\% \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{}\#\$"
    )


@pytest.mark.slow
def test_figures_are_svg_and_pdf(tmp_path: Path) -> None:
    files = write_figures(run(), tmp_path / "figures")
    names = {file.stem for file in files}
    assert {"speed0-0", "acceptance0", "timeline0"} <= names
    assert len(files) == 2 * len(names)
    for file in files:
        start = file.read_bytes()[:5]
        assert start == (b"%PDF-" if file.suffix == ".pdf" else b"<?xml")
        assert "var(--" not in file.read_text("utf-8", "replace")


@pytest.mark.slow
def test_the_command_writes_them(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [tmp_path / name for name in ("run.csv", "run.tex", "figures")]
    options = zip(("--csv", "--latex", "--figures"), map(str, places), strict=True)
    assert app.run(["report", str(saved), *(word for pair in options for word in pair)]) == 0
    out, err = capsys.readouterr()
    assert all(place.exists() for place in places)
    assert err.count("written to") == 3
    assert "Speed-up over ar / mean accepted length" in out
    assert "Units" not in out, "what was found, not what every figure means"
    assert app.run(["report", str(saved), str(saved), "--csv", str(places[0])]) == 2
    assert "name one file" in capsys.readouterr().err
    assert app.run(["report", str(saved), "--csv", "/nowhere/run.csv"]) == 2
    assert "/nowhere/run.csv cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(("num_prompts", "is_marked"), [(4, False), (5, True)])
def test_nothing_is_marked_below_five_prompts(num_prompts: int, is_marked: bool) -> None:
    rates = [(10.0, 2.0)] * num_prompts
    ratio = ratio_of_rates(rates, [(10.0, 1.0)] * num_prompts, range(num_prompts))
    assert ratio.high is not None
    assert ratio.high < 1
    assert ratio.is_slower is is_marked


def test_models_are_named_by_hash_and_quantisation() -> None:
    found = provenance.models_of(EngineConfig(draft="smollm2-draft"))["smollm2-draft"]
    path = resolve("smollm2-draft").path
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found["sha256"] == provenance.digest(path)
    assert found["quantisation"] == "Q4_0"
    assert found["parameters"] > 4e7


def test_a_model_that_is_no_file_is_left_out() -> None:
    assert provenance.models_of(EngineConfig(target="/nowhere/x.gguf", draft="none")) == {}


def test_the_commit_is_the_checkouts() -> None:
    found = provenance.commit()
    if found is not None:  # a wheel has none
        assert re.fullmatch(r"[0-9a-f]{40}\+?", found)
