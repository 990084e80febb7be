"""Compare acceptance with transformers: assisted generation and prompt lookup, same weights.

Both models are dequantised to fp32, once for each library. transformers decodes every prompt
plainly, with an assistant and with prompt lookup; our `sps` and `lookup` then draft for the text
that it decoded. Speed is not compared: transformers' loop is slow on a CPU.

    python -m benchmarks peers --data FOLDER --limit 3

Needs the torch extra: pip install -e '.[torch]'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from rich.console import Console
from rich.progress import track

from benchmarks import Figures
from benchmarks.kernels.kernels import requantised
from duodec.backends.curves import CostCurve
from duodec.backends.llamacpp.draft import LlamaDraftModel
from duodec.backends.llamacpp.model import LlamaModel
from duodec.bench.beds.latency import LatencyCurve
from duodec.bench.beds.replay import ReplayTarget
from duodec.bench.recording import tokens_for
from duodec.bench.tasks import TASKS, read_prompts
from duodec.core.events import Finished
from duodec.core.sampling import SamplingParams
from duodec.drafting.inline import InlineDrafter
from duodec.llm import LLM
from duodec.models import resolve


@dataclass
class Count:
    """Tokens of rounds that could have a draft, and the number of these rounds."""

    num_tokens: int = 0
    num_rounds: int = 0

    def add(self, num_tokens: int, num_rounds: int) -> None:
        self.num_tokens += num_tokens
        self.num_rounds += num_rounds

    @property
    def mean_accepted(self) -> float:
        return self.num_tokens / self.num_rounds


def in_transformers(path: Path) -> Any:
    """The same weights in transformers, dequantised to fp32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


@contextmanager
def counted(model: Any) -> Iterator[list[int]]:
    """Count a model's forward passes, in a list of one."""
    count, forward = [0], model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return forward(*args, **kwargs)

    model.forward = counting
    try:
        yield count
    finally:
        model.forward = forward


def theirs(
    model: Any, prompt: Sequence[int], max_tokens: int, ends: Sequence[int], **options: Any
) -> tuple[list[int], int]:
    """transformers' completion, and the number of the target's forward passes."""
    ids = torch.tensor([list(prompt)])
    with counted(model) as count, torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=list(ends),
            pad_token_id=ends[0],
            **options,
        )
    return output[0, len(prompt) :].tolist(), count[0]


def ours(
    name: str, vocabulary: LlamaModel, draft: LlamaDraftModel, prompt: list[int], answer: list[int]
) -> Finished:
    """Our method on the same text: a replay that takes no time."""
    recording = np.array(prompt + answer, dtype=np.int32)
    engine = LLM(
        ReplayTarget(recording, LatencyCurve(CostCurve.flat(0.0))),
        vocabulary,
        num_context=len(recording) + 1,
        drafter=InlineDrafter(draft),
    )
    *_, last = engine.stream(prompt, SamplingParams(max_tokens=len(answer)), method=name)
    assert isinstance(last, Finished)
    return last


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 3,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a completion.")] = 96,
    num_tokens: Annotated[int, typer.Option(help="Draft tokens a round of sps.")] = 4,
) -> Figures:
    """Mean accepted tokens of ours and transformers' methods."""
    transformers.logging.set_verbosity_error()
    paths = {name: resolve(name).path for name in ("smollm2", "smollm2-draft")}
    target, assistant = (in_transformers(path) for path in paths.values())
    vocabulary = LlamaModel(paths["smollm2"], vocabulary_only=True, num_gpu_layers=0)
    drafts = {
        "fp32": LlamaModel(requantised(paths["smollm2-draft"], "F32"), num_gpu_layers=0),
        "q4_0": LlamaModel(paths["smollm2-draft"], num_gpu_layers=0),
    }
    drafters = {
        kind: LlamaDraftModel(model, num_context=4096, num_threads=2)
        for kind, model in drafts.items()
    }
    assistant.generation_config.num_assistant_tokens = num_tokens
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    ends = [t for t in range(vocabulary.num_vocab) if vocabulary.is_end(t)]
    engine = LLM(
        ReplayTarget(np.zeros(1, np.int32), LatencyCurve(CostCurve.flat(0.0))), vocabulary, 8192
    )

    counts: dict[str, Count] = {}
    num_parted = 0
    for prompt in track(read_prompts(data, TASKS, limit), console=Console(stderr=True)):
        tokens = engine.tokens_of([{"role": "user", "content": prompt.turns[0]}])
        length = tokens_for(prompt.task, max_tokens)
        answer, num_forwards = theirs(target, tokens, length, ends)
        assert len(answer) == num_forwards, "plain decoding draws one token a forward pass"
        if len(answer) < 2:
            continue
        for name, options in (
            ("transformers, assisted", {"assistant_model": assistant}),
            (
                "transformers, prompt lookup",
                {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3},
            ),
        ):
            said, num_forwards = theirs(target, tokens, length, ends, **options)
            num_parted += said != answer
            # their first forward pass also verifies a draft; ours never waits for one
            counts.setdefault(name, Count()).add(len(said), num_forwards)
        for name, label, kind in (
            (f"sps:{num_tokens}", "duodec, sps, fp32 draft", "fp32"),
            (f"sps:{num_tokens}", "duodec, sps, q4_0 draft as shipped", "q4_0"),
            ("lookup", "duodec, lookup", "fp32"),
        ):
            stats = ours(name, vocabulary, drafters[kind], tokens, answer).stats
            first = len(stats.rounds[0].tokens)
            counts.setdefault(label, Count()).add(
                stats.num_new_tokens - first, len(stats.rounds) - 1
            )
    for name, count in counts.items():
        print(f"{name:<40} {count.mean_accepted:.3f}  ({count.num_tokens}/{count.num_rounds})")
    print(f"{num_parted} of their drafted completions differ from their plain ones")
    return {
        "packages": {"torch": torch.__version__, "transformers": transformers.__version__},
        "mean_accepted": {n: c.mean_accepted for n, c in counts.items()},
        "tokens_and_rounds": {n: [c.num_tokens, c.num_rounds] for n, c in counts.items()},
        "parted": num_parted,
    }
