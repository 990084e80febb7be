"""Record a target's hidden states beside the tokens of a recording.

They are read through llama.cpp at the places where an EAGLE-3 head will read them, from one pass
over each text that was recorded. A file of them belongs to each shard, and is written whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp.heads.files import show_layers
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.backends.llamacpp.target.states import HiddenStates, State
from duodec.backends.tree_cache import Entry
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.core.sampling.sampler import Tokens
from duodec.errors import BadOption
from duodec.machine.files import replacing
from duodec_lab.distill.files import Folder
from duodec_lab.distill.recording import Recording, Sample, Shard

_MOST = float(np.finfo(np.float16).max)  # the first token's states may be larger

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class StatedSample(Sample):
    """A sample with the target's states of each token: (length, numbers), in float16."""

    states: NDArray[np.float16]


class StateReader:
    """Reads the states that some of a target's layers are given."""

    def __init__(
        self, model: LlamaModel, layers: Sequence[int], num_context: int, num_threads: int
    ) -> None:
        show_layers(model, layers)
        self._context = LlamaContext(
            model, num_context=num_context, num_sequences=2, num_threads=num_threads, max_rows=2,
            is_width_exact=True,
        )  # fmt: skip
        self._parts: list[NDArray[np.float16]] = []
        self._context.states = HiddenStates(model, self._context.handle, layers, self._keep)

    def of(self, text: Tokens) -> NDArray[np.float16]:
        """Of each token of a text. Raises ContextExceeded and ComputeFailed."""
        self._context.forget(0)  # nothing of the text is taken as read
        self._parts.clear()
        self._context.rows([RowQuery(0, text, Draft(), rows=(0,))])
        self._context.states.take()
        return np.concatenate(self._parts)

    def close(self) -> None:
        self._context.close()

    def _keep(self, entries: Sequence[Entry], states: State) -> None:
        self._parts.append(np.clip(states, -_MOST, _MOST).astype(np.float16))


def record_states(
    path: Path,
    layers: Sequence[int],
    recording: Recording,
    folder: Folder,
    *,
    num_gpu_layers: int,
    num_threads: int,
    on_progress: OnProgress,
) -> Recording:
    """The recording with the states that the target in ``path`` gives its ``layers``. Files that
    are there are used again. Raises BadOption for one that is damaged, and OSError if the disk is
    full: what was written stays."""
    shards = list(_shards(folder))
    missing = [
        number
        for number, shard in enumerate(shards)
        if shard.samples and not folder.states(number).exists()
    ]
    if missing:
        longest = max(len(sample.tokens) for i in missing for sample in shards[i].samples)
        with (
            closing(LlamaModel(path, num_gpu_layers=num_gpu_layers)) as model,
            closing(StateReader(model, layers, longest + 1, num_threads)) as reader,
        ):
            for done, number in enumerate(missing, 1):
                found = np.concatenate([reader.of(one.tokens) for one in shards[number].samples])
                with replacing(folder.states(number)) as part, part.open("wb") as file:
                    np.save(file, found)
                on_progress("reading hidden states", done, len(missing))
    stated = [
        sample for number, shard in enumerate(shards) for sample in _stated(folder, number, shard)
    ]
    num_held_out = len(recording.held_out)
    return replace(
        recording, held_out=tuple(stated[:num_held_out]), training=tuple(stated[num_held_out:])
    )


def _shards(folder: Folder) -> Iterator[Shard]:
    number = 0
    while (shard := Shard.read(folder, number)) is not None:
        yield shard
        number += 1


def _stated(folder: Folder, number: int, shard: Shard) -> Iterator[StatedSample]:
    """A shard's samples with their states, which stay on the disk until they are used."""
    if not shard.samples:
        return
    path = folder.states(number)
    length = sum(len(sample.tokens) for sample in shard.samples)
    try:
        states = np.load(path, mmap_mode="r", allow_pickle=False)
        if states.ndim != 2 or len(states) != length:
            raise ValueError(f"{len(states)} states of {length} tokens")
    except (OSError, ValueError, EOFError) as error:
        raise BadOption(
            f"{path} is damaged ({error}); delete it to have it recorded again"
        ) from error
    at = 0
    for sample in shard.samples:
        own = states[at : at + len(sample.tokens)]
        at += len(sample.tokens)
        yield StatedSample(sample.tokens, sample.num_prompt, sample.tops, sample.logprobs, own)
