"""Draw all rows of a round in one batched step on the device; the host gets a few numbers a row.

Rows that no sampler changes or cuts may have been drawn by their forward pass already. Given the
same row of logits, the token and the margin are those of `Sampler.draw`: every step is
a comparison, a fixed-order fp32 operation or a sum of whole numbers. Top-k and top-p need a sorted
row: its best tokens are examined first. The samplers keep a prefix of them, and if no other token
can win whatever its noise, the row is settled. Otherwise it is drawn again from its whole sorted
row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from duodec.core.sampling.noise import GUMBEL_MAX
from duodec.core.targets import Query
from duodec_torch.library import torch
from duodec_torch.sampling.noise import exp_mass, gumbel, halves
from duodec_torch.sampling.penalties import adjust, adjusts
from duodec_torch.sampling.rows import best, top
from duodec_torch.sampling.summaries import (
    GREEDY,
    IS_SETTLED,
    LARGEST,
    NUM_COLUMNS,
    NUM_TOP,
    TOP,
    Drawers,
    Pick,
)
from duodec_torch.uploads import upload

HEAD = 1024  # tokens of a row that are examined first
_MASS_FLOOR = float(np.float32(-25 * math.log(2)))  # below it, a mass rounds to 0

ToHost = Callable[[torch.Tensor], NDArray[np.float64]]
Copied = Callable[[torch.Tensor], Callable[[], NDArray[np.float64]]]


@dataclass(frozen=True)
class Drawn:
    """The results of rows on the host: tokens, margins and candidates."""

    tokens: NDArray[np.float64]  # (rows,)
    margins: NDArray[np.float64]  # (rows,)
    largest: NDArray[np.float64]  # (rows,) scores: not finite where a row has no draw
    candidates: NDArray[np.float64]  # (rows, the most that any query requested)
    likely: NDArray[np.float64]  # their logits, of the same shape


class Drawing:
    """Draws of a round that the device was told to make."""

    def __init__(
        self,
        logits: torch.Tensor,
        queries: Sequence[Query],
        params: RowParams,
        copied: Copied,
        pick: Pick,
        summaries: torch.Tensor | None = None,
    ) -> None:
        """See `draw`; ``copied`` begins to copy a small tensor, and returns what waits for it.
        ``summaries`` are of rows that were drawn already, as ``params.ways`` tell; those that are
        not plain are drawn here."""
        self._copied, self._pick, self._params = copied, pick, params
        self._scores = _adjusted(logits, queries)
        most = max(query.num_candidates for query in queries)
        self._num_candidates = min(most, logits.shape[-1])
        if summaries is not None and most <= NUM_TOP:
            self._redraw(logits, summaries)
        else:
            summaries = self._summaries(logits)
        self._found = copied(summaries)

    def _summaries(self, logits: torch.Tensor) -> torch.Tensor:
        drawn = _first_look(self._scores, self._params, self._pick)
        parts = [part[:, None] for part in (*drawn, _largest(logits, self._scores))]
        if self._num_candidates:
            values, tops = top(logits, self._num_candidates)
            parts += [tops, values]
        return torch.cat([part.double() for part in parts], dim=-1)

    def _redraw(self, logits: torch.Tensor, summaries: torch.Tensor) -> None:
        rows = np.flatnonzero(~self._params.is_plain)
        if len(rows):
            at = upload(rows, summaries.device)
            drawn = _first_look(self._scores[at], self._params.only(rows), self._pick)
            summaries[at, :LARGEST] = torch.stack([part.double() for part in drawn], dim=-1)
        if self._scores is not logits:
            summaries[:, LARGEST] = _largest(logits, self._scores).double()

    def result(self) -> Drawn:
        """Wait for them."""
        found, wanted = self._found(), self._num_candidates
        open_rows = np.flatnonzero(found[:, IS_SETTLED] == 0)
        if len(open_rows):
            rows = self._scores[upload(open_rows, self._scores.device)]
            settled = _sampled(rows, self._params.only(open_rows), rows.shape[-1], self._pick)
            again = self._copied(torch.stack([part.double() for part in settled], dim=-1))()
            found = found.copy()
            found[open_rows, :2] = again[:, :2]
        tokens, likely = np.split(found[:, TOP:], 2, axis=1)
        return Drawn(
            found[:, 0], found[:, 1], found[:, LARGEST], tokens[:, :wanted], likely[:, :wanted]
        )


def draw(
    logits: torch.Tensor,
    queries: Sequence[Query],
    to_host: ToHost,
    drawers: Drawers = Drawers(),  # noqa: B008  # it has no state
) -> Drawn:
    """Draw every row of ``queries``, concatenated in ``logits``: (rows, vocab) fp32. ``drawers``
    draw those that are not cut.

    ``to_host`` copies a small tensor and waits for it: once, twice if a row was not settled.
    """
    params, summaries = RowParams.of(queries), None
    if drawers.summarise is not None:
        summaries = logits.new_empty((len(logits), NUM_COLUMNS), dtype=torch.float64)
        drawers.summarise(logits, upload(params.ways, logits.device), summaries)
    copied = lambda tensor: partial(to_host, tensor)  # noqa: E731
    return Drawing(logits, queries, params, copied, drawers.pick, summaries).result()


def _adjusted(logits: torch.Tensor, queries: Sequence[Query]) -> torch.Tensor:
    """The logits with bias and penalties; ``logits`` itself if nothing changes them."""
    if not any(adjusts(query.sampler.params) for query in queries):
        return logits
    scores = logits.clone()
    lengths = [len(query.draft) + 1 for query in queries]
    for rows, query in zip(torch.split(scores, lengths), queries, strict=True):
        adjust(rows, query)
    return scores


def _largest(logits: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Of each row's scores; of its logits where that is not finite: a NaN may be banned."""
    largest = logits.amax(dim=-1)  # with a NaN, NaN
    if scores is logits:
        return largest
    return torch.where(largest.isfinite(), scores.amax(dim=-1), largest)


@dataclass(frozen=True)
class RowParams:
    """The samplers' parameters, one line a row."""

    values: NDArray[np.float64]  # (rows, 7), all exact in float64
    is_plain: NDArray[np.bool_]  # (rows,) neither adjusted nor cut

    @classmethod
    def of(cls, queries: Sequence[Query]) -> RowParams:
        lines, is_plain = [], list[bool]()
        for query in queries:
            p, length = query.sampler.params, len(query.draft) + 1
            is_cut = not p.is_greedy and (p.top_k > 0 or p.top_p < 1 or p.min_p > 0)
            is_plain += [not (is_cut or adjusts(p))] * length
            if p.is_greedy:
                lines += [[GREEDY] * 7] * length
                continue
            common = [
                float(np.float32(1 / p.temperature)), p.top_k, p.top_p, p.min_p > 0,
                float(np.float32(math.log(p.min_p))) if p.min_p > 0 else 0.0,
            ]  # fmt: skip
            depths = [0, *query.draft.depths()]
            keys = {d: halves(query.sampler.key(len(query.text) + d)) for d in set(depths)}
            lines += [[*common, *keys[depth]] for depth in depths]
        return cls(np.array(lines, dtype=np.float64), np.array(is_plain))

    def only(self, rows: NDArray[np.int64]) -> RowParams:
        return RowParams(self.values[rows], self.is_plain[rows])

    @property
    def ways(self) -> NDArray[np.int64]:
        """How `Summarise` draws each row, (rows, 3); those that are not plain are drawn again, and
        here the fastest way."""
        ways = self.values[:, 4:].astype(np.int64)
        inverse = np.where(self.is_plain, self.values[:, 0], GREEDY).astype(np.float32)
        ways[:, 0] = inverse.view(np.int32)
        return ways

    @property
    def is_cut(self) -> bool:
        """Whether some row is cut by top-k or top-p, which need a sorted row."""
        return bool((self.values[:, 1] > 0).any() or (self.values[:, 2] < 1).any())

    @property
    def is_greedy(self) -> NDArray[np.bool_]:
        greedy: NDArray[np.bool_] = self.values[:, 0] == GREEDY
        return greedy


_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # tokens, margins, whether settled


def _first_look(scores: torch.Tensor, params: RowParams, pick: Pick) -> _Three:
    is_greedy = params.is_greedy
    if not is_greedy.any():
        return _sampled(scores, params, HEAD, pick)
    tokens, margins = best(scores)
    is_settled = torch.ones_like(tokens, dtype=torch.bool)
    if not is_greedy.all():
        rows = np.flatnonzero(~is_greedy)
        at = upload(rows, scores.device)
        drawn = _sampled(scores[at], params.only(rows), HEAD, pick)
        tokens[at], margins[at], is_settled[at] = drawn
    return tokens, margins, is_settled


def _sampled(logits: torch.Tensor, params: RowParams, num_head: int, pick: Pick) -> _Three:
    """Draw rows whose temperature is above 0."""
    lines = upload(params.values, logits.device)
    inverse = lines[:, 0:1].float()
    if params.is_cut:
        num_head = min(num_head, logits.shape[-1])
        return _sampled_in_order(logits * inverse, params, lines, num_head)
    if params.values[:, 3].any():
        scores = logits * inverse
        lowest = scores.amax(-1, keepdim=True) + lines[:, 4:5].float()
        logits = logits.masked_fill((scores < lowest) & (lines[:, 3:4] > 0), -torch.inf)
    tokens, margins = pick(logits, inverse, *_keys(lines))
    return tokens, margins, torch.ones_like(tokens, dtype=torch.bool)


def _keys(lines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return lines[:, 5:6].long(), lines[:, 6:7].long()


def _sampled_in_order(
    scores: torch.Tensor, params: RowParams, lines: torch.Tensor, num_head: int
) -> _Three:
    """Draw from the best ``num_head`` tokens of each row."""
    device, num_vocab = scores.device, scores.shape[-1]
    values, tokens = top(scores, num_head)
    num_kept, is_known = _num_kept(scores, values, params, lines)
    is_kept = torch.arange(num_head, device=device) < num_kept[:, None]
    noise = gumbel(*_keys(lines), tokens)
    perturbed = torch.where(is_kept, values + noise, -torch.inf)
    first = perturbed.amax(-1, keepdim=True)
    is_first = is_kept & (perturbed == first)
    winner = torch.where(is_first, tokens, num_vocab).amin(-1, keepdim=True)
    second = torch.where(tokens == winner, -torch.inf, perturbed).amax(-1, keepdim=True)
    is_alone = (num_kept[:, None] == 1) | (second == -torch.inf)
    margin = torch.where(is_alone, torch.inf, first - second)
    rest_loses = values[:, -1:] + float(GUMBEL_MAX) < second
    is_settled = is_known & ((num_kept <= num_head)[:, None] | rest_loses)[:, 0]
    if num_head == num_vocab:
        is_settled = torch.ones_like(is_settled)
    return winner[:, 0], margin[:, 0], is_settled


def _num_kept(
    scores: torch.Tensor, values: torch.Tensor, params: RowParams, lines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many of each row's best tokens survive top-k, top-p and min-p, more than there are in
    ``values`` if unknown; and whether these already decide what survives."""
    num_vocab, num_head = scores.shape[-1], values.shape[-1]
    top_k = lines[:, 1].clamp(max=num_vocab).long()
    num_kept = torch.where(top_k > 0, top_k, num_vocab)
    is_known = torch.ones_like(num_kept, dtype=torch.bool)
    if (params.values[:, 2] < 1).any():
        has_top_p = lines[:, 2] < 1
        in_nucleus = _num_in_nucleus(scores, values, num_kept, lines[:, 2])
        is_known = ~has_top_p | (num_kept <= num_head) | (num_kept == num_vocab)
        num_kept = torch.where(has_top_p, torch.minimum(num_kept, in_nucleus), num_kept)
    if params.values[:, 3].any():
        able = (values >= values[:, :1] + lines[:, 4:5].float()).sum(-1)
        able = torch.where((lines[:, 3] > 0) & (able < num_head), able, num_vocab)
        num_kept = torch.minimum(num_kept, able)
    return num_kept, is_known


def _num_in_nucleus(
    scores: torch.Tensor, values: torch.Tensor, num_kept: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """The fewest tokens, best first, whose mass reaches top_p: over the best ``num_kept`` of each
    row, or all of it. More than there are in ``values`` if these do not reach it."""
    best_value, num_head = values[:, :1], values.shape[-1]
    is_whole = num_kept == scores.shape[-1]
    ranks = torch.arange(num_head, device=values.device)
    heavy = values >= best_value + _MASS_FLOOR
    is_counted = torch.where(is_whole[:, None], heavy, ranks < num_kept[:, None])
    reached = torch.where(is_counted, exp_mass(values - best_value), 0).cumsum(-1)
    total = reached[:, -1]
    if num_head < scores.shape[-1]:
        mass = torch.where(
            scores >= best_value + _MASS_FLOOR, exp_mass(scores - best_value), 0
        ).sum(-1)
        total = torch.where(is_whole, mass, total)
    wanted = torch.ceil(top_p * total.double()).long()
    return (reached < wanted[:, None]).sum(-1) + 1
