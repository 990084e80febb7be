"""Decode with a package of this Python: another one starts it, and sends requests.

    python worker.py ENGINE SETTINGS

SETTINGS are the arguments of one of `ENGINES`, as JSON. A line of standard input is a request, one
of standard output its answer; what a package prints itself goes to standard error. It imports
nothing but the standard library and that package.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

Say = Callable[[str], None]
Complete = Callable[[str, int, Say], int]
"""Decodes a chat of one message, up to so many tokens, and says pieces of text; returns how many
tokens they are."""


def openvino(model: str, threads: int, draft: str | None = None, lookup: int = 0) -> Complete:
    """OpenVINO GenAI, which reads GGUF files itself; with a draft model, or prompt lookup of so
    many tokens."""
    import openvino_genai as genai

    options = {"INFERENCE_NUM_THREADS": threads}
    config = genai.GenerationConfig()
    config.do_sample = False
    chosen = dict(options)
    if draft:
        chosen["draft_model"] = genai.draft_model(draft, "CPU", **options)
        config.num_assistant_tokens = 3
    if lookup:
        chosen["prompt_lookup"] = True
        config.num_assistant_tokens, config.max_ngram_size = lookup, 3
    pipeline = genai.LLMPipeline(model, "CPU", **chosen)

    def complete(prompt: str, max_tokens: int, say: Say) -> int:
        config.max_new_tokens = max_tokens

        def streamer(text: str) -> object:
            say(text)
            return genai.StreamingStatus.RUNNING

        found = pipeline.generate([prompt], config, streamer)
        return int(found.perf_metrics.get_num_generated_tokens())

    return complete


def mistralrs(model: str, threads: int, draft: str | None = None) -> Complete:
    """mistral.rs; ``threads`` are those of RAYON_NUM_THREADS, which is read before."""
    from mistralrs import ChatCompletionRequest, Runner, Which

    def gguf(path: Path) -> object:
        return Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)

    drafting = {"which_draft": gguf(Path(draft)), "speculative_gamma": 3} if draft else {}
    runner = Runner(which=gguf(Path(model)), **drafting)

    def complete(prompt: str, max_tokens: int, say: Say) -> int:
        request = ChatCompletionRequest(
            model="default", messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens, temperature=0.0, stream=True,
        )  # fmt: skip
        num_tokens, usage = 0, None
        for chunk in runner.send_chat_completion_request(request):
            if text := chunk.choices[0].delta.content:
                num_tokens += 1
                say(text)
            usage = getattr(chunk, "usage", None) or usage
        return int(usage.completion_tokens) if usage else num_tokens

    return complete


ENGINES = {"openvino": openvino, "mistralrs": mistralrs}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    complete = ENGINES[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pieces: list[tuple[float, str]] = []
        say = partial(_keep, pieces, perf_counter())
        num_tokens = complete(request["prompt"], request["max_tokens"], say)
        print(json.dumps({"num_tokens": num_tokens, "pieces": pieces}), file=answers, flush=True)


def _keep(pieces: list[tuple[float, str]], begin: float, text: str) -> None:
    pieces.append((perf_counter() - begin, text))


if __name__ == "__main__":
    main()
