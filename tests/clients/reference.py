"""Score the questions with transformers: the accuracy that lm-evaluation-harness must find.

    python reference.py MODEL.gguf FOLDER

It runs where torch, transformers and gguf are. FOLDER becomes the file's tokenizer; a JSON line
says the accuracy and each choice's logprob.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = Path(__file__).with_name("task") / "questions.jsonl"


def main(file: Path, folder: Path) -> None:
    where = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where).eval()
    tokenizer.save_pretrained(folder)

    def logprob(question: str, choice: str) -> float:
        prompt = tokenizer(question).input_ids
        tokens = tokenizer(f"{question} {choice}").input_ids
        assert tokens[: len(prompt)] == prompt
        with torch.no_grad():
            rows = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return sum(float(rows[i - 1, tokens[i]]) for i in range(len(prompt), len(tokens)))

    asked = [json.loads(line) for line in QUESTIONS.read_text("utf-8").splitlines()]
    scores = [[logprob(item["question"], c) for c in item["choices"]] for item in asked]
    right = sum(
        row.index(max(row)) == item["answer"] for row, item in zip(scores, asked, strict=True)
    )
    print(json.dumps({"accuracy": right / len(asked), "logprobs": scores}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
