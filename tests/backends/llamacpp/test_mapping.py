"""What memory holds a model's weights: its file, mapped, and packed copies in large pages."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp import load as loading
from duodec.loading.config import EngineConfig

pytest.importorskip("llama_cpp", reason="llama.cpp is not built: make setup")

DRAFT = Path(__file__).parents[3] / "src" / "duodec" / "data" / "smollm2-135m-draft-q4_0.gguf"
PROGRAM = """\
import os, sys
from duodec import LLM, SamplingParams
path = sys.argv[1]
llm = LLM.load(path, None, no_mmap=sys.argv[2] == "read", context=64, threads=1)
params = SamplingParams(max_tokens=4, seed=1)
before = llm.generate("The capital of France", params)[0].tokens
os.truncate(path, 4096)
for text in ("The capital of France", "One, two, three and so on: 9 8 7"):
    after = llm.generate(text, params)[0].tokens
assert llm.generate("The capital of France", params)[0].tokens == before
"""

LARGE_PAGES = """\
import sys
from pathlib import Path
from typing import Any
from duodec.backends.llamacpp.model import LlamaModel

def large_page_bytes():
    "Of this process's memory, what it asked to have in pages of 2 MB."
    found = size = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if name == "Size:":
            size = 1024 * int(values[0])
        elif name == "VmFlags:" and "hg" in values:
            found += size
    return found

before = large_page_bytes()
model = LlamaModel(Path(sys.argv[1]), num_gpu_layers=0)
print(before, large_page_bytes())
model.close()
"""


GROWING = """\
import re, sys
from pathlib import Path
from typing import Any
from duodec import LLM, SamplingParams

def taken():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = taken()
with LLM.load(sys.argv[1], None, num_slots=4, context=8192) as llm:
    made = taken() - before
    llm.generate("word " * 2000, SamplingParams(max_tokens=4, seed=1))
    print(llm.loaded.memory.cache_bytes, made, taken() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere caches are taken at once")
def test_caches_take_what_texts_fill() -> None:
    """A server's caches for long texts are not written before there are such texts."""
    if not library.kernels(library.load()):
        pytest.skip("this build has none of our kernels")
    run = subprocess.run(
        [sys.executable, "-c", GROWING, str(DRAFT)], capture_output=True, text=True, check=True
    )
    most, made, used = map(int, run.stdout.split())
    assert made < most / 3
    assert made + 2000 * most // 8192 // 8 < used < most / 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a mapped file ends otherwise")
@pytest.mark.parametrize("how", ["mapped", "read"])
def test_a_file_that_is_read_whole_may_be_truncated(tmp_path: Path, how: str) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(DRAFT, path)
    path.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), how], capture_output=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == (0 if how == "read" else -signal.SIGBUS), done.stderr.decode()


def test_a_file_is_mapped_unless_the_user_says_otherwise() -> None:
    assert not EngineConfig().no_mmap


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="pages are of one size here"
)
def test_packed_weights_lie_in_large_pages() -> None:
    if not library.kernels(library.load()):
        pytest.skip("this build of llama.cpp has no kernels of ours")
    # In a process of its own: here a buffer may reuse what an earlier test has freed.
    done = subprocess.run(
        [sys.executable, "-c", LARGE_PAGES, str(DRAFT)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = (int(size) for size in done.stdout.split())
    assert after - before > 0.8 * DRAFT.stat().st_size


class Reached(Exception):
    """That weights would be read now, packed or not."""


def test_weights_that_do_not_fit_when_packed_stay_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, packs: bool, **__: Any) -> None:
        raise Reached(packs)

    def packs(free_bytes: int) -> bool:
        monkeypatch.setattr(loading, "available_bytes", lambda: free_bytes)
        config = EngineConfig(str(DRAFT), context=64, device="cpu")
        with pytest.raises(Reached) as found:
            loading.load(DRAFT, config, told.append)
        return bool(found.value.args[0])

    told: list[str] = []
    monkeypatch.setattr(loading, "LlamaModel", read)
    monkeypatch.setattr(library, "packed_size", lambda lib, type_: 1.0)
    assert packs(100 << 20)
    assert not told
    monkeypatch.setattr(library, "packed_size", lambda lib, type_: 4.0)
    assert not packs(100 << 20)
    (line,) = told
    assert line.startswith("0.1 GB of weights stay mapped from their file, as memory is short")
    assert packs(200 << 20)


@pytest.mark.parametrize(
    ("type_", "size"),
    [(0, 1), (2, 1), (12, 1.03), (19, 1.16), (16, 1.12), (34, 1.22), (1000, 0)],
    ids=["F32", "Q4_0", "Q4_K", "IQ1_S", "IQ2_XXS", "TQ1_0", "none"],
)
def test_formats_of_few_bits_take_more_when_packed(type_: int, size: float) -> None:
    lib = library.load()
    if not library.kernels(lib):
        pytest.skip("this build of llama.cpp has no kernels of ours")
    assert library.packed_size(lib, type_) == pytest.approx(size, abs=0.01)
