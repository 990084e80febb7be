"""Which processors compute what, on machines as Linux describes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duodec.errors import BadOption
from duodec.machine import topology as topology_module
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import Cores, available_cores, keep_to, listed_cores
from duodec.machine.topology import Topology, memory_nodes
from duodec_vllm.opening import Host, draft_cores
from duodec_vllm.settings import Settings


class Machine:
    """A folder like Linux's /sys/devices."""

    def __init__(self, folder: Path, num_cores: int) -> None:
        self.folder, self.cores = folder, tuple(range(num_cores))

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def siblings(self, *lists: str) -> None:
        for text in lists:
            for core in listed_cores(text):
                self.write(f"system/cpu/cpu{core}/topology/core_cpus_list", text)

    def nodes(self, *lists: str) -> None:
        for number, text in enumerate(lists):
            self.write(f"system/node/node{number}/cpulist", text)

    def read(self, cores: Cores | None = None) -> Topology:
        return Topology.read(self.cores if cores is None else cores, self.folder)


def i9_13900k(folder: Path) -> Machine:
    """Eight performance cores of two threads, sixteen efficiency cores behind them."""
    machine = Machine(folder, 32)
    machine.siblings(*(f"{core}-{core + 1}" for core in range(0, 16, 2)), *map(str, range(16, 32)))
    machine.write("cpu_core/cpus", "0-15")
    machine.write("cpu_atom/cpus", "16-31")
    machine.nodes("0-31")
    return machine


def ryzen_7950x(folder: Path) -> Machine:
    """Sixteen cores, whose second threads are numbered after all first ones."""
    machine = Machine(folder, 32)
    machine.siblings(*(f"{core},{core + 16}" for core in range(16)))
    machine.nodes("0-31")
    return machine


def two_epycs(folder: Path) -> Machine:
    machine = Machine(folder, 64)
    machine.siblings(*(f"{core},{core + 32}" for core in range(32)))
    machine.nodes("0-15,32-47", "16-31,48-63")
    return machine


def rk3588(folder: Path) -> Machine:
    """A board with four little cores and four big ones."""
    machine = Machine(folder, 8)
    for core in range(8):
        machine.write(f"system/cpu/cpu{core}/cpu_capacity", "1024" if core > 3 else "414")
    return machine


def virtual(folder: Path) -> Machine:
    """A machine of four processors that says nothing of them."""
    return Machine(folder, 4)


CHOSEN = [  # a CPU target's threads; a GPU's launching core and its drafter's cores; vLLM's drafter
    (i9_13900k, tuple(range(0, 16, 2)), 0, (2, 4, 6, 8, 10, 12, 14), (6, 8, 10, 12, 14)),
    (ryzen_7950x, tuple(range(16)), 0, tuple(range(8, 16)), tuple(range(8, 16))),
    (two_epycs, tuple(range(32)), 0, tuple(range(24, 32)), tuple(range(24, 32))),
    (rk3588, (4, 5, 6, 7), 4, (5, 6, 7), (7,)),
    (virtual, (0, 1, 2, 3), 0, (1, 2, 3), (3,)),
]


@pytest.mark.parametrize(("machine", "fast", "launching", "draft", "vllm"), CHOSEN)
def test_threads_have_whole_fast_cores(
    tmp_path: Path, machine: object, fast: Cores, launching: int, draft: Cores, vllm: Cores
) -> None:
    assert callable(machine)
    found: Topology = machine(tmp_path).read()
    assert found.fast == fast
    alone = CorePlan.make(found, target_is_on_cpu=True)
    assert (alone.target_alone, alone.shares_cores) == (len(fast), True)
    assert set(alone.draft_cores) <= set(fast)
    plan = CorePlan.make(found, target_is_on_cpu=False)
    assert plan.draft_cores == draft
    assert launching in plan.launch_cores
    assert not set(plan.launch_cores) & found.with_siblings(draft), "its cores' second threads rest"
    assert draft_cores(Settings(), Host(), found) == vllm


def test_second_threads_and_slow_cores_are_used_where_they_are_asked_for(tmp_path: Path) -> None:
    found = i9_13900k(tmp_path).read()
    assert CorePlan.make(found, target_is_on_cpu=True, num_threads=24).target_alone == 24
    plan = CorePlan.make(found, target_is_on_cpu=False, num_draft_threads=12)
    assert len(plan.draft_cores) == 12
    assert not {0, 1} & set(plan.draft_cores), "the launching core is left alone"


def test_only_cores_that_the_process_may_use_count(tmp_path: Path) -> None:
    found = ryzen_7950x(tmp_path).read((3, 19, 21, 5))
    assert found.fast == (3, 5)
    assert i9_13900k(tmp_path).read((20, 21)).fast == (20, 21), "efficiency cores alone"
    assert ryzen_7950x(tmp_path).read((19,)).fast == (19,)


def test_an_apple_processor_tells_how_many_cores_are_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_module.sys, "platform", "darwin")
    monkeypatch.setattr(topology_module, "num_performance_cores", lambda: 6)
    assert len(Machine(tmp_path, 10).read().fast) == 6


def test_this_machine_has_fast_cores() -> None:
    found = Topology.read()
    assert found.fast
    assert set(found.fast) <= set(found.cores) == set(available_cores())


# --- memory


def test_memory_nodes_are_read_as_linux_writes_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 6)
    machine.nodes("0-1,4", "", "2-3,5,8-9")
    assert machine.read().nodes == ((0, 1, 4), (2, 3, 5))


def test_without_memory_nodes_all_cores_are_one(tmp_path: Path) -> None:
    assert memory_nodes((0, 1), tmp_path / "none") == ((0, 1),)


def test_the_drafter_stays_on_one_node(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 24)
    machine.nodes("0-11", "12-23")
    found = machine.read()
    plan = CorePlan.make(found, target_is_on_cpu=False)
    assert plan.draft_cores == tuple(range(16, 24))
    assert 0 in plan.launch_cores
    assert not set(plan.launch_cores) & set(plan.draft_cores)
    assert (plan.target_alone, plan.target_beside, plan.shares_cores) == (1, 1, False)
    larger = CorePlan.make(found, target_is_on_cpu=False, num_draft_threads=12)
    assert set(larger.draft_cores) == set(range(12, 24))


def test_a_drafter_larger_than_any_node_takes_what_there_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 8)
    machine.nodes("0-3", "4-7")
    plan = CorePlan.make(machine.read(), target_is_on_cpu=False, num_draft_threads=6)
    assert plan.draft_cores == (2, 3, 4, 5, 6, 7)
    assert plan.launch_cores == (0, 1)


# --- shares


@pytest.mark.parametrize(("cores", "draft"), [((0,), (0,)), ((0, 1), (1,)), ((3, 5, 9), (5, 9))])
def test_few_cores_are_shared_as_well_as_they_can(cores: Cores, draft: Cores) -> None:
    plan = CorePlan.make(Topology.flat(cores), target_is_on_cpu=False)
    assert plan.draft_cores == draft
    assert plan.launch_cores[0] == cores[0]


def test_one_core_of_two_threads_is_shared(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.siblings("0-1")
    plan = CorePlan.make(machine.read(), target_is_on_cpu=False)
    assert (plan.draft_cores, plan.launch_cores) == ((1,), (0,))
    assert CorePlan.make(machine.read(), target_is_on_cpu=True).target_alone == 1


def test_a_target_on_the_cpu_leaves_a_quarter_to_the_draft() -> None:
    plan = CorePlan.make(Topology.flat(tuple(range(8))), target_is_on_cpu=True)
    assert (plan.target_alone, plan.target_beside, plan.draft_cores) == (8, 6, (6, 7))
    assert plan.shares_cores


def test_vllm_needs_cores_of_its_own() -> None:
    with pytest.raises(BadOption, match="need 10 cores of 8"):
        draft_cores(Settings(), Host(num_workers=8), Topology.flat(tuple(range(8))))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no threads")
def test_a_thread_keeps_to_its_cores_and_is_let_go() -> None:
    every = available_cores()
    try:
        keep_to(every[:1])
        assert available_cores() == every[:1]
    finally:
        keep_to(every)
    assert available_cores() == every
