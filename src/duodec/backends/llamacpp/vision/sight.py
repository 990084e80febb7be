"""Turn pictures into tokens of a GGUF model, by the mmproj file that belongs to it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.vision import library
from duodec.backends.llamacpp.vision.image import ImageTokens, Projector
from duodec.core.prompts.pictures import Picture, PromptTokens, Shown, TextPart, run_tokens
from duodec.errors import BadOption, ModelUnreadable


class LlamaSight:
    """What a model sees pictures with. ``num_threads`` encode them, or a GPU where ``on_gpu``."""

    def __init__(
        self, model: LlamaModel, path: Path, *, num_threads: int, on_gpu: bool = False
    ) -> None:
        """Raises ModelUnreadable for a file that is no projector of this model, and
        BackendUnavailable."""
        self._model, self._mtmd = model, library.load()
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads = on_gpu, num_threads
        params.print_timings = params.warmup = False
        params.media_marker = library.MARKER
        handle = self._mtmd.mtmd_init_from_file(os.fsencode(path), model.handle, params)
        if not handle:
            raise ModelUnreadable(
                f"{path} cannot be loaded as the mmproj file of {model.path.name}: it is damaged, "
                "of an unknown kind, or made for another model; download the one that belongs to it"
            )
        num_dims = int(model.lib.llama_model_n_embd_inp(model.handle))
        self.projector = Projector(self._mtmd, handle, path.name, num_dims)
        if not self._mtmd.mtmd_support_vision(handle):
            self.close()
            raise ModelUnreadable(f"{path} sees no pictures; use an mmproj file with vision")

    @property
    def uses_mrope(self) -> bool:
        """Positions behind a picture are fewer than its tokens."""
        return self.projector.uses_mrope

    @cached_property
    def blank(self) -> int:
        """A line's end: a draft of another vocabulary makes few tokens of many."""
        found = self._model.tokens_within("\n")
        return found[-1] if found else max(0, self._model.eos)

    def tokenize(self, parts: Iterable[TextPart | Picture]) -> PromptTokens:
        """Tokens of a templated text with pictures. Raises BadOption and PicturesFull."""
        tokens: list[int] = []
        shown: list[Shown] = []
        for part in parts:
            if isinstance(part, Picture):
                found = self.picture(part)
                tokens += found
                shown += found.shown
                continue
            text, controls = part
            if controls is None:
                tokens += self._model.tokens_within(text)
            else:
                tokens += self._model.tokens_around(text, controls)
        if tokens and tokens[-1] < 0:
            raise BadOption("the prompt ends with a picture; write something after it")
        return PromptTokens(self._model.begun(tokens), shown)

    def picture(self, picture: Picture) -> PromptTokens:
        """Tokens of a picture, with those that the model's family puts around it and its tiles.
        Raises BadOption and PicturesFull."""
        tokens: list[int] = []
        shown: list[Shown] = []
        with self._chunks(picture) as chunks:
            for i in range(self._mtmd.mtmd_input_chunks_size(chunks)):
                chunk = self._mtmd.mtmd_input_chunks_get(chunks, i)
                if self._mtmd.mtmd_input_chunk_get_type(chunk) == library.TEXT:
                    tokens += self._text(chunk)
                    continue
                num = int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
                drawn = run_tokens(picture.digest + i.to_bytes(4, "little"), num)
                shown.append(ImageTokens(self.projector, chunk, drawn))
                tokens += drawn.tolist()
        return PromptTokens(tokens, shown)

    def close(self) -> None:
        """Free what encodes; before the model. Can be called twice."""
        self.projector.close()

    @contextmanager
    def _chunks(self, picture: Picture) -> Iterator[Any]:
        """mtmd's chunks of a picture, prepared for its model. Raises BadOption."""
        mtmd = self._mtmd
        bitmap = mtmd.mtmd_bitmap_init(picture.width, picture.height, picture.pixels)
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            text = library.InputText(library.MARKER, len(library.MARKER), False, True)
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            status = mtmd.mtmd_tokenize(
                self.projector.handle, chunks, ctypes.byref(text), bitmaps, 1
            )
            if status:
                size = f"{picture.width} by {picture.height} pixels"
                raise BadOption(f"a picture of {size} cannot be prepared; send another size")
            yield chunks
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)

    def _text(self, chunk: Any) -> list[int]:
        size = ctypes.c_size_t()
        found = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
        return [token for token in found[: size.value] if token >= 0]  # not of this vocabulary
