"""Run a whole benchmark: prompts in, a folder with results and a report out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from duodec_lab.bench import provenance
from duodec_lab.bench.card import environment
from duodec_lab.bench.journal import Journal
from duodec_lab.bench.meters import EnergyMeter, peak_bytes
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.reports.report import markdown_report, write_report
from duodec_lab.bench.results import RESULTS, Results
from duodec_lab.bench.run import OnProgress, Runner
from duodec_lab.bench.scoring import score_text, score_text_and_code
from duodec_lab.bench.tasks import read_prompts

PAGE, TABLES = "report.html", "report.md"


def benchmark(
    plan: BenchPlan, folder: Path, *, command: str, is_resumed: bool, on_progress: OnProgress
) -> Results:
    """Measure everything in the plan, and write it to ``folder``.

    An interruption keeps what was measured, as an incomplete run without reports. Raises
    DuodecError, and OSError when the disk is full.
    """
    prompts = read_prompts(plan.data, plan.tasks, plan.limit)
    pairs = plan.pairs()
    card = environment()
    card["other_programs_cores"] = 0.0
    card["energy"] = EnergyMeter().absence
    card["commit"] = provenance.commit()
    card["models"] = {}
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    settings = plan.settings(command, started, [f"{p.task}/{p.prompt_id}" for p in prompts])
    journal = (Journal.resume if is_resumed else Journal)(folder, settings)
    score = score_text_and_code if plan.runs_code else score_text
    facts: dict[str, str] = {}

    def end(save: Callable[[Results, Path], None], *, is_complete: bool) -> Results:
        card["peak_memory_bytes"] = peak_bytes()
        card["llama_cpp_build"] = provenance.build()
        results = Results(
            journal.generations, card, {**settings, **facts, "is_complete": is_complete}
        )
        if journal.generations:
            save(results, folder)
        else:
            journal.discard()
        return results

    def keep() -> None:
        end(_write_results, is_complete=False)

    try:
        for config in pairs:
            runner = Runner(plan, config, journal, score, on_progress, on_interrupt=keep)
            runner.run(prompts)
            facts.update(runner.facts)
            card["models"].update(provenance.models_of(config))
            card["other_programs_cores"] = max(
                card["other_programs_cores"], round(runner.num_other_cores, 2)
            )
    except KeyboardInterrupt:
        keep()
        raise
    except BaseException:
        end(write, is_complete=False)
        raise
    return end(write, is_complete=True)


def _write_results(results: Results, folder: Path) -> None:
    results.write(folder / RESULTS)


def write(results: Results, folder: Path) -> None:
    """Write the results and the reports on them."""
    _write_results(results, folder)
    if any(not generation.error for generation in results.generations):
        (folder / TABLES).write_text(markdown_report(results), encoding="utf-8")
        write_report(results, folder / PAGE, raw=RESULTS)
