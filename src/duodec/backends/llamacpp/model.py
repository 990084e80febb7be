"""Hold a GGUF model: weights, vocabulary, chat template."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from duodec.backends.interrupts import FLAG, callback, interruptible
from duodec.backends.llamacpp import devices, library
from duodec.backends.llamacpp.devices import Device
from duodec.backends.llamacpp.drafts.head import Head
from duodec.backends.llamacpp.drafts.small_weights import small_weights
from duodec.backends.llamacpp.gguf import overrides
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.target.caches import CacheTypes
from duodec.backends.llamacpp.watch import Watch
from duodec.backends.placement import Placement
from duodec.core.prompts.pictures import Sight
from duodec.core.special_tokens import SpecialTokens, Spelled
from duodec.core.traits import ENCODERS
from duodec.errors import BadOption, ModelUnreadable

_KV_BYTES = 2  # bytes of a number in the cache
# These are llama_token_attr, and what C's isspace counts as white space.
_UNKNOWN, _CONTROL, _USER_DEFINED, _LSTRIP, _RSTRIP = 1 << 0, 1 << 3, 1 << 4, 1 << 7, 1 << 8
_C_SPACE = " \t\n\v\f\r"
_BLOCK = 2048  # least number of characters that are tokenised at once, where they can be cut


class LlamaModel:
    """Hold a causal language model in a GGUF file.

    Weights on the CPU are packed for our kernels as they are read, unless ``packs`` is False. Then
    they stay in the mapped file, and llama.cpp's kernels, which also give every row the same bits,
    compute them more slowly. ``vocabulary_only`` reads no weights. ``placed`` tensors lie on
    devices of their own. Contexts keep keys and values in the formats of ``cache``. Layers that a
    GPU computes lie ``on`` these devices, by default on all. A file that ``is_mapped`` must stay as
    it is; another is read whole. A draft's ``head`` computes only some of its rows. ``has_mtp``
    also reads a layer of multi-token prediction. Raises ModelUnreadable, and BadOption for a device
    that does not exist.
    """

    def __init__(
        self,
        path: Path,
        *,
        num_gpu_layers: int = -1,
        packs: bool = True,
        vocabulary_only: bool = False,
        placed: Sequence[overrides.Override] = (),
        cache: CacheTypes = CacheTypes(),  # noqa: B008  frozen
        on: Sequence[Device] = (),
        is_mapped: bool = True,
        head: Head | None = None,
        has_small_weights: bool = False,
        has_mtp: bool = False,
    ) -> None:
        self.path, self.head = path, head
        self._is_mapped = is_mapped
        self.watches: dict[object, Watch] = {}  # by context, if layers are watched
        self._watched: Sequence[int] = ()
        self._pieces: dict[int, bytes] = {}  # text of tokens that were detokenised
        self.sight: Sight | None = None  # its projector for pictures
        self.cache = cache
        self._placed, self._num_gpu_layers, self._on = placed, num_gpu_layers, tuple(on)
        self.lib = lib = library.load()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = num_gpu_layers
        params.vocab_only = vocabulary_only
        params.load_mtp = has_mtp
        if not is_mapped:
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        if num_gpu_layers == 0:  # not even a context on the GPU: it is the target's
            params.split_mode = lib.LLAMA_SPLIT_MODE_NONE
            params.main_gpu = -1
        is_ours = bool(library.kernels(lib))
        self._is_packed = packs and is_ours
        params.use_extra_bufts = packs and (is_ours or not library.has_amx(lib))
        params.no_host = is_ours  # if a GPU has its part, weights on the CPU are also packed
        if placed:
            tensors = overrides.as_array(lib, placed)
            params.tensor_buft_overrides = ctypes.addressof(tensors)
        if on:
            chosen = devices.as_array(lib, on)
            params.devices = ctypes.addressof(chosen)

        def read() -> Any:
            with small_weights(lib) if has_small_weights else nullcontext():
                return lib.llama_model_load_from_file(os.fsencode(path), params)

        self.handle = interruptible(
            lambda: head.load(read) if head else read(),
            lambda handle: handle and lib.llama_model_free(handle),
        )
        if not self.handle:
            self._refuse_declared()
            self._refuse_large()
            raise ModelUnreadable(
                f"{path} cannot be loaded by llama.cpp: truncated, damaged or of an unknown "
                "architecture; download it again or update llama-cpp-python"
            )
        self.vocab = lib.llama_model_get_vocab(self.handle)
        template = lib.llama_model_chat_template(self.handle, None) or b""
        self.chat_template: str | None = template.decode("utf-8", "replace") or None
        self._ends: dict[int, bool] = {}  # tokens that were queried
        self._refuse_other_kinds()

    def _refuse_large(self) -> None:
        """Raise ModelUnreadable for weights that do not fit in the devices' memory."""
        lib, header = self.lib, Header.read(self.lib, self.path)
        if header is None or not self._num_gpu_layers or not lib.llama_supports_gpu_offload():
            return
        used, free = self._on or devices.every(lib), devices.free_bytes(lib, self._on)
        most = max(1, len(header.kv_heads))
        share = min(1.0, self._num_gpu_layers / most) if self._num_gpu_layers > 0 else 1.0
        need = int(share * header.num_bytes)
        if need > free:
            raise ModelUnreadable(
                f"{self.path.name} does not fit on {', '.join(device.name for device in used)}: "
                f"its weights take {need / 1e9:.1f} GB there and {free / 1e9:.1f} GB are free; use "
                f"fewer than {most} `gpu_layers`, or a smaller quantisation"
            )

    def _refuse_declared(self) -> None:
        """Raise ModelUnreadable for a file that llama.cpp does not load and that declares another
        kind."""
        refuse_encoder(self.path)
        if (kind := declared_architecture(self.path)) in _OTHERS:
            raise ModelUnreadable(f"{self.path} is no language model ({kind}); {_CAUSAL}")

    def _refuse_other_kinds(self) -> None:
        lib, handle = self.lib, self.handle
        if pools(self):
            raise ModelUnreadable(_pooled(self.path, self.architecture))
        kind = None
        if not self.num_vocab:
            kind = "no language model: it has no vocabulary"
        elif lib.llama_model_has_encoder(handle) or not lib.llama_model_has_decoder(handle):
            kind = "an encoder"
        elif lib.llama_model_is_diffusion(handle):
            kind = "a diffusion model"
        elif self.architecture in _OTHERS:
            kind = f"no language model ({self.architecture})"
        if kind:
            raise ModelUnreadable(f"{self.path} is {kind}; {_CAUSAL}")

    def by_value(self) -> FileVocabulary:
        """Return the vocabulary, for another process to load."""
        return FileVocabulary(self.path)

    def watch(self, layers: Sequence[int]) -> None:
        """Let contexts that are opened from now on copy the inputs of these layers."""
        self._watched = layers

    def new_watch(self) -> Watch | None:
        """Return the watch of a context that is being opened."""
        if not self._watched:
            return None
        return Watch(self.lib, self._watched, int(self.lib.llama_model_n_embd(self.handle)))

    def close(self) -> None:
        """Free the weights; no context may be in use."""
        if self.sight is not None:
            self.sight.close()
        if self.handle:
            self.lib.llama_model_free(self.handle)
            self.handle = None

    @property
    def num_vocab(self) -> int:
        return int(self.lib.llama_vocab_n_tokens(self.vocab))

    @property
    def num_context_train(self) -> int:
        """Return the number of positions that the model was trained for."""
        return int(self.lib.llama_model_n_ctx_train(self.handle))

    @property
    def num_layers(self) -> int:
        return int(self.lib.llama_model_n_layer(self.handle))

    @property
    def num_grouped_heads(self) -> int:
        """Return how many query heads share a head of keys."""
        lib, handle = self.lib, self.handle
        return int(lib.llama_model_n_head(handle) // max(1, lib.llama_model_n_head_kv(handle)))

    @property
    def is_recurrent(self) -> bool:
        """Return whether some of its layers keep a state in place of keys and values."""
        lib, handle = self.lib, self.handle
        return bool(lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle))

    @property
    def has_sliding_window(self) -> bool:
        """Return whether some of its layers see only the last tokens of a text."""
        return int(self.lib.llama_model_n_swa(self.handle)) > 0

    def refuse_recurrent(self) -> None:
        """Raise ModelUnreadable for a model that cannot score branches."""
        if self.is_recurrent:
            raise ModelUnreadable(
                f"{self.path} is a recurrent model ({self.architecture}), whose state has no "
                "branches"
            )

    @property
    def placement(self) -> Placement:
        """Return where forward passes are computed."""
        num_layers = self._num_gpu_layers
        if not self.lib.llama_supports_gpu_offload() or not num_layers:
            return Placement.CPU
        is_split = 0 <= num_layers < self.num_layers
        if is_split or any(override.device == overrides.CPU for override in self._placed):
            return Placement.SPLIT
        return Placement.ELSEWHERE

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that compute its layers; none if the CPU does."""
        if self.placement is Placement.CPU:
            return ()
        return self._on or tuple(devices.every(self.lib))

    @property
    def placed_as(self) -> tuple[object, ...]:
        """Return where its layers, tensors and caches lie, for keys of measurements."""
        on = [(device.name, device.description) for device in self.devices]
        return self._num_gpu_layers, on, tuple(self._placed), self.cache

    @property
    def num_params(self) -> int:
        return int(self.lib.llama_model_n_params(self.handle))

    @property
    def num_bytes(self) -> int:
        return int(self.lib.llama_model_size(self.handle))

    @property
    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        self.lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode()

    @property
    def name(self) -> str:
        return self.metadata("general.name") or self.path.stem

    @property
    def architecture(self) -> str:
        return self.metadata("general.architecture") or "unknown"

    @property
    def license(self) -> str | None:
        """Return the licence of the weights, if the file names it."""
        return self.metadata("general.license")

    @property
    def is_read(self) -> bool:
        """Return whether weights are in memory, packed or read whole; a mapped file is loaded at
        need."""
        return self._is_packed or not self._is_mapped

    @property
    def cache_bytes_per_token(self) -> int:
        """Return the bytes of keys and values of every layer, at 16 bits."""
        lib, handle = self.lib, self.handle
        head = lib.llama_model_n_embd(handle) // max(1, lib.llama_model_n_head(handle))
        widths = [
            int(self.metadata(f"{self.architecture}.attention.{part}_length") or head)
            for part in ("key", "value")
        ]
        return int(sum(widths) * self.num_layers * lib.llama_model_n_head_kv(handle) * _KV_BYTES)

    @property
    def bos(self) -> int:
        return int(self.lib.llama_vocab_bos(self.vocab))

    @property
    def eos(self) -> int:
        return int(self.lib.llama_vocab_eos(self.vocab))

    def metadata(self, key: str) -> str | None:
        """Return a scalar of the file's metadata, as text."""
        size = 4096
        buffer = ctypes.create_string_buffer(size)
        length = self.lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def is_end(self, token: int) -> bool:
        """Return whether a token ends the completion."""
        known = self._ends.get(token)  # queried between two forward passes, where calls are slow
        if known is None:
            known = self._ends[token] = bool(self.lib.llama_vocab_is_eog(self.vocab, token))
        return known

    def token_text(self, token: int) -> bytes:
        """Return the vocabulary's own entry for a token (not detokenised)."""
        if token < 0:  # a part of a picture
            return b""
        return self.lib.llama_vocab_get_text(self.vocab, token) or b""

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        """Return the tokens of a text. A templated text has its special tokens spelled out. Another
        one gets the model's own beginning token, and its words are read as plain text."""
        found = self._all_special if is_templated else self._defined
        tokens = self._in_blocks(text, found, is_templated=is_templated)
        is_begun = is_templated and self._begins_with_bos(text)
        return tokens if is_begun else self._enclosed(tokens)

    def tokens_within(self, text: str) -> list[int]:
        """Return the tokens of a part of a templated text, which spells its special tokens out."""
        return self._in_blocks(text, self._all_special, is_templated=True)

    def begun(self, tokens: list[int]) -> list[int]:
        """Return the tokens of a whole text, with those that begin and end it added if missing."""
        return tokens if tokens[:1] == [self.bos] else self._enclosed(tokens)

    def tokenize_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        """Return the tokens of a templated text in which these are the only control tokens."""
        tokens = self.tokens_around(text, controls)
        is_begun = bool(controls) and controls[0].begin == 0 and controls[0].token == self.bos
        return tokens if is_begun else self._enclosed(tokens)

    def tokens_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        """Return the same tokens, without those that begin and end a text."""
        tokens: list[int] = []
        begin, strips = 0, False
        for control in controls:
            attributes = self._attributes(control.token)
            part = text[begin : control.begin]
            part = part.lstrip(_C_SPACE) if strips else part
            part = part.rstrip(_C_SPACE) if attributes & _LSTRIP else part
            tokens += self._in_blocks(part, self._defined, is_templated=False)
            tokens.append(control.token)
            begin, strips = control.end, bool(attributes & _RSTRIP)
        rest = text[begin:].lstrip(_C_SPACE) if strips else text[begin:]
        return tokens + self._in_blocks(rest, self._defined, is_templated=False)

    @cached_property
    def controls(self) -> SpecialTokens:
        """Return the tokens that direct the model; no user's text stands for them."""
        return self._special(_CONTROL | _UNKNOWN)

    @cached_property
    def _defined(self) -> SpecialTokens:
        """Return the whole words of the vocabulary that are found in every text."""
        return self._special(_USER_DEFINED)

    @cached_property
    def _all_special(self) -> SpecialTokens:
        return SpecialTokens({**self.controls.tokens, **self._defined.tokens})

    def _special(self, kinds: int) -> SpecialTokens:
        every = ((token, self._attributes(token)) for token in range(self.num_vocab))
        return SpecialTokens(
            {
                self.token_text(token).decode("utf-8", "replace"): token
                for token, attributes in every
                if attributes & kinds
            }
        )

    def _attributes(self, token: int) -> int:
        return int(self.lib.llama_vocab_get_attr(self.vocab, token))

    def _in_blocks(self, text: str, special: SpecialTokens, *, is_templated: bool) -> list[int]:
        """Return the tokens of a text. The library's time grows with the square of the special
        tokens in it, so a long text is cut where one begins. The text around it has the same tokens
        without it."""
        cuts = [0]
        for found in special.find(text) if len(text) > _BLOCK else ():
            is_due = found.begin - cuts[-1] > _BLOCK
            if is_due and not self._attributes(found.token) & _LSTRIP:
                cuts.append(found.begin)
        blocks = [text[a:b] for a, b in pairwise([*cuts, len(text)])]
        return [t for block in blocks for t in self._tokens(block, is_templated=is_templated)]

    def _enclosed(self, tokens: list[int]) -> list[int]:
        """Add the tokens that begin and end a text, if the model has them."""
        ends = self._tokens("", is_enclosed=True)
        num_first = int(self.lib.llama_vocab_get_add_bos(self.vocab))
        return [*ends[:num_first], *tokens, *ends[num_first:]]

    def _tokens(
        self, text: str, *, is_templated: bool = False, is_enclosed: bool = False
    ) -> list[int]:
        data = text.encode("utf-8", "replace")  # a lone surrogate is not text
        size = len(data) + 8
        tokens = (ctypes.c_int32 * size)()
        n = self.lib.llama_tokenize(
            self.vocab, data, len(data), tokens, size, is_enclosed, is_templated
        )
        assert n >= 0, "a token is at least one byte"
        return list(tokens[:n])

    def _begins_with_bos(self, text: str) -> bool:
        bos = self.token_text(self.bos).decode("utf-8", "replace") if self.bos >= 0 else ""
        return bool(bos) and text.startswith(bos)

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text; none for control tokens."""
        found = self._pieces.get(token)
        if found is None:
            if token < 0:  # a part of a picture
                return b""
            found = self._pieces[token] = self._read_piece(token)
        return found

    def _read_piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = self.lib.llama_token_to_piece(self.vocab, token, buffer, size, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            size = -n


@dataclass(frozen=True)
class FileVocabulary:
    """Load the vocabulary of a GGUF file."""

    path: Path

    def load(self) -> LlamaModel:
        return LlamaModel(self.path, vocabulary_only=True, num_gpu_layers=0)


_HEAD_BYTES = 256
_ARCHITECTURE_KEY = b"general.architecture" + (8).to_bytes(4, "little")  # 8: a text follows
_OTHERS = frozenset({"t5encoder", "clip", "wavtokenizer-dec"})  # these do not generate text
_CAUSAL = "use a causal (decoder-only) model"


def pools(model: LlamaModel) -> bool:
    """Return whether a model computes a row of each text, for embeddings or to rank texts."""
    named = model.metadata(f"{model.architecture}.pooling_type")
    return model.architecture in ENCODERS or named not in (None, "0")


def refuse_encoder(path: Path) -> None:
    """Raise ModelUnreadable for a GGUF file that declares that it reads texts and generates
    none."""
    if (kind := declared_architecture(path)) in ENCODERS:
        raise ModelUnreadable(_pooled(path, str(kind)))


def _pooled(path: Path, kind: str) -> str:
    return (
        f"{path} is no language model ({kind}): it makes embeddings or ranks texts; use "
        f"`duodec embed` or `duodec serve` for it, or {_CAUSAL.removeprefix('use ')} here"
    )


def declared_architecture(path: Path) -> str | None:
    """Return the architecture that a GGUF file declares, if that comes first, as is the convention.

    llama.cpp reports a file that it refuses only in its log.
    """
    with path.open("rb") as file:
        _, _, value = file.read(_HEAD_BYTES).partition(_ARCHITECTURE_KEY)
    length = int.from_bytes(value[:8], "little")
    return value[8 : 8 + length].decode("utf-8", "replace") or None


_FLASH_ATTENTION = {False: 0, True: 1}  # llama_flash_attn_type


def open_context(
    model: LlamaModel,
    *,
    num_context: int,
    num_sequences: int,
    num_threads: int,
    num_batch: int,
    max_rows: int,
    is_width_exact: bool,
    is_unified: bool = True,
    uses_flash_attention: bool | None = None,
    num_snapshots: int = 0,
    kind: int = 0,
    other: object = None,
    on_operation: object = None,
) -> Any:
    """Return a llama.cpp context with one unified cache, or with one per sequence; ``num_context``
    is the number of cells of all caches. Raises ModelUnreadable if memory is short.

    ``is_width_exact``: attention on a CPU gives a row the same bits however many rows and threads
    there are, and whatever lies in the cells between. llama.cpp's flash attention skips masked
    cells and takes other paths for one row (over 512 cells, by threads) and for 64 rows and more,
    but these only for a cache whose halves are both fp16 (or both fp32). Keys in bf16 and values in
    fp16 are as fast as both in fp16; values in bf16 are slow at long contexts. Plain attention is
    not exact: its sums depend on the cells that a text lies in.

    ``uses_flash_attention`` is for a context that need not be exact; None: llama.cpp's own choice.
    ``num_snapshots`` of each sequence's recurrent state are kept: tokens that can be rolled back.
    ``kind`` is llama.cpp's type of the context, ``other`` a context whose model lends it matrices.
    ``on_operation`` is a callback of llama.cpp's own type, which sees each operation.
    """
    lib = model.lib
    # A GPU has other kernels, and computing a mixed cache there may not be possible.
    is_exact = is_width_exact and model.placement is Placement.CPU
    cache = model.cache.resolved(is_width_exact=is_exact)
    if model.metadata(f"{model.architecture}.attention.key_length_mla"):
        cache = CacheTypes(cache.keys, cache.keys)  # latent attention: its values are in the keys
    if cache.needs_flash_attention:
        if uses_flash_attention is False:
            raise BadOption(f"cache_type_v is {cache.values}, which needs flash attention; use f16")
        uses_flash_attention = True
    params = lib.llama_context_default_params()
    params.n_ctx = num_context
    params.n_batch = params.n_ubatch = num_batch
    params.n_seq_max = num_sequences
    params.n_outputs_max = max_rows
    params.n_threads = params.n_threads_batch = num_threads
    params.kv_unified = is_unified  # branches share the cells of their prefix
    params.swa_full = True  # otherwise no rollback to earlier positions is possible
    params.n_rs_seq = num_snapshots
    params.no_perf = True
    params.ctx_type, params.ctx_other = kind, other
    params.type_k, params.type_v = cache.numbers()
    if uses_flash_attention is not None:
        params.flash_attn_type = _FLASH_ATTENTION[uses_flash_attention]
    params.abort_callback = callback(lib.ggml_abort_callback)
    params.abort_callback_data = FLAG.address
    watch = model.new_watch()
    if watch:
        params.cb_eval = watch.callback
    elif on_operation:
        params.cb_eval = on_operation
    try:
        handle = interruptible(
            lambda: lib.llama_init_from_model(model.handle, params), lambda handle: None
        )
    except KeyboardInterrupt:  # it is still being made: its parts are never freed
        model.handle = None
        raise
    if not handle:
        raise ModelUnreadable(
            f"no memory for a context of {num_context} tokens of {model.path}; "
            "ask for a smaller one with `context`"
        )
    if watch:
        model.watches[handle] = watch
    return handle
