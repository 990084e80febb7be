"""Run one engine of vLLM for `comparison.py`: settings on stdin, results to a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

PROPOSER = "duodec_vllm.DuoProposer"
_SHORTEST = 0.5  # of the longest completion


@dataclass
class Answers:
    """The completions, and the rate while all clients were active: afterwards the engine is less
    and less busy, and the time of the last completion does not measure throughput."""

    tokens: dict[int, list[int]] = field(default_factory=dict)  # by question
    busy_tokens: int = 0
    busy_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens.values()))


def main() -> None:
    job = json.load(sys.stdin)
    cores = sorted(os.sched_getaffinity(0))
    if job["step_s"]:  # the target stands in for one on a GPU: one core launches its work
        os.sched_setaffinity(0, {cores[0]})
    os.environ.update(
        OMP_NUM_THREADS="1" if job["step_s"] else str(len(cores)),
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
        HF_HUB_OFFLINE="1",
        DUODEC_VLLM_DRAFT=job["draft"],
    )
    if job["step_s"]:  # if vLLM computes on all cores, there is no drafter, as by default
        os.environ.update(DUODEC_VLLM_CORES=str(cores[-1]), DUODEC_VLLM_ON_FAULT="refuse")
    import vllm

    slow_down(job["step_s"])
    llm = vllm.LLM(
        job["target"],
        dtype=job["dtype"],
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=max(job["clients"]),
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculation(job),
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    times = timed(runner.drafter) if job["method"] == "duodec" else []
    tokenizer = llm.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in job["prompts"]
    ]
    dice = Random(0)
    params = [  # of different lengths, so that requests do not end together
        vllm.SamplingParams(
            temperature=0,
            max_tokens=round(job["max_tokens"] * dice.uniform(_SHORTEST, 1)),
            ignore_eos=True,
        )
        for _ in prompts
    ]
    questions = list(zip(prompts, params, strict=True))
    serve(llm, [questions.pop()], 1)
    runs = {}
    for clients in job["clients"]:
        del times[:]
        before = accepted(llm)
        num_own = job["limits"][str(clients)]
        own, questions = questions[:num_own], questions[num_own:]
        begin = time.perf_counter()
        answers = serve(llm, own, clients)
        seconds = time.perf_counter() - begin
        # the first token of each completion cannot be drafted
        later = answers.num_tokens - len(own)
        full = [spent for rows, spent in times if rows == clients]
        runs[clients] = {
            "tokens_per_second": answers.busy_tokens / answers.busy_s,
            "to_the_last": answers.num_tokens / seconds,
            "seconds": seconds,
            "num_tokens": answers.num_tokens,
            "mean_accepted": later / (later - (accepted(llm) - before)),
            "propose_median_ms": 1e3 * median(full) if full else None,
            "answers": [answers.tokens[number] for number in range(num_own)],
        }
    found = {"runs": runs}
    if job["method"] == "duodec":
        found["counts"] = vars(runner.drafter.speculator.counts)
        found["restarts"] = runner.drafter.speculator.drafter_thread.restarts
    Path(job["output"]).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def speculation(job: dict[str, Any]) -> dict[str, Any] | None:
    """vLLM's configuration of a method."""
    count = {"num_speculative_tokens": job["num_tokens"]}
    if job["method"] == "plain":
        return None
    if job["method"] == "ngram":
        return {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2, **count}
    if job["method"] == "draft_model":
        return {"method": "draft_model", "model": job["draft_folder"], **count}
    return {"method": "custom_class", "model": PROPOSER, **count}


def serve(llm: Any, questions: Sequence[tuple[list[int], Any]], clients: int) -> Answers:
    """All prompts, so many at a time: a client with a completion sends the next one."""
    engine = llm.llm_engine
    waiting = deque(enumerate(questions))
    answers, num_active = Answers(), 0
    begin = time.perf_counter()
    while waiting or num_active:
        while waiting and num_active < clients:
            number, (prompt, params) = waiting.popleft()
            name = f"{time.monotonic_ns()}-{number}"
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
            num_active += 1
        is_busy = num_active == clients
        for output in engine.step():
            number = int(output.request_id.split("-")[1])
            answers.tokens[number] = list(output.outputs[0].token_ids)
            num_active -= output.finished
        if is_busy:
            answers.busy_tokens = answers.num_tokens
            answers.busy_s = time.perf_counter() - begin
    return answers


def accepted(llm: Any) -> int:
    """Draft tokens that vLLM accepted so far."""
    name = "vllm:spec_decode_num_accepted_tokens"
    return sum(metric.value for metric in llm.get_metrics() if metric.name == name)


def timed(drafter: Any) -> list[tuple[int, float]]:
    """Rows and seconds of each call of `propose`."""
    times: list[tuple[int, float]] = []
    propose = drafter.propose

    def timing(new: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        begin = time.perf_counter()
        drafts: list[list[int]] = propose(new, *args, **kwargs)
        times.append((len(new), time.perf_counter() - begin))
        return drafts

    drafter.propose = timing
    return times


def slow_down(step_s: float) -> None:
    """The hook: a forward pass lasts at least so long, as a large model's on a GPU would."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    forward = GPUModelRunner._model_forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        end = time.perf_counter() + step_s
        output = forward(*args, **kwargs)
        time.sleep(max(0.0, end - time.perf_counter()))
        return output

    GPUModelRunner._model_forward = slow


if __name__ == "__main__":
    main()
