"""Run the server tests of llama.cpp and vLLM against `duodec serve`, and print what came of them.

    python -m tests.peers [llama.cpp] [vllm] [FILE...]

FILE is a part of a test file's name. The tests run in an environment of their own (PEER_VENV), the
servers in this one. The sources are fetched from the package index into build/peers. Where all of
both suites ran, reasons that no test needed are printed, too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.models.weights import weights
from tests.peers.fetching import LLAMA, PEERS, Peer
from tests.peers.reasons import FILES, IN_PROCESS, MESSAGES, REFUSALS, TABLES, TESTS, UNSERVED_PATHS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # where what writes models finds its neighbours

from tests.peers.models import (  # noqa: E402
    write_embedder,
    write_reasoning_model,
    write_reranker,
    write_seeing_model,
    write_wrong_draft,
)

PLUGIN = Path(__file__).parent
BUILD = ROOT / "build" / "peers"
REASONING, WRONG = BUILD / "reasoning.gguf", BUILD / "wrong-draft.gguf"
EMBEDDER, RERANKER, SEEING = BUILD / "embedder.gguf", BUILD / "reranker.gguf", BUILD / "seeing"
_TEST_S, _FILE_S = 180, 1800  # on a busy machine, too
_OVER_HTTP = r"RemoteOpenAIServer|client: openai"  # of vLLM's files, those that want a server


class Outcome(NamedTuple):
    """What came of a test: passed, failed or n/a. ``reason`` is its reason's key in a table."""

    test: str
    outcome: str
    why: str = ""
    reason: str = ""


def main() -> int:
    chosen = [PEERS[word] for word in sys.argv[1:] if word in PEERS] or list(PEERS.values())
    parts = [word for word in sys.argv[1:] if word not in PEERS]
    BUILD.mkdir(parents=True, exist_ok=True)
    write_reasoning_model(REASONING)
    write_wrong_draft(WRONG)
    write_embedder(EMBEDDER)
    write_reranker(RERANKER)
    write_seeing_model(SEEING)
    num_failed, needed = 0, set()
    for peer in chosen:
        total: Counter[str] = Counter()
        root = peer.fetched(BUILD)
        for file in (
            file for suite in peer.suites for file in sorted((root / suite).rglob("test_*.py"))
        ):
            name = file.relative_to(root).as_posix()
            if parts and not any(part in name for part in parts):
                continue
            found = list(outcomes(peer, root, file))
            report(name, found)
            total.update(one.outcome for one in found)
            needed |= {one.reason for one in found}
        num_failed += total["failed"]
        print(f"{peer.name}: " + ", ".join(f"{total[o]} {o}" for o in ("passed", "failed", "n/a")))
    if not parts and len(chosen) == len(PEERS):
        for stale in (key for table in TABLES for key in table if key not in needed):
            print(f"stale: no test needed the reason of {stale!r}", file=sys.stderr)
    return 1 if num_failed else 0


def outcomes(peer: Peer, root: Path, file: Path) -> Iterator[Outcome]:
    """Of each test of a file; where none applies, they are collected only."""
    found = _first(FILES, file.name)
    if found is None and peer is not LLAMA:
        is_served = re.search(_OVER_HTTP, file.read_text("utf-8"))
        found = None if is_served else (IN_PROCESS, "")
    if found is None:
        for result in _run(peer, root, file):
            yield Outcome(result["test"].partition("::")[2] or file.name, *judged(result))
        return
    for test in collected(peer, root, file):
        yield Outcome(test, "n/a", *found)


def collected(peer: Peer, root: Path, file: Path) -> list[str]:
    """The tests of a file; its functions, where it cannot be imported without what is absent."""
    results = _run(peer, root, file, "--collect-only")
    tests = [result["test"] for result in results if result["outcome"] == "collected"]
    return tests or re.findall(r"(?m)^ *(?:async )?def (test_\w+)", file.read_text("utf-8"))


def judged(result: Mapping[str, Any]) -> tuple[str, str, str]:
    """The outcome of a test, why it does not apply or what it said, and the reason's key.

    The most specific reason counts: one of this test, then one of what the server refused, the
    last refusal first, then one of what the test said.
    """
    words = result["words"]
    if result["outcome"] == "passed":
        return "passed", "", ""
    if result["outcome"] == "skipped":
        found = re.search(r"n/a: ([\w-]+): (.+?)['\"]\)?$", words.strip())
        return ("n/a", found[2], found[1]) if found else ("n/a", "skipped by itself", "")
    lines = [line for line in words.splitlines() if line.startswith("E ")]
    said = (lines or words.strip().splitlines() or [""])[-1].removeprefix("E").strip()[:160]
    reason = (
        _first(TESTS, result["test"])
        or _refused(result["refusals"])
        or _first(MESSAGES, words[-2000:])
        or ((IN_PROCESS, "") if "Absent" in words else None)
    )
    return ("n/a", *reason) if reason else ("failed", said, "")


def _refused(refusals: list[tuple[int, str, str]]) -> tuple[str, str] | None:
    for status, path, said in reversed(refusals):
        if status == 400 and (found := _first(REFUSALS, said)):
            return found
        if status in (404, 405) and path in UNSERVED_PATHS:
            return UNSERVED_PATHS[path], path
    return None


def _first(table: Mapping[str, str], text: str) -> tuple[str, str] | None:
    """The reason of a table's first pattern that matches, and the pattern."""
    for pattern, why in table.items():
        if found := re.search(pattern, text):
            return found.expand(why), pattern
    return None


def report(name: str, found: list[Outcome]) -> None:
    """Print a file's row of a table, and its failures."""
    counts = Counter(one.outcome for one in found)
    whys = Counter(one.why for one in found if one.outcome == "n/a")
    told = "; ".join(f"{count}: {why}" for why, count in whys.most_common())
    print(f"| `{name}` | {counts['passed']} | {counts['failed']} | {counts['n/a']} | {told} |")
    sys.stdout.flush()
    for one in found:
        if one.outcome == "failed":
            print(f"failed {one.test}: {one.why}", file=sys.stderr)


def _run(peer: Peer, root: Path, file: Path, *options: str) -> list[dict[str, Any]]:
    """What the plugin wrote of each test."""
    with TemporaryDirectory() as scratch:
        results = Path(scratch, "results")
        env = {
            **os.environ,
            "PEER": peer.name,
            "PEER_ROOT": str(root),
            "PEER_RESULTS": str(results),
            "PEER_PYTHON": sys.executable,
            "PEER_MODEL": str(weights("smollm2")),
            "PEER_REASONING": str(REASONING),
            "PEER_WRONG": str(WRONG),
            "PEER_EMBEDDER": str(EMBEDDER),
            "PEER_RERANKER": str(RERANKER),
            "PEER_SEEING": str(SEEING),
            "PYTHONPATH": os.pathsep.join([str(PLUGIN), os.environ.get("PYTHONPATH", "")]),
            "SLOW_TESTS": "0",
        }
        pytest = Path(os.environ.get("PEER_VENV", ROOT / ".venv-peers"), "bin", "pytest")
        command = [
            str(pytest), "-q", "-p", "plugin", "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", str(root), "--timeout", str(_TEST_S),
            "-o", "asyncio_mode=auto", *options, str(file),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=root, env=env, timeout=_FILE_S, check=False,
                capture_output=True, text=True,
            )  # fmt: skip
            said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        except subprocess.TimeoutExpired:
            said = f"the file took more than {_FILE_S} s"
        if not results.exists():
            return [{"test": file.name, "outcome": "failed", "words": said, "refusals": []}]
        return [json.loads(line) for line in results.read_text("utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main())
