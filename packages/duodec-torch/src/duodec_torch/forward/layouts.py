"""Choose the layout of a forward pass, of few kinds and sizes, so that few graphs are captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from duodec.core.traits import Widths
from duodec_torch.forward.attention import (
    BLOCK,
    TAIL,
    Blocks,
    Layout,
    TextWindow,
    TreeWindow,
)
from duodec_torch.forward.forwards import InputRows
from duodec_torch.forward.network import Network
from duodec_torch.library import first_line

_WINDOW = 1024  # cells of the smallest window
_TOLERANCE = 0.05  # of numbers around 1, in half precision


class Layouts(Protocol):
    def of(self, inputs: InputRows) -> Layout:
        """The layout of a forward pass that continues texts."""

    def recurring(self) -> Sequence[Layout]:
        """All layouts that a single text in the first slot needs, and the one that all passes of
        several texts share, if there is one."""


class WindowLayouts:
    """One mask over a window of the slot's cells, or over all slots if there are several."""

    def __init__(self, num_slots: int, num_region: int) -> None:
        self._num_cells = num_slots * num_region
        self._sizes = _sizes(_WINDOW, 4, num_region)

    def of(self, inputs: InputRows) -> TreeWindow:
        bases = inputs.bases
        if len(bases) > 1:
            return TreeWindow(0, self._num_cells)
        return TreeWindow(bases[0], _at_least(self._sizes, inputs.end_cell - bases[0]))

    def recurring(self) -> list[TreeWindow]:
        alone = [TreeWindow(0, size) for size in self._sizes]
        together = TreeWindow(0, self._num_cells)
        return alone if together in alone else [*alone, together]


class BlockLayouts:
    """As many blocks as the longest prefix of each slot needs, or a few more."""

    def __init__(self, num_region: int) -> None:
        self._sizes = [0, *_sizes(BLOCK, 2, num_region)]

    def of(self, inputs: InputRows) -> Blocks:
        begins: list[int] = []
        for base in inputs.bases:
            num_seen = max(0, inputs.last_position(base) + 1 - TAIL)
            begins += self._blocks(base, _at_least(self._sizes, num_seen)).begins
        return Blocks(tuple(begins))

    def recurring(self) -> list[Blocks]:
        return [self._blocks(0, size) for size in self._sizes]

    def _blocks(self, base: int, num_cells: int) -> Blocks:
        return Blocks(tuple(range(base, base + num_cells, BLOCK)))


@dataclass(frozen=True)
class SplitLayouts:
    """The kernels themselves determine the length of each row's prefix."""

    num_slots: int
    num_region: int

    def of(self, inputs: InputRows) -> Layout:
        alone, *together = self.recurring()
        return together[0] if len(inputs.bases) > 1 else alone

    def recurring(self) -> list[Layout]:
        from duodec_torch.forward.kernels import SPLIT, Splits

        counts = (1, self.num_slots) if self.num_slots > 1 else (1,)
        return [Splits(self.num_region // SPLIT, num_slots) for num_slots in counts]


def exact_layouts(
    network: Network,
    num_slots: int,
    num_region: int,
    widths: Widths,
    on_warning: Callable[[str], None],
) -> BlockLayouts | SplitLayouts:
    """The kernels if they compile on this GPU and agree with their oracle, otherwise the oracle."""
    if network.device.type != "cuda":
        return BlockLayouts(num_region)
    try:
        from duodec_torch.forward.kernels import SPLIT, check

        offs = [
            check(
                network.num_kv_heads,
                network.group,
                network.head_size,
                network.dtype,
                network.device,
                num_rows=num_rows,
                num_splits=num_region // SPLIT,
                scorings=network.scorings,
            )
            for num_rows in widths.each
        ]
        wrong = [off for off in offs if not off < _TOLERANCE]  # NaN, too
        if not wrong:
            return SplitLayouts(num_slots, num_region)
        reason = f"its results are off by {wrong[0]:.2g}"
    except Exception as error:  # noqa: BLE001  # a compiler may raise anything
        reason = first_line(error)
    on_warning(f"Triton's attention is off, decoding will be slower: {reason}")
    return BlockLayouts(num_region)


@dataclass(frozen=True)
class Readings:
    """The rows and the window in which a part of a prompt is prefilled: both depend only on where
    the part begins and how long it is.

    If none are listed, any number is allowed. On a GPU a new shape is planned, and perhaps
    compiled, during a request; so there are few, and each is run beforehand.
    """

    rows: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()

    @classmethod
    def few(cls, num_chunk: int, least_rows: int, num_region: int | None = None) -> Readings:
        """Doubling sizes; every part has at least ``least_rows`` rows. Any window, if no region is
        given."""
        windows = () if num_region is None else _sizes(num_chunk, 2, num_region + num_chunk)
        return cls(tuple(_sizes(max(1, least_rows), 2, num_chunk)), tuple(windows))

    def num_rows(self, num_inputs: int) -> int:
        """The rows in which so many tokens are prefilled."""
        return _at_least(self.rows or (num_inputs,), num_inputs)

    def of(self, base: int, begin: int, num_inputs: int) -> tuple[int, TextWindow]:
        """The shape for ``num_inputs`` tokens from position ``begin`` on, of the slot at
        ``base``."""
        num_rows = self.num_rows(num_inputs)
        num_cells = begin + num_rows
        return num_rows, TextWindow(base, _at_least(self.windows or (num_cells,), num_cells))

    def for_one_text(self) -> list[tuple[int, TextWindow]]:
        return [(rows, TextWindow(0, cells)) for rows in self.rows for cells in self.windows]


def _sizes(first: int, factor: int, last: int) -> list[int]:
    """``first``, multiplied repeatedly by ``factor``, up to and including ``last``."""
    sizes = [first]
    while sizes[-1] * factor < last:
        sizes.append(sizes[-1] * factor)
    return [*(size for size in sizes if size < last), last]


def _at_least(sizes: Sequence[int], n: int) -> int:
    return next(size for size in sizes if size >= n)
