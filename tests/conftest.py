"""Where there is no GPU, Triton's interpreter runs our kernels. It must be asked for before
anything imports Triton, which torch and transformers may do."""

import os
from pathlib import Path

if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ["TRITON_INTERPRET"] = "1"
