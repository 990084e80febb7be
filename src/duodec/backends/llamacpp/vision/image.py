"""Hold a part of a picture as a target sees it: its tokens, its positions, its embeddings."""

from __future__ import annotations

import weakref
from threading import Lock, RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.core.sampling.sampler import Tokens
from duodec.errors import ComputeFailed, PicturesFull

Rows = NDArray[np.float32]  # (tokens, numbers of an embedding)
MOST_BYTES = 1 << 30  # of pictures that are prepared or encoded, of requests that wait or run
_PIXEL_BYTES = 12  # of a prepared picture
_TOKEN_PIXELS = 1024  # about what a token stands for, or fewer


class Projector:
    """An open mmproj file, of a model that ``uses_mrope`` or not. Its pictures are encoded by one
    thread at a time."""

    def __init__(self, mtmd: Any, handle: Any, name: str, num_dims: int) -> None:
        self.mtmd, self.handle, self.name, self.num_dims = mtmd, handle, name, num_dims
        self.uses_mrope = bool(mtmd.mtmd_decode_use_mrope(handle))
        self.num_encoded = 0  # parts of pictures, so far
        self.num_bytes = 0  # of those that somebody holds, about
        self._lock, self._counting = Lock(), RLock()  # what is freed may be freed while one counts

    def reserve(self, num_tokens: int) -> int:
        """Bytes of a part of a picture, counted until `release`. Raises PicturesFull."""
        size = num_tokens * (_TOKEN_PIXELS * _PIXEL_BYTES + 4 * self.num_dims)
        with self._counting:
            if self.num_bytes and self.num_bytes + size > MOST_BYTES:
                raise PicturesFull(
                    f"pictures of other requests take {self.num_bytes >> 20} MiB of "
                    f"{MOST_BYTES >> 20}; ask again in a moment"
                )
            self.num_bytes += size
        return size

    def release(self, size: int, chunk: Any) -> None:
        """Free a chunk, and what it counted."""
        self.mtmd.mtmd_input_chunk_free(chunk)
        with self._counting:
            self.num_bytes -= size

    def encode(self, chunk: Any, num_tokens: int) -> Rows:
        """The embeddings of a chunk. Raises ComputeFailed."""
        with self._lock:
            if self.handle is None or self.mtmd.mtmd_encode_chunk(self.handle, chunk):
                raise ComputeFailed(
                    f"a picture could not be encoded by {self.name}; memory may be short: send a "
                    "smaller one"
                )
            self.num_encoded += 1
            found = self.mtmd.mtmd_get_output_embd(self.handle)
            rows = np.ctypeslib.as_array(found, (num_tokens, self.num_dims)).copy()
        if not np.isfinite(rows).all():  # in a cache they would spoil what comes after them
            raise ComputeFailed(
                f"{self.name} made numbers of a picture that are none: it is damaged, or this "
                "llama.cpp has a fault; build it with `duodec setup`"
            )
        return rows

    def close(self) -> None:
        """Can be called twice."""
        with self._lock:
            if self.handle is not None:
                self.mtmd.mtmd_free(self.handle)
                self.handle = None


class ImageTokens:
    """A part of a picture: the whole, or one of the tiles that a model cuts it into. It is encoded
    when the target first needs it; ``chunk`` is mtmd's, copied here. Raises PicturesFull."""

    def __init__(self, projector: Projector, chunk: Any, tokens: Tokens) -> None:
        mtmd, size = projector.mtmd, projector.reserve(len(tokens))
        self.tokens = tokens
        self._projector, self._chunk = projector, mtmd.mtmd_input_chunk_copy(chunk)
        weakref.finalize(self, projector.release, size, self._chunk)
        chunk = self._chunk
        self.num_positions = int(mtmd.mtmd_input_chunk_get_n_pos(chunk))
        self.is_causal = not mtmd.mtmd_decode_use_non_causal(projector.handle, chunk)
        self._rows: Rows | None = None

    @property
    def num_axes(self) -> int:
        """Numbers of a position: time, row, column and one more with M-RoPE."""
        return 4 if self._projector.uses_mrope else 1

    def rows(self) -> Rows:
        """An embedding of each token. Raises ComputeFailed."""
        if self._rows is None:
            self._rows = self._projector.encode(self._chunk, len(self.tokens))
        return self._rows

    def positions(self, begin: int) -> NDArray[np.int32]:
        """(axes, tokens): where the tokens lie of a picture whose first position is ``begin``."""
        num = len(self.tokens)
        if self.num_axes == 1:
            return np.arange(begin, begin + num, dtype=np.int32)[None]
        mtmd = self._projector.mtmd
        image = mtmd.mtmd_input_chunk_get_tokens_image(self._chunk)
        each = (mtmd.mtmd_image_tokens_get_decoder_pos(image, begin, i) for i in range(num))
        found = [(at.t, at.y, at.x, at.z) for at in each]
        return np.array(found, dtype=np.int32).T.copy()
