"""Inner loops in C++: what stands between two forward passes and is too slow in Python; and signal
handlers that work while Python does not.

They are compiled when duodec is built. `tests/fakes/oracles.py` has the loops in Python, with the
same results.
"""
