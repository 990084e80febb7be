"""Run vLLM with our drafter: the CPUs of its hosts draft during its forward passes.

    proposer    vLLM's hook, and counters for Prometheus
    speculator  what to propose for every row, from the drafts that are ready
    requests    which row is which request
    draft_lengths
                the planner on vLLM's clock
    drafter_thread
                the drafter, and the thread that reads its messages
    settings, opening, vocabulary
                from the environment to a drafter that suits vLLM's target

Nothing here imports vLLM: it imports this.
"""

from duodec.integrations.vllm.proposer import DuoProposer

__all__ = ["DuoProposer"]
