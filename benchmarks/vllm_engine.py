"""One engine of vLLM in a process of its own, for `benchmarks.vllm`: a job on stdin, the outcome
in the file that it names."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

PROPOSER = "duodec.integrations.vllm.DuoProposer"


def main() -> None:
    job = json.load(sys.stdin)
    cores = sorted(os.sched_getaffinity(0))
    if job["step_s"]:  # the target is elsewhere: one core launches its work
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
    if job["step_s"]:  # where vLLM computes on all cores, there is no drafter: as by default
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
    params = vllm.SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    times = timed(runner.drafter) if job["method"] == "duodec" else []
    tokenizer = llm.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in job["prompts"]
    ]
    serve(llm, [prompts.pop()], 1, params)
    runs = {}
    for clients in job["clients"]:
        del times[:]
        before = accepted(llm)
        num_own = job["limits"][str(clients)]
        own, prompts = prompts[:num_own], prompts[num_own:]
        begin = time.perf_counter()
        answers = serve(llm, own, clients, params)
        seconds = time.perf_counter() - begin
        num_tokens = sum(map(len, answers))
        # of the first token of each answer nothing can be drafted
        later = num_tokens - len(answers)
        full = [spent for rows, spent in times if rows == clients]
        runs[clients] = {
            "tokens_per_second": num_tokens / seconds,
            "seconds": seconds,
            "num_tokens": num_tokens,
            "mean_accepted": later / (later - (accepted(llm) - before)),
            "propose_median_ms": 1e3 * median(full) if full else None,
            "answers": answers,
        }
    found = {"runs": runs}
    if job["method"] == "duodec":
        found["counts"] = vars(runner.drafter.speculator.counts)
    Path(job["output"]).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def speculation(job: dict[str, Any]) -> dict[str, Any] | None:
    """What vLLM is told of a method."""
    count = {"num_speculative_tokens": job["num_tokens"]}
    if job["method"] == "plain":
        return None
    if job["method"] == "ngram":
        return {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2, **count}
    if job["method"] == "draft_model":
        return {"method": "draft_model", "model": job["draft_folder"], **count}
    return {"method": "custom_class", "model": PROPOSER, **count}


def serve(llm: Any, prompts: Sequence[list[int]], clients: int, params: Any) -> list[list[int]]:
    """All prompts, so many at a time: who has an answer asks the next."""
    engine = llm.llm_engine
    waiting = deque(enumerate(prompts))
    answers: dict[int, list[int]] = {}
    num_active = 0
    while waiting or num_active:
        while waiting and num_active < clients:
            number, prompt = waiting.popleft()
            engine.add_request(
                f"{time.monotonic_ns()}-{number}", {"prompt_token_ids": prompt}, params
            )
            num_active += 1
        for output in engine.step():
            if output.finished:
                answers[int(output.request_id.split("-")[1])] = list(output.outputs[0].token_ids)
                num_active -= 1
    return [answers[number] for number in sorted(answers)]


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
    """The hook: a forward lasts so long at least, as a large model's elsewhere would."""
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
