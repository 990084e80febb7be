"""Memory that was freed is there for every thread."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
from threading import Barrier, Thread
import numpy as np, psutil
from duodec.backends.allocator import keep_freed_memory
keep_freed_memory()
barrier = Barrier(NUM)
def work(number):
    for turn in range(NUM):
        if turn == number:
            np.ones(BYTES, dtype=np.uint8)
        barrier.wait()
before = psutil.Process().memory_info().rss
threads = [Thread(target=work, args=(i,)) for i in range(NUM)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is meant")
def test_threads_that_take_turns_keep_one_heap_of_freed_memory() -> None:
    num_threads, num_bytes = 8, 20 << 20
    program = _PROGRAM.replace("NUM", str(num_threads)).replace("BYTES", str(num_bytes))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert num_bytes * 0.9 < int(done.stdout) < 2 * num_bytes
