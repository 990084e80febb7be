"""vLLM's engine in a process of its own: a job on stdin, the outcome in a file.

vLLM warns, logs and never lets go of its memory, so it does not live in the tests' process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.vllm.engine import slow_down


def main() -> None:
    job = json.load(sys.stdin)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})  # the drafter has the last one
    os.environ.update(
        OMP_NUM_THREADS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        DUODEC_VLLM_DRAFT=job.get("draft", "smollm2-draft"),
        DUODEC_VLLM_CORES=str(cores[-1]),
        DUODEC_VLLM_ON_FAULT="refuse",
    )
    import vllm
    from prometheus_client import REGISTRY

    slow_down(job["step_s"])
    options: dict[str, Any] = {}
    if job["is_ours"]:
        options["speculative_config"] = {
            "method": "custom_class",
            "model": "duodec_vllm.DuoProposer",
            "num_speculative_tokens": 4,
        }
    llm = vllm.LLM(
        job["model"], dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=16,
        seed=1, disable_log_stats=False, **options,
    )  # fmt: skip
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    drafter = getattr(runner, "drafter", None)
    if job.get("kill_after"):
        kill(drafter, job["kill_after"])
    greedy = vllm.SamplingParams(temperature=0, max_tokens=job["max_tokens"])
    chats = [[{"role": "user", "content": text}] for text in job["prompts"]]
    alone = [ids for chat in chats for ids in tokens(llm.chat([chat], greedy, use_tqdm=False))]
    together = tokens(llm.chat(chats[:16], greedy, use_tqdm=False))
    sampled = []
    if job["num_samples"]:
        drawn = vllm.SamplingParams(temperature=1.0, max_tokens=6, ignore_eos=True)
        texts = [job["prompts"][0]] * job["num_samples"]
        sampled = tokens(llm.generate(texts, drawn, use_tqdm=False))
    found = {
        "alone": alone,
        "together": together,
        "sampled": sampled,
        "metrics": {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")},
    }
    if job["is_ours"]:
        found["restarts"] = drafter.drafter.drafter.restarts
        found["counts"] = vars(drafter.speculator.counts)
        found["steps"] = REGISTRY.get_sample_value("duodec:steps_total")
    Path(job["output"]).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # what vLLM does at the end is not our concern


def tokens(answers: list[Any]) -> list[list[int]]:
    return [list(answer.outputs[0].token_ids) for answer in answers]


def kill(drafter: Any, num_steps: int) -> None:
    """Kill the drafter's process in the middle, once."""
    propose, left = drafter.propose, [num_steps]

    def killing(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(drafter.drafter.drafter.pid, signal.SIGKILL)
        return propose(*args, **kwargs)

    drafter.propose = killing


if __name__ == "__main__":
    main()
