"""Copy numbers from the host to a device without waiting for the device's queue.

A plain copy from pageable memory waits until the device has done everything queued before, perhaps
a whole forward pass, and leaves it idle until the next kernel is launched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from duodec_torch.library import torch


def upload(
    values: ArrayLike, device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``values``, copied in the order of the device's queue; on a CPU they may be shared."""
    found = torch.as_tensor(np.asarray(values), dtype=dtype)
    if device.type == "cuda":  # torch keeps pinned memory until it was copied
        found = found.pin_memory()
    return found.to(device, non_blocking=True)
