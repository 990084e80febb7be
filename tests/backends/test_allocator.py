"""Memory that was freed is there for every thread."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import MAX_WIDTH
from duodec.core.draft import Draft
from duodec.core.targets import Query
from duodec.models import resolve

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


_HOLES = """
import numpy as np, psutil
from duodec.backends.allocator import give_back_freed_memory, keep_freed_memory
keep_freed_memory()
def rss(): return psutil.Process().memory_info().rss
before = rss()
blocks = [np.ones(BYTES, dtype=np.uint8) for _ in range(20)]
del blocks[:-1]  # all but the last one, so that the heap cannot shrink from its end
kept = rss() - before
give_back_freed_memory()
print(kept, rss() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is meant")
def test_what_is_kept_can_be_given_back() -> None:
    num_bytes = 20 << 20
    program = _HOLES.replace("BYTES", str(num_bytes))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    kept, left = map(int, done.stdout.split())
    assert kept > 15 * num_bytes
    assert left < 3 * num_bytes


class _Mallinfo(ctypes.Structure):
    _fields_ = [("arena", ctypes.c_size_t), *((f"other_{i}", ctypes.c_size_t) for i in range(9))]


def heap_bytes() -> int:
    """That the allocator took from the system, in use or not."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("this C library does not tell the size of its heap")
    mallinfo.restype = _Mallinfo
    return int(mallinfo().arena)


def test_the_widest_tree_needs_no_more_memory_than_the_first_forward() -> None:
    """llama.cpp keeps room for as many rows as there are sequences, and takes more as it must."""
    model = LlamaModel(resolve("smollm2").path)
    target = LlamaTarget(model, num_context=200, num_threads=2)
    text = np.arange(100, 130, dtype=np.int32)
    target.score([Query(0, text)])
    before = heap_bytes()
    tree = Draft(tuple(range(200, 200 + MAX_WIDTH)), (-1,) * MAX_WIDTH)
    (scores,) = target.score([Query(0, text, tree)])
    assert scores.num_rows == MAX_WIDTH + 1
    assert heap_bytes() - before < 4 * model.num_vocab * MAX_WIDTH / 4
    target.close()
    model.close()
