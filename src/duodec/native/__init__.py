"""Run in C++ the inner loops that are too slow in Python between two forward passes.

The library also has signal handlers that work while Python does not. It is compiled when duodec is
built. `tests/fakes/oracles.py` has the loops in Python, with the same results.
"""
