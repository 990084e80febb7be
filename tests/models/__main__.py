"""Print the path of a real model's file, fetched and checked.

python -m tests.models qwen2.5-coder-1.5b
"""

from __future__ import annotations

import sys

from tests.models.weights import weights

from duodec.errors import DuodecError
from duodec.models import ALIASES

if len(sys.argv) != 2 or sys.argv[1] in {"-h", "--help"}:
    sys.exit(f"usage: python -m tests.models NAME, such as {', '.join(ALIASES)}")
try:
    print(weights(sys.argv[1]))
except DuodecError as error:
    sys.exit(f"error: {error}")
