"""Run other people's clients against `duodec serve`, and print a table of what each did.

    python -m tests.clients

Clients for Python are in an environment of their own (CLIENTS_VENV), those for Node are installed
below build, among them the agents of test_agents.py. Where torch and transformers are in this
environment, lm-evaluation-harness scores questions of ours through the server, and transformers the
same weights: both must be equal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.serving.servers import ours
from tests.models.weights import weights

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
NODE = ROOT / "build" / "clients"
NODE_PACKAGES = (
    "openai", "ai", "@ai-sdk/openai-compatible", "zod", "@openai/codex",
    "@anthropic-ai/claude-code", "opencode-ai", "@qwen-code/qwen-code",
)  # fmt: skip
MODEL, WITH_TOOLS, FOR_LOOPS = "smollm2", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"
STEPS = ("chat", "stream", "schema", "tools", "loop", "responses", "logprobs", "count")
_MOST_S = 900


def main() -> int:
    python = Path(os.environ.get("CLIENTS_VENV", ROOT / ".venv-clients"), "bin", "python")
    also = [f"--also={name}={weights(name)}" for name in (WITH_TOOLS, FOR_LOOPS)]
    options = ("-m", str(weights(MODEL)), "--alias", MODEL, *also, "--max-models", "3")
    with ours(*options) as server:
        rows = clients([str(python), str(HERE / "tried.py"), server.url], HERE)
        if npm := shutil.which("npm"):
            NODE.mkdir(parents=True, exist_ok=True)
            subprocess.run([npm, "install", "--silent", *NODE_PACKAGES], cwd=NODE, check=True)
            rows += clients(["node", str(HERE / "tried.mjs"), server.url], NODE)
    print(table(rows))
    faults = [
        f"{row['client']}, {step}: {why}" for row in rows for step, why in row["did"].items() if why
    ]
    for fault in faults:
        print(fault)
    agents = [sys.executable, "-m", "pytest", "-n", "0", str(HERE / "test_agents.py")]
    if subprocess.run(agents, cwd=ROOT, check=False).returncode:
        faults.append("agents: see above")
    if find_spec("torch") and find_spec("transformers") and find_spec("gguf"):
        return 1 if not harness_agrees(python) or faults else 0
    print(
        "lm-evaluation-harness was not compared: transformers is not installed (make setup-torch)"
    )
    return 1 if faults else 0


def clients(command: list[str], folder: Path) -> list[dict[str, Any]]:
    """What a script of clients printed, a record a client."""
    done = subprocess.run(
        [*command, MODEL, WITH_TOOLS, FOR_LOOPS], cwd=folder, stdout=subprocess.PIPE, text=True,
        check=True, timeout=_MOST_S,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"')]


def table(rows: list[dict[str, Any]]) -> str:
    """For the documentation."""
    lines = [f"| client | {' | '.join(STEPS)} |", f"| --- |{' --- |' * len(STEPS)}"]
    for row in rows:
        cells = [
            "" if row["did"].get(s) is None else "failed" if row["did"][s] else "yes" for s in STEPS
        ]
        lines.append(f"| {row['client']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def harness_agrees(python: Path) -> bool:
    """Whether lm-evaluation-harness finds through the server what transformers finds."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch, "tokenizer")
        command = [sys.executable, str(HERE / "reference.py"), str(weights(MODEL)), str(folder)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        expected = json.loads(said.splitlines()[-1])["accuracy"]
        with ours("-m", str(weights(MODEL)), "--alias", "questions", "--draft", "none") as server:
            found = harness(python, server.url, folder, Path(scratch, "results"))
    print(
        f"lm-evaluation-harness through the server: {found:.4f}, transformers on the same weights: "
        f"{expected:.4f}"
    )
    return found == expected


def harness(python: Path, url: str, tokenizer: Path, output: Path) -> float:
    """The accuracy that lm-evaluation-harness finds."""
    model = f"model=questions,base_url={url}/v1/completions,tokenizer={tokenizer},num_concurrent=1"
    command = [
        str(python), "-m", "lm_eval", "--model", "local-completions", "--model_args", model,
        "--tasks", "duodec_questions", "--include_path", str(HERE / "task"), "--output_path",
        str(output), "--batch_size", "1",
    ]  # fmt: skip
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    # the file of questions is named from its folder
    done = subprocess.run(
        command, cwd=HERE / "task", env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    (file,) = output.rglob("results_*.json")
    return float(json.loads(file.read_text("utf-8"))["results"]["duodec_questions"]["acc,none"])


if __name__ == "__main__":
    sys.exit(main())
