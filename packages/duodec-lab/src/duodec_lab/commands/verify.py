"""Run `duodec verify`: audit servers, or a model with and without drafts, for corrupted text."""

from __future__ import annotations

import json as json_format
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duodec.cli import options
from duodec.cli.output import one_line, progress_bar, put, say_dim, status
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec_lab.commands.report import check_installed
from duodec_lab.commands.tables import put_rich_table

if TYPE_CHECKING:
    from duodec_lab.exactness.audit import Check, Limits, Report
    from duodec_lab.exactness.endpoint import Endpoint

EPILOG = """
Examples:
duodec verify http://127.0.0.1:8000 http://127.0.0.1:8080  # two servers of one model
duodec verify http://127.0.0.1:8080  # one server with itself: alone, in company, cold, warm
duodec verify smollm2  # a model without and with drafts
duodec verify smollm2 --method lookup --checks greedy,company --output audit

Servers are any that speak OpenAI's interface: llama.cpp's, vLLM, ours. Where two texts of a request
part, logprobs that are computed anew say whether it is a near tie or wrong.

Exit status:
0: no fault. 1: a fault. 2: bad input, or a server that cannot be reached.
"""

_PANEL = "Audit"
_ALL = "all"
_SHOWN = 10  # faults told one by one on a terminal
_SLOTS = 4


@options.derived
def verify(
    *,
    targets: Annotated[list[str], typer.Argument(
        help="One or two addresses of servers, or a model to serve.", metavar="URL_OR_MODEL",
        show_default=False
    )],
    checks: Annotated[str, options.option(
        "--checks A,B,...",
        "Checks, comma-separated: greedy, logprobs, seeds, company, aborts, conversation, "
        "tools; or all.", _PANEL
    )] = _ALL,
    prompts: Annotated[
        int, options.option("--prompts", "Prompts, of seven kinds by turns.", _PANEL, min=1)
    ] = 7,
    max_tokens: Annotated[
        int, options.option("--max-tokens -n", "Most tokens of a completion.", _PANEL, min=1)
    ] = 128,
    concurrency: Annotated[
        int,
        options.option("--concurrency", "Requests at once in the check `company`.", _PANEL, min=1),
    ] = _SLOTS,
    tolerance: Annotated[float | None, options.option(
        "--tolerance NATS",
        "How far apart logprobs may be: of two tokens for a near tie, of one token for two "
        "servers. By default twice what the servers' own move by when a place is computed "
        "anew.", _PANEL, min=0
    )] = None,
    budget: Annotated[float, options.option(
        "--budget SECONDS", "Most seconds; what is left is named.", _PANEL, min=1
    )] = 600.0,
    method: Annotated[str, options.option(
        "--method NAME", "How a MODEL drafts; its other half is plain decoding.", _PANEL
    )] = "stream",
    model: Annotated[list[str] | None, options.option(
        "--model NAME",
        "The model at a URL, by default the first; for two servers given twice or once.", _PANEL
    )] = None,
    api_key: Annotated[list[str] | None, options.option(
        "--api-key KEY", "The key of a server; for two servers given twice or once.", _PANEL
    )] = None,
    output: Annotated[Path | None, options.option(
        "--output -o FOLDER", "A folder for verify.html and verify.json.", "Output"
    )] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    config: Annotated[EngineConfig, options.Options(without=("target", *options.GRAMMAR_LIMITS))],
) -> None:  # fmt: skip
    """Audit any server of OpenAI's interface for corrupted text.

    Greedy texts, seeds, logprobs, company, aborted streams, an agent's conversation cold and warm,
    calls of tools: what drafts, caches and batches must not change.
    """
    from duodec_lab.exactness.audit import Limits

    check_installed()
    if output is not None and output.exists() and not output.is_dir():
        raise BadOption(f"--output {output} is a file; name a folder")
    limits = Limits(prompts, max_tokens, concurrency, tolerance, budget)
    chosen = _checks(checks)
    are_urls = ["://" in target for target in targets]
    if all(are_urls) and len(targets) <= 2:
        if config != EngineConfig():
            raise BadOption("options of a model are for `duodec verify MODEL`; leave them out")
        report = _audit(_servers(targets, model or [], api_key or []), limits, chosen, quiet)
    elif len(targets) == 1:
        with _halves(replace(config, target=targets[0]), method, quiet) as halves:
            report = _audit(halves, limits, chosen, quiet)
    else:
        raise BadOption(f"'{' '.join(targets)}': name one URL, two URLs, or one model")
    if not report.findings:
        raise BadOption(f"--budget {budget:g} was used up before the first comparison; raise it")
    _show(report, output, is_json=json)
    if report.faults:
        raise typer.Exit(1)


def _checks(names: str) -> dict[str, Check]:
    """Raises BadOption."""
    from duodec_lab.exactness.checks import CHECKS

    if names == _ALL:
        return CHECKS
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in CHECKS:
            near = get_close_matches(name, CHECKS, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise BadOption(f"unknown check '{name}'{hint}; choose from: {', '.join(CHECKS)}")
    return {name: check for name, check in CHECKS.items() if name in wanted}


def _servers(urls: Sequence[str], models: Sequence[str], keys: Sequence[str]) -> list[Endpoint]:
    """Raises BadOption."""
    from duodec_lab.exactness.endpoint import opened

    for option, given in (("model", models), ("api-key", keys)):
        if len(given) > len(urls):
            raise BadOption(f"--{option} is given {len(given)} times for {len(urls)} servers")
    return [
        opened(
            "AB"[number],
            url,
            keys[min(number, len(keys) - 1)] if keys else None,
            models[min(number, len(models) - 1)] if models else None,
        )
        for number, url in enumerate(urls)
    ]


@contextmanager
def _halves(config: EngineConfig, method: str, is_quiet: bool) -> Iterator[list[Endpoint]]:
    """A model of a server of our own, asked without drafts and with them."""
    from duodec.cli.commands.serve import served_name, source_of
    from duodec.server import process
    from duodec.server.service import Service
    from duodec.server.settings import Settings
    from duodec_lab.exactness.endpoint import opened

    settings = Settings(served_name(config.target), port=0, num_slots=_SLOTS, grace_s=0)
    config = replace(config, num_slots=settings.num_slots)
    source = source_of(settings.model, {settings.model: config}, method)
    sock = process.listen(settings)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with ExitStack() as stack:
        with status(f"loading {settings.model}", is_quiet=is_quiet):
            service = Service(settings, {settings.model: source})
            stack.enter_context(process.in_background(service, sock))
        drafts = {"speculation": {"method": method}}
        yield [
            opened("plain", url, None, None, {"speculation": False}),
            opened("drafts", url, None, None, drafts),
        ]


def _audit(
    endpoints: Sequence[Endpoint], limits: Limits, checks: dict[str, Check], is_quiet: bool
) -> Report:
    from duodec_lab.exactness import prompts
    from duodec_lab.exactness.audit import Audit, Report, run

    audit = Audit(endpoints, limits, texts=prompts.texts(limits.prompts, limits.max_tokens))
    with progress_bar(is_quiet=is_quiet) as on_progress:
        findings, unfinished = run(audit, checks, on_progress)
    command = shlex.join(["duodec", *sys.argv[1:]])
    date = datetime.now().isoformat(" ", "minutes")
    return Report(endpoints, limits, audit.noise, findings, unfinished, command, date)


def _show(report: Report, output: Path | None, *, is_json: bool) -> None:
    """Raises BadOption for a folder that cannot be written."""
    from duodec_lab.exactness.report import summary, verdict, write

    if is_json:
        put(f"{json_format.dumps(report.as_json(), ensure_ascii=False)}\n")
    else:
        put_rich_table(summary(report))
        for fault in report.faults[:_SHOWN]:
            put(one_line(f"{fault.verdict}: {fault.check}, {fault.case}: {fault.words}") + "\n")
        put(f"{verdict(report)}\n")
    if output is not None:
        try:
            write(report, output)
        except OSError as error:
            raise BadOption(
                f"--output {output} cannot be written ({error.strerror}); name another place"
            ) from error
        say_dim(f"written to {output}: verify.html, verify.json")
