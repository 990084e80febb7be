"""Without a GPU, Triton's interpreter runs our kernels. It must be enabled before anything imports
Triton, which torch and transformers may do. And Ctrl-C is heard, by us and by the processes that we
start, even where a shell that started us in the background has it ignored. A checkout that was not
set up gets the compiled inner loops. Clients of servers share one TLS context, which takes a tenth
of a second to read the system's certificates."""

import os
import signal
import ssl
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from duodec.native.build import build

HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()  # or one of Windows
if not HAS_GPU and not find_spec("vllm"):  # which has kernels of its own
    os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ssl.create_default_context = cache(ssl.create_default_context)

build()


@pytest.fixture
def loops_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner loops that take any source of candidates, and objects that can be copied."""
    from fakes import oracles

    oracles.use(monkeypatch)
