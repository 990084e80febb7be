"""Load an unknown model in a process of its own and compute a little; a crash ends only that
process."""

from __future__ import annotations

import json
import resource
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.embedding.embedder import LlamaEmbedder
from duodec.backends.llamacpp.embedding.model import PooledModel
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.heads.blocks import open_head
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.chains import LlamaChains
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.backends.llamacpp.target.recurrent import LlamaRecurrent
from duodec.backends.llamacpp.vision.sight import LlamaSight
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.core.prompts.pictures import Picture
from duodec.core.targets import Query
from duodec.errors import DuodecError

MODEL, VOCABULARY = "model", "vocabulary"  # what is tried of a file
PROJECTOR = "mmproj:"  # comes before the path of a projector for pictures
REFUSED = 3  # exit status for a model that was refused with a message of ours
_TEXT = "The sky is blue because air scatters\tsunlight.\n\n1 + 1 = 2, naïve <|end|>"
_MOST_COMPUTED_BYTES = 8 << 30  # larger models are loaded and laid out, but not computed
_NUM_CONTEXT = 64


def main(path: str, num_bytes: str, part: str) -> None:
    """Run in the child. ``part`` of the file is tried: MODEL, VOCABULARY, or the head in the file
    of this name, for which the model is the target; after PROJECTOR, an mmproj file. An error goes
    to stdout as JSON: class and message."""
    _limit(2 * int(num_bytes) + (6 << 30))
    try:
        if part in (MODEL, VOCABULARY):
            _try(Path(path), int(num_bytes), part == VOCABULARY)
        elif part.startswith(PROJECTOR):
            _try_projector(Path(path), Path(part.removeprefix(PROJECTOR)), int(num_bytes))
        else:
            _try_head(Path(path), Path(part))
    except DuodecError as error:
        print(json.dumps([type(error).__name__, str(error)]))
        sys.exit(REFUSED)


def _limit(num_bytes: int) -> None:
    for kind, most in ((resource.RLIMIT_AS, num_bytes), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):  # no such limit here, or a lower one already
            resource.setrlimit(kind, (most, most))


def _try(path: Path, num_bytes: int, is_vocabulary_only: bool) -> None:
    header = Header.read(library.load(), path)
    if header and header.is_pooled and not is_vocabulary_only:
        _try_pooled(path, is_computed=num_bytes <= _MOST_COMPUTED_BYTES)
        return
    # Weights that are not packed stay in the mapped file.
    model = LlamaModel(path, num_gpu_layers=0, packs=False, vocabulary_only=is_vocabulary_only)
    with closing(model):
        for token in range(model.num_vocab):
            model.piece(token)
            model.token_text(token)
        tokens = model.tokenize(_TEXT, is_templated=True)
        assert model.chat_template is not None or tokens is not None
        if is_vocabulary_only:
            return
        text = np.array([*tokens, 0][:8], dtype=np.int32)
        is_computed = num_bytes <= _MOST_COMPUTED_BYTES
        if model.is_recurrent:
            target = LlamaRecurrent(model, num_slots=1, num_context=_NUM_CONTEXT, num_threads=2)
            with closing(target):
                if is_computed:
                    target.score([Query(0, text)])
            return
        context = LlamaContext(
            model, num_context=_NUM_CONTEXT, num_sequences=2, num_threads=2, max_rows=2
        )
        with closing(context):
            if is_computed:
                context.rows([RowQuery(0, text, Draft(), (0,))])


def _try_pooled(path: Path, *, is_computed: bool) -> None:
    """Try a model that computes a row of each text."""
    model = PooledModel(path, num_gpu_layers=0, packs=False)
    for token in range(model.num_vocab):
        model.piece(token)
        model.token_text(token)
    most = min(_NUM_CONTEXT, model.num_context_train)
    with closing(LlamaEmbedder(model, num_context=most, num_threads=2)) as embedder:
        texts = [embedder.pair_tokens("the sky", _TEXT), embedder.tokens_of(_TEXT)]
        if is_computed:
            embedder.rows([embedder.cut([*text, 0]) for text in texts])


def _try_projector(path: Path, own: Path, num_bytes: int) -> None:
    """Try a small gray picture: encode and read it."""
    model = LlamaModel(path, num_gpu_layers=0, packs=False)
    with closing(model):
        model.sight = sight = LlamaSight(model, own, num_threads=2)
        picture = Picture(96, 64, bytes(3 * 96 * 64))
        prompt = sight.tokenize([("", None), picture, ("a", None)])
        if num_bytes > _MOST_COMPUTED_BYTES:
            return
        num_context = len(prompt) + _NUM_CONTEXT
        sizes: Any = {"num_slots": 1, "num_context": num_context, "num_threads": 2}
        kind = LlamaRecurrent if model.is_recurrent else LlamaChains
        with closing(kind(model, **sizes)) as target:
            target.score([Query(0, np.array(prompt, dtype=np.int32), shown=prompt.shown)])


def _try_head(path: Path, head_path: Path) -> None:
    model = LlamaModel(path, num_gpu_layers=0, packs=False)
    with closing(model):
        sizes: Any = {"num_context": _NUM_CONTEXT, "num_threads": 2}
        context: LlamaContext | LlamaRecurrent
        if model.is_recurrent:
            context = LlamaRecurrent(model, num_slots=1, **sizes)
        else:
            context = LlamaContext(model, num_sequences=1, max_rows=1, **sizes)
        with (
            closing(context),
            closing(open_head(model, context.handle, head_path, num_slots=1, **sizes)) as head,
        ):
            head.step_s()
