"""Every command of README, docs and examples is run, or checked, or carries the reason why not."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from benchmarks.table import EXPERIMENTS
from fakes import ROOT

from duodec.cli.app import app

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "Containerfile",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.sh")),
]
GROUP: Any = typer.main.get_command(app)
# run for real, on the small model and this machine
RUN = {
    'duodec run smollm2 "Why is the sky blue?"',
    "duodec list",
    "duodec ps",
    "duodec --version",
    "duodec drafts smollm2",
}
# a first word, or words, and why a test does not run what begins so
WHY_NOT = {
    "git pull": "changes the clone",
    "pip uninstall": "removes what runs the tests",
    "pipx uninstall": "the same",
    "uv tool uninstall": "the same",
    "pipx install": "the same, into one of its own",
    "uv tool install": "the same",
    "pip install": "installs into the environment that runs the tests; make wheel tries it",
    "podman": "no container program where the tests run; the Containerfile is read below",
    "docker": "the same",
    "vllm serve": "vLLM is in an environment of its own: make test-vllm",
    "export VLLM_RAY": "for a cluster of Ray",
    "export ANTHROPIC_": "for an agent: make test-clients",
    "export CLAUDE_": "the same",
    "export OPENAI_": "the same",
    "ollama": "another program",
    "curl": "asks a server that runs; tests/server asks the same",
}
PROGRAMS = ("duodec", "python", "make", *dict.fromkeys(why.split()[0] for why in WHY_NOT))
_STARTS = "|".join(PROGRAMS)
_VARIABLES = r"(?:[A-Z_]+=\S+ )*"
_LINE = re.compile(rf"^(?: {{4}}|\$ |exec |)({_VARIABLES}(?:{_STARTS})\b.*)$")
_INLINE = re.compile(rf"`({_VARIABLES}(?:{_STARTS}) [^`]+)`")


def commands() -> Iterator[tuple[str, str]]:
    """Commands in blocks of code and in backticks, one by one."""
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        fence = None if page.suffix == ".md" else "sh"
        for line in text.splitlines():
            if mark := re.match(r"```(\w*)", line):
                fence = None if fence is not None else mark[1] or "text"
                continue
            found = _LINE.match(line)
            is_code = line.startswith(("    ", "$ ")) if fence is None else fence in ("sh", "bash")
            if found and is_code:
                for part in found[1].split(" && "):
                    yield page.name, part.partition("  #")[0].partition(" | ")[0].strip()
            elif fence is None:
                for inline in _INLINE.findall(line):
                    yield page.name, inline.strip()


ALL = sorted(set(commands()))


def words_of(line: str) -> list[str]:
    """The words from the program on."""
    line = re.sub(r"\[(--[^]]+)\]", r"\1", line.replace("...", "PLACE"))  # may be left out
    words = shlex.split(line, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


def test_commands_are_found() -> None:
    assert len(ALL) > 80
    assert any(line.startswith("make demo") for _, line in ALL)
    assert {line for line in RUN if line.startswith("duodec run")} <= {line for _, line in ALL}


@pytest.mark.parametrize(("page", "line"), ALL)
def test_every_command_is_known(page: str, line: str) -> None:
    words = words_of(line)
    if words[0] == "duodec":
        check_duodec(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
        named = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        assert set(named) <= set(targets), f"{page}: {line}"
    elif words[0] == "python":
        check_python(words[1:])
    else:
        line = shlex.join(words)
        reason = next((why for start, why in WHY_NOT.items() if line.startswith(start)), None)
        assert reason, f"{page}: {line} is neither run nor checked, and has no reason"


def check_duodec(words: list[str]) -> None:
    """Parse a command line as the program would; values are converted, nothing is run."""
    if not words or words[0].startswith("-"):
        return
    group, names = GROUP, []
    while words and hasattr(group, "commands") and words[0] in group.commands:
        group = group.commands[words[0]]
        names.append(words.pop(0))
    assert names, f"there is no command {words[0]}"
    words = [re.sub(r"^\$\w+|\$\{\w+(:-(\w+))?\}", r"\2", word) or "VALUE" for word in words]
    words = [word if word != "VALUE" else "3" for word in words]
    flags = {flag for p in group.params for flag in p.opts} | {"--help"}
    required = [p for p in group.params if p.required]
    if not words and required:
        return  # the name of a command in a sentence
    for word in words[: words.index("--") if "--" in words else None]:
        if re.fullmatch(r"-{1,2}[a-zA-Z][\w-]*(=.*)?", word):
            assert word.partition("=")[0] in flags, f"{word} of {' '.join(names)}"
    # a single option in a sentence needs neither its value nor what else is required
    if required and not any(not word.startswith("-") for word in words):
        return
    if words and words[-1] in flags:
        return
    group.make_context(" ".join(names), list(words), parent=None, resilient_parsing=False)


def check_python(words: list[str]) -> None:
    """The module or the file exists, and spells the options somewhere."""
    if words[0] == "-c":
        compile(words[1], "<documentation>", "exec")
        return
    if words[0] == "-m" and words[1] == "pytest":
        assert all((ROOT / word).exists() for word in words[2:] if not word.startswith("-"))
        return
    if words[0] == "FOLDER":  # that `benchmarks gpu --pack` makes, and which takes its options
        words = ["-m", "benchmarks", "gpu", *words[1:]]
    if words[:2] == ["-m", "benchmarks"]:
        if not words[2:]:
            return  # it lists them
        assert words[2] in EXPERIMENTS, f"there is no experiment {words[2]}"
        words = ["-m", f"benchmarks.{EXPERIMENTS[words[2]].module}", *words[3:]]
    name = words[1].replace(".", "/") if words[0] == "-m" else words[0]
    if words[0] == "-m":
        name += "/__main__.py" if (ROOT / name).is_dir() else ".py"
    file = next((path for path in (ROOT / name, ROOT / "src" / name) if path.is_file()), None)
    assert file, f"there is no {name}"
    shared = "\n".join(path.read_text("utf-8") for path in file.parent.glob("*.py"))
    for option in (word for word in words if word.startswith("--")):
        parameter = option.partition("=")[0].removeprefix("--").replace("-", "_")
        is_spelled = f'"{option.partition("=")[0]}"' in shared
        assert is_spelled or re.search(rf"\b{parameter}: ", shared), f"{option} of {name}"


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **env},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted(RUN))
def test_commands_run(line: str) -> None:
    done = run(sys.executable, "-m", "duodec", *words_of(line)[1:])
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("The capital of France is\nOne, two, three,\nWhy is the sky blue?\n")
    return file


@pytest.mark.slow
def test_a_hundred_prompts(prompts: Path) -> None:
    done = run(sys.executable, "examples/hundred_prompts.py", str(prompts), "smollm2")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["prompt"] for record in records] == prompts.read_text().splitlines()
    assert "Paris" in records[0]["text"]


@pytest.mark.slow
def test_a_stream() -> None:
    done = run(sys.executable, "examples/stream.py", "smollm2")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20


@pytest.mark.slow
def test_a_pair_is_measured_and_its_tables_written(tmp_path: Path, programs: str) -> None:
    folder = tmp_path / "run"
    done = run(
        "sh", "examples/paper_table.sh", "smollm2", "smollm2-draft", str(folder), LIMIT="1",
        PATH=f"{programs}:{os.environ['PATH']}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "SHA-256 b179c9523d0e" in (folder / "table.tex").read_text()
    assert (folder / "table.csv").read_text().count("\n") > 3
    assert list((folder / "figures").glob("*.pdf"))


@pytest.fixture
def programs(tmp_path: Path) -> str:
    """A folder with `duodec`, which may not be on this machine's path, short of what takes long."""
    file = tmp_path / "bin" / "duodec"
    file.parent.mkdir()
    file.write_text(
        f'#!/bin/sh\n[ "$1" = bench ] && set -- "$@" --tasks qa --max-tokens 12\n'
        f'exec {sys.executable} -m duodec "$@"\n'
    )
    file.chmod(0o755)
    return str(file.parent)


def test_the_examples_are_short_and_shown_whole() -> None:
    shown = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    for name in ("open_webui.sh", "paper_table.sh", "hundred_prompts.py"):
        text = (ROOT / "examples" / name).read_text("utf-8")
        assert text in shown, f"docs/recipes.md shows another examples/{name}"
        lines = [line for line in text.splitlines() if line and not line.startswith(("#", '"""'))]
        assert len(lines) < 10, name
    for file in (ROOT / "examples").glob("*.py"):
        compile(file.read_text("utf-8"), file.name, "exec")
    for file in (ROOT / "examples").glob("*.sh"):
        assert subprocess.run(["sh", "-n", str(file)], check=False).returncode == 0


def test_the_address_of_the_repository_is_one_setting() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    lines = [line.strip() for page in PAGES for line in page.read_text().splitlines()]
    ours = {line for line in lines if line.startswith("git clone") and line.endswith(" duodec")}
    address = urls.get("Repository")
    assert ours == ({f"git clone {address} duodec"} if address else set())
    pasted = [line for page, line in ALL if re.search(r"<[a-z ]+>", line)]
    assert not pasted, "a shell reads < as a file"


def test_every_file_names_one_version() -> None:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    release = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(release)
    assert re.fullmatch(r"\d+\.\d+\.\d+", release.the_version())


def test_the_container_installs_what_exists() -> None:
    text = (ROOT / "Containerfile").read_text("utf-8")
    copied = re.findall(r"(?m)^COPY (\S+) ", text)
    assert copied == ["."]
    (command,) = re.findall(r"(?m)^CMD (\[.*\])$", text)
    check_duodec(json.loads(command)[1:])
    assert "pip install --no-cache-dir /src &&" in text


def test_the_documentation_site_has_every_page() -> None:
    yaml = pytest.importorskip("yaml")
    nav = (ROOT / "mkdocs.yml").read_text("utf-8")
    named = set(re.findall(r": (\S+\.md)$", nav, re.MULTILINE))
    assert named == {page.name for page in (ROOT / "docs").glob("*.md")}
    assert yaml.safe_load(nav)["strict"] is True
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["cff-version"] == "1.2.0"
