"""Draft blocks with layers that read a target's hidden states: DFlash, DFlash2 and DSpark.

Such a drafter keeps keys and values of the target's states, for each token that the target has
computed. Behind them it receives the text's last token and mask tokens for what follows, and
predicts all of their places in one pass. Its context has a cache of its own, like that of the
layers in `duodec.backends.llamacpp.heads.layers`, which see as much of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp.heads.files import (
    BLOCKS,
    DFLASH2,
    DSPARK,
    EAGLE3,
    DraftLayer,
    kind_of,
)
from duodec.backends.llamacpp.heads.layers import (
    NUM_BATCH,
    Eagle3Head,
    KnownText,
    LlamaHead,
    open_layers,
)
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import Batch, logits
from duodec.backends.llamacpp.target.states import State
from duodec.backends.tree_cache import Entry
from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.core.sampling.sampler import Context, Sampler, Tokens
from duodec.core.targets import Candidates, Proposed, Query
from duodec.errors import BadOption, ComputeFailed

_SIZE = 16  # of a block, if a file gives none; llama.cpp's default
_SIZES = range(2, 257)  # sizes of blocks that are computed here
_NUM_POSITIONS = 4  # positions of a token, with rotary positions for images


def open_head(target: LlamaModel, other: object, path: Path, **sizes: int) -> LlamaHead:
    """Open the head in a file of its own, of any kind; ``other`` is one of the target's contexts.
    ``sizes`` are those of the kinds. Raises BadOption and ModelUnreadable."""
    opened = BlockHead if kind_of(target.lib, path) not in ("", EAGLE3) else Eagle3Head
    return opened(target, other, path, **sizes)


@dataclass(frozen=True)
class Block:
    """Describe the layout of a drafter's passes."""

    size: int  # tokens of a pass: the text's last one, and masks
    first: int  # place in the pass that gives the first draft token
    mask: int  # token that stands for one that follows
    top_k: int  # candidates of a place, if the drafter chooses them itself; otherwise 0
    is_causal: bool

    @classmethod
    def of(cls, model: DraftLayer) -> Block:
        """Read the layout of a model. Raises BadOption."""

        def number(key: str, default: int = 0) -> int:
            return int(model.metadata(f"{BLOCKS}.{key}") or default)

        def holds(key: str, default: str) -> bool:
            return (model.metadata(f"{BLOCKS}.{key}") or default) == "true"

        drafts_at_once = model.kind == DSPARK and holds("sample_from_anchor", "true")
        found = cls(
            size=number("block_size", 0 if model.kind == DSPARK else _SIZE),
            first=0 if drafts_at_once else 1,
            mask=int(model.lib.llama_vocab_mask(model.vocab)),
            top_k=number("selector_top_k") if model.kind == DFLASH2 else 0,
            is_causal=holds("attention.causal", "false"),
        )
        if found.size not in _SIZES:
            raise BadOption(
                f"{model.path.name} has blocks of {found.size} tokens, which should be "
                f"{_SIZES.start} to {_SIZES.stop - 1}: convert it again, or name another head"
            )
        if not 0 <= found.mask < model.num_vocab:
            raise BadOption(
                f"{model.path.name} names no mask token (tokenizer.ggml.mask_token_id is "
                f"{found.mask}): convert it again with --target-model-dir"
            )
        return found


class BlockHead(LlamaHead):
    """Compute DFlash (2602.06036), DFlash2 or DSpark: layers in a file of their own, which fuse the
    inputs of some of the target's layers."""

    def __init__(
        self,
        target: LlamaModel,
        other: object,
        path: Path,
        *,
        num_slots: int,
        num_context: int,
        num_threads: int,
        num_gpu_layers: int = -1,
    ) -> None:
        """``other`` is one of the target's contexts. Raises BadOption and ModelUnreadable."""
        model = DraftLayer(path, target, num_gpu_layers=num_gpu_layers)
        self.name, self.layers = model.kind, model.layers
        self.share = model.num_bytes / target.num_bytes
        try:
            self.block = Block.of(model)
            self.most_tokens = self.block.size - self.block.first
            handle = open_layers(
                model, other, num_slots=num_slots, num_context=num_context,
                num_threads=num_threads, most_tokens=self.block.size,
            )  # fmt: skip
        except BaseException:
            model.close()
            raise
        super().__init__(target, model, handle, num_slots=num_slots, num_threads=num_threads)
        self._lib.llama_set_causal_attn(handle, self.block.is_causal)
        if self.block.top_k:
            self._staging.set_final(handle, True, False)
        self.num_vocab = model.num_vocab
        rotation = self._lib.llama_model_rope_type(model.handle)
        self._features = Batch(
            self._lib, NUM_BATCH, 1, num_states=self.num_inputs,
            num_positions=_NUM_POSITIONS if rotation == self._lib.LLAMA_ROPE_TYPE_MROPE else 1,
        )  # fmt: skip
        self._features.struct.token = None
        self._masked = Batch(self._lib, self.block.size, 1)

    def after(self, query: Query, tokens: Sequence[int]) -> BlockSuccessors:
        known, text = self.known(query, tokens)
        return BlockSuccessors(self, known, self.sequence(query.slot), text, query.sampler)

    def accounted(self, proposed: Proposed) -> Proposed:
        return replace(proposed, num_computed=self.most_tokens)

    def step(self, position: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, 0, position - 1, -1)  # the last step's block
        self._fuse(0, position - 1, np.zeros((1, self.num_inputs), dtype=np.float32))
        self._compute(0, position, 0)

    def close(self) -> None:
        super().close()
        self._model.close()

    def read(self, known: KnownText, sequence: int, text: Tokens) -> State:
        """Compute what the drafter lacks of a text, and a block behind it. Return a row for each
        token that it drafts, which holds until the next call. A row has logits, or if the drafter
        chooses candidates itself, these and their scores after each candidate of the place before.
        Raises ComputeFailed, also if the target's states are not known."""
        begin = self.take_back(known, sequence, text, known.begin)
        while begin < len(text) - 1:
            end = min(begin + NUM_BATCH, len(text) - 1)
            states = known.states[begin - known.begin : end - known.begin]
            self._fuse(sequence, begin, np.stack(states))
            known.read, begin = text[:end], end
        self._compute(sequence, begin, int(text[-1]))
        size, first = self.block.size, self.block.first
        if self.block.top_k:
            rows = np.ctypeslib.as_array(self._staging.final(self._handle), (size, self.width))
        else:
            rows = logits(self._model, self._handle, size)
        return rows[first:]

    # --- parts

    def _fuse(self, sequence: int, position: int, states: State) -> None:
        """Keep keys and values of the target's states of tokens from ``position`` on."""
        seqs = (sequence,)
        self._features.fill([Entry(0, position + i, seqs, None) for i in range(len(states))])
        self._features.states[: len(states)] = states
        self.decode(self._features)

    def _compute(self, sequence: int, position: int, token: int) -> None:
        """Compute a block that begins with ``token`` at ``position``. Its cells are removed when
        the text is read on."""
        tokens, seqs = [token, *[self.block.mask] * (self.block.size - 1)], (sequence,)
        has_logits = not self.block.top_k
        self._masked.fill(
            [
                Entry(token, position + i, seqs, i if has_logits else None)
                for i, token in enumerate(tokens)
            ]
        )
        self.decode(self._masked)


class BlockSuccessors:
    """Propose a block after one text, as a tree by place: any token of a place may follow any token
    of the place before it. DFlash2's drafter says how likely it is after each of these; the others
    do not know which of them comes. Candidates are ordered with the noise of the target's draws,
    like a draft model's."""

    def __init__(
        self, head: BlockHead, known: KnownText, sequence: int, text: Tokens, sampler: Sampler
    ) -> None:
        self._head, self._known, self._sequence, self._text = head, known, sequence, text
        self._sampler, self._top_k = sampler, head.block.top_k
        self._rows: State = np.empty((0, 0), dtype=np.float32)  # one row per place
        self._place = -1  # place for which candidates were requested last

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        """Return what may follow these nodes, best first."""
        try:
            if self._place < 0:
                self._rows = self._head.read(self._known, self._sequence, self._text)
            self._place += 1
            if self._place < len(self._rows):
                return self._candidates(tree, leaves, count)
        except ComputeFailed:  # a draft is optional
            self._rows = self._rows[:0]
        return [Candidates() for _ in leaves]

    def _candidates(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        count = min(count, self._top_k or count)
        before = [self._before(tree, leaf) for leaf in leaves]
        found: dict[int, Candidates] = {}
        for leaf, number in zip(leaves, before, strict=True):
            if number not in found:
                context = Context(self._text, tuple(tree.path_tokens(leaf)))
                tokens, likely = self._sampler.candidates(self._logits(number), context, count)
                found[number] = Candidates(tuple(tokens.tolist()), tuple(likely.tolist()))
        return [found[number] for number in before]

    def _before(self, tree: CandidateTree, leaf: int) -> int:
        """Return which candidate of the place before a node is; 0 if that does not matter."""
        if leaf == ROOT or not self._top_k:
            return 0
        found: list[int] = self._chosen(self._place - 1).tolist()
        return found.index(tree.tokens[leaf])

    def _chosen(self, place: int) -> NDArray[np.int64]:
        """Return the drafter's own candidates for a place."""
        row: State = self._rows[place]
        return row[: self._top_k].astype(np.int64)

    def _logits(self, number: int) -> State:
        """Return the logits of a place, after a candidate of the place before."""
        row: State = self._rows[self._place]
        if not self._top_k:
            return row
        scores = row[self._top_k :][: self._top_k**2].reshape(self._top_k, self._top_k)
        logits = np.full(self._head.num_vocab, -np.inf, dtype=np.float32)
        logits[self._chosen(self._place)] = scores[number]
        return logits
