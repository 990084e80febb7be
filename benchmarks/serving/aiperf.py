"""Measure our server with AIPerf, a harness that is not ours, on prompts of a folder.

AIPerf (0.13.0, in an environment of its own) sends each prompt as a chat, streamed, one after the
other, to `duodec serve`: once with `auto` and once plainly. Its report is quoted as it stands; its
section on speculative decoding reads what our answers say of their drafts. It counts tokens by the
server's usage; for lengths of its own it gets a tokenizer of bytes, since it would fetch one.

    python -m benchmarks aiperf --data FOLDER --limit 5
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks import Figures, Refuted
from benchmarks.serving.servers import ours
from duodec.bench.tasks import TASKS, read_prompts

VERSION = "0.13.0"
_BYTES = """
import json, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: i for i, letter in enumerate(letters)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.save(sys.argv[1] + "/tokenizer.json")
kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
open(sys.argv[1] + "/tokenizer_config.json", "w").write(json.dumps(kind))
"""


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Of an answer.")] = 64,
    pace: Annotated[str, typer.Option(help="Of the target: seconds, or a curve.")] = "0.025",
    target: Annotated[str, typer.Option()] = "smollm2",
    python: Annotated[Path, typer.Option(help="Of AIPerf's environment.")] = Path(
        ".venv-aiperf/bin/python"
    ),
) -> Figures:
    """AIPerf's report."""
    program = python.parent / "aiperf"
    if not program.exists():
        raise SystemExit(f"{program} is missing; run make bench-aiperf, which installs it")
    prompts = read_prompts(data, TASKS, limit)
    found: dict[str, Any] = {}
    for method in ("auto", "ar"):
        with TemporaryDirectory() as folder:
            inputs = Path(folder) / "prompts.jsonl"
            lines = [json.dumps({"text": prompt.turns[0]}) for prompt in prompts]
            words = Path(folder) / "bytes"
            words.mkdir()
            subprocess.run([str(python), "-c", _BYTES, str(words)], check=True)
            inputs.write_text("\n".join(lines) + "\n", encoding="utf-8")
            with ours("-m", target, "--pace", pace, "--method", method) as server:
                done = subprocess.run(
                    [
                        str(program), "profile", "--model", target, "--url", server.url,
                        "--endpoint-type", "chat", "--streaming", "--use-server-token-count",
                        "--tokenizer", str(words),
                        "--input-file", str(inputs), "--custom-dataset-type", "single_turn",
                        "--concurrency", "1", "--request-count", str(len(prompts)),
                        "--extra-inputs", f"max_tokens:{max_tokens}",
                        "--extra-inputs", "temperature:0",
                        "--artifact-dir", folder, "--ui", "simple",
                    ],
                    check=False,
                    capture_output=True,
                    text=True,
                )  # fmt: skip
                counters = server.counters()
            report = done.stdout + done.stderr
            print(report)
            if done.returncode:
                raise SystemExit(f"AIPerf failed with status {done.returncode}")
            exported = next(Path(folder).rglob("profile_export_aiperf.json"))
            found[method] = {
                "report": json.loads(exported.read_text()),
                "its_words": report.splitlines(),
                "our_counters": {k: v for k, v in counters.items() if "spec_decode" in k},
            }
    figures = {"aiperf": VERSION, "prompts": len(prompts), "methods": found}
    if not any("Spec Decode" in line for line in found["auto"]["its_words"]):
        raise Refuted("AIPerf has found nothing on speculative decoding in our responses", figures)
    return figures
