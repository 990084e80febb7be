"""Read the hidden states of a target's layers, through llama.cpp's staging interface.

That interface consists of C++ functions, which are found by the names that the compiler gave them.
If an architecture's graph does not tell the interface about its layers, they are watched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.watch import State as State
from duodec.backends.tree_cache import Entry
from duodec.errors import BadOption

FINAL = -1  # the last layer's output, after its norm; other numbers stand for a layer's input


class Staging:
    """Call llama.cpp's staging functions, by the names that the compiler gave them."""

    def __init__(self, lib: Any) -> None:
        """Raise BadOption if the library does not export them."""
        pointer, of_handle = ctypes.POINTER(ctypes.c_float), ctypes.c_void_p

        def of(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            function = lib._lib[name]
            function.restype, function.argtypes = result, (of_handle, *arguments)
            return function  # type: ignore[no-any-return]

        flag, number = ctypes.c_bool, ctypes.c_uint32
        try:
            self.set_final = of(
                "_Z26llama_set_embeddings_nextnP13llama_contextbb", None, flag, flag
            )
            self.final = of("_Z26llama_get_embeddings_nextnP13llama_context", pointer)
            self.set_input = of(
                "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, number, flag
            )
            self.input = of("_Z30llama_get_embeddings_layer_inpP13llama_contextj", pointer, number)
        except AttributeError as error:
            raise BadOption(
                "this llama.cpp exports no hidden states, which a target's own heads read; use "
                "`mtp=off`"
            ) from error


class NoStates:
    """Ignore a context's states."""

    def computed(self, entries: Sequence[Entry]) -> None: ...

    def take(self) -> None: ...


class HiddenStates(NoStates):
    """Copy what some layers of a target gave in each forward pass of one of its contexts.

    `take` waits for the pass; it must be called before the next one begins.
    """

    def __init__(
        self,
        model: LlamaModel,
        handle: object,
        layers: Sequence[int],
        keep: Callable[[Sequence[Entry], State], None],
    ) -> None:
        """``keep`` receives the tokens of a pass, and a row of states for each."""
        self._staging, self._handle = Staging(model.lib), handle
        self._layers, self._keep = layers, keep
        self._width = int(model.lib.llama_model_n_embd(model.handle))
        self._entries: Sequence[Entry] = ()
        self._watch = model.watches.get(handle)
        for layer in layers if self._watch is None else ():
            if layer == FINAL:
                self._staging.set_final(handle, True, False)
            else:
                self._staging.set_input(handle, layer, True)

    def computed(self, entries: Sequence[Entry]) -> None:
        """Record that a forward pass over these tokens has begun."""
        self._entries = entries

    def take(self) -> None:
        """Keep the states of the last pass, unless that is already done."""
        entries, self._entries = self._entries, ()
        watched = self._watch.taken() if self._watch else {}
        if not entries:
            return
        shape = len(entries), self._width
        parts = [
            watched[layer]
            if self._watch
            else np.ctypeslib.as_array(
                self._staging.final(self._handle)
                if layer == FINAL
                else self._staging.input(self._handle, layer),
                shape,
            )
            for layer in self._layers
        ]
        self._keep(entries, np.concatenate(parts, axis=1))
