"""Inner loops in C++: what stands between two forward passes and is too slow in Python.

Everything here has a twin in Python with the same results, which is used where no compiler is.
"""
