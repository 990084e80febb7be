"""Plan which cores compute the target and which the draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duodec.machine.cores import MOST_DRAFT_THREADS, Cores
from duodec.machine.topology import Topology


@dataclass(frozen=True)
class CorePlan:
    """Plan cores so that busy threads never outnumber them: llama.cpp's workers spin, and two
    oversubscribed pools were measured at less than a tenth of their speed.

    ``target_alone`` threads compute the target while nothing is drafted, ``target_beside`` while
    the drafter works on ``draft_cores``. A target that computes elsewhere needs one thread, which
    launches its work and stays on ``launch_cores``.
    """

    target_alone: int
    target_beside: int
    draft_cores: Cores
    shares_cores: bool
    launch_cores: Cores

    @classmethod
    def make(
        cls,
        topology: Topology,
        *,
        target_is_on_cpu: bool,
        num_threads: int | None = None,
        num_draft_threads: int | None = None,
    ) -> CorePlan:
        """Return the plan for these cores: a thread on each fast one. A target that computes
        elsewhere leaves all but one to the draft. Slow cores and second threads of a core are used
        only if more threads are requested than there are fast cores."""
        if target_is_on_cpu:
            return cls._in_turns(topology, num_threads, num_draft_threads)
        cores, fast = topology.cores, topology.fast
        launching = topology.with_siblings(fast[:1])  # its second thread would slow it
        num_draft = num_draft_threads or max(1, min(MOST_DRAFT_THREADS, len(fast) - 1))
        whole = [core for core in fast if core not in launching]
        apart = [core for core in cores if core not in launching]
        spare = [core for core in cores if core != fast[0]] or cores
        own = next((tuple(o) for o in (whole, apart) if len(o) >= num_draft), tuple(spare))
        draft_cores = _together(own, min(num_draft, len(own)), topology.nodes)
        busy = topology.with_siblings(draft_cores) - launching
        launch_cores = tuple(core for core in cores if core not in {*busy, *draft_cores})
        return cls(1, 1, draft_cores, shares_cores=False, launch_cores=launch_cores or cores)

    @classmethod
    def _in_turns(
        cls, topology: Topology, num_threads: int | None, num_draft_threads: int | None
    ) -> CorePlan:
        """Return the plan of a target that computes on the CPU, on the cores of the draft."""
        usable = num_threads or len(topology.fast)
        cores = topology.fast if usable <= len(topology.fast) else topology.cores
        num_draft = min(num_draft_threads or max(1, usable // 4), max(1, len(cores) - 1))
        draft_cores = _together(cores, num_draft, topology.nodes)
        beside = max(1, min(usable, len(cores) - num_draft))
        rest = tuple(core for core in topology.cores if core not in draft_cores)
        return cls(usable, beside, draft_cores, shares_cores=True, launch_cores=rest or cores)


def _together(cores: Cores, count: int, nodes: Sequence[Cores]) -> Cores:
    """Return the last ``count`` cores, of one node if one has so many: threads that share a model's
    weights should share the memory that holds them."""
    own = [tuple(core for core in node if core in cores) for node in nodes]
    roomy = [node for node in own if len(node) >= count]
    return (roomy[-1] if roomy else cores)[-count:]
