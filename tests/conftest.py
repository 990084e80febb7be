"""Without a GPU, Triton's interpreter runs our kernels. It must be enabled before anything imports
Triton, which torch and transformers may do."""

import os
from importlib.util import find_spec
from pathlib import Path

HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()  # or one of Windows
if not HAS_GPU and not find_spec("vllm"):  # which has kernels of its own
    os.environ["TRITON_INTERPRET"] = "1"
