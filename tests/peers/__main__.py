"""Run the server tests of llama.cpp and vLLM against `duodec serve`, and print what came of them.

    python -m tests.peers [llama.cpp] [vllm] [FILE...]

FILE is a part of a test file's name. The tests run in an environment of their own (PEER_VENV), the
servers in this one. The sources are fetched from the package index into build/peers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.models.weights import weights
from tests.peers.fetching import LLAMA, PEERS, Peer
from tests.peers.reasons import FAILURES, FILES, IN_PROCESS, REFUSALS, UNSERVED_PATHS

ROOT = Path(__file__).parents[2]
PLUGIN = Path(__file__).parent
BUILD = ROOT / "build" / "peers"
_TEST_S, _FILE_S = 60, 900
_OVER_HTTP = r"RemoteOpenAIServer|client: openai"  # of vLLM's files, those that want a server


def main() -> int:
    chosen = [PEERS[word] for word in sys.argv[1:] if word in PEERS] or list(PEERS.values())
    parts = [word for word in sys.argv[1:] if word not in PEERS]
    BUILD.mkdir(parents=True, exist_ok=True)
    num_failed = 0
    for peer in chosen:
        root = peer.fetched(BUILD)
        files = [
            file for suite in peer.suites for file in sorted((root / suite).rglob("test_*.py"))
        ]
        for file in files:
            name = file.relative_to(root).as_posix()
            if parts and not any(part in name for part in parts):
                continue
            num_failed += report(name, list(outcomes(peer, root, file)))
    return 1 if num_failed else 0


def outcomes(peer: Peer, root: Path, file: Path) -> Iterator[tuple[str, str, str]]:
    """(test, outcome, why) of each test of a file; one for all where none of them applies."""
    if why := next((why for part, why in FILES.items() if re.search(part, file.name)), None):
        yield file.name, "n/a", why
        return
    if peer is not LLAMA and not re.search(_OVER_HTTP, file.read_text("utf-8")):
        yield file.name, "n/a", IN_PROCESS
        return
    for result in _run(peer, root, file):
        yield result["test"].partition("::")[2] or file.name, *judged(result)


def judged(result: dict[str, Any]) -> tuple[str, str]:
    """The outcome of a test, and why it does not apply or what it said."""
    words = result["words"]
    if result["outcome"] == "passed":
        return "passed", ""
    if result["outcome"] == "skipped":
        found = re.search(r"n/a: (.+?)['\"]\)?$", words.strip())
        return "n/a", found[1] if found else "skipped by itself"
    for status, path, said in result["refusals"]:
        if status in (404, 405) and path in UNSERVED_PATHS:
            return "n/a", UNSERVED_PATHS[path]
        for pattern, why in REFUSALS.items():
            if status == 400 and (refusal := re.search(pattern, said)):
                return "n/a", refusal.expand(why)
    lines = [line for line in words.splitlines() if line.startswith("E ")]
    said = (lines or words.strip().splitlines() or [""])[-1].removeprefix("E").strip()[:160]
    for pattern, why in FAILURES.items():
        if re.search(pattern, f"{result['test']}: {said}"):
            return "n/a", why
    if "Absent" in words:
        return "n/a", IN_PROCESS
    return "failed", said


def report(name: str, found: list[tuple[str, str, str]]) -> int:
    """Print a file's row of a table, and its failures; the number of these."""
    counts = Counter(outcome for _, outcome, _ in found)
    whys = Counter(why for _, outcome, why in found if outcome == "n/a")
    told = "; ".join(f"{count}: {why}" for why, count in whys.most_common())
    print(f"| `{name}` | {counts['passed']} | {counts['failed']} | {counts['n/a']} | {told} |")
    sys.stdout.flush()
    for test, outcome, why in found:
        if outcome == "failed":
            print(f"failed {test}: {why}", file=sys.stderr)
    return counts["failed"]


def _run(peer: Peer, root: Path, file: Path) -> list[dict[str, Any]]:
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
            "PYTHONPATH": os.pathsep.join([str(PLUGIN), os.environ.get("PYTHONPATH", "")]),
            "SLOW_TESTS": "0",
        }
        pytest = Path(os.environ.get("PEER_VENV", ROOT / ".venv-peers"), "bin", "pytest")
        command = [
            str(pytest), "-q", "-p", "plugin", "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", str(root), "--timeout", str(_TEST_S),
            "-o", "asyncio_mode=auto", str(file),
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
