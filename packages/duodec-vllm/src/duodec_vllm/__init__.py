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
    command, checks
                `duodec vllm` and `duodec doctor --vllm`

Nothing here imports vLLM: it imports this.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duodec_vllm.proposer import DuoProposer


def __getattr__(name: str) -> Any:
    """Imported when first used: `duodec --help` reads the command's first sentence only."""
    if name != "DuoProposer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from duodec_vllm.proposer import DuoProposer

    return DuoProposer


__all__ = ["DuoProposer"]
