"""Inner loops in C++: what stands between two forward passes and is too slow in Python.

They are compiled when duodec is built. `tests/fakes/oracles.py` has them in Python, with the same
results.
"""
