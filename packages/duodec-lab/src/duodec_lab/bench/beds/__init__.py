"""Test beds: the real pair, a replay at a curve, and a simulation on a virtual clock."""

from duodec_lab.bench.beds.base import Bed, Parts, Stage, answered, on_cores
from duodec_lab.bench.beds.real import RealBed, real_stage
from duodec_lab.bench.beds.replay import ReplayBed, replay_stage

__all__ = [
    "Bed",
    "Parts",
    "RealBed",
    "ReplayBed",
    "Stage",
    "answered",
    "on_cores",
    "real_stage",
    "replay_stage",
]
