"""Grow a selection best first, choose how much of it to score, and learn from it, in C++."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

from duodec.drafting.recycling import MAX_ORDER
from duodec.native.library import Numbers, address, library
from duodec.planning import mixing
from duodec.planning.acceptance import EDGES, MEMORY, NUM_RANKS, PRIOR_WEIGHT, Acceptance
from duodec.planning.coupling import LEAST, SPREAD, Coupling
from duodec.planning.mixing import Kind
from duodec.planning.selection import LEAST_VALUE, SHARE, Selection
from duodec.planning.sources import (
    BY_RANK,
    LENGTHS,
    HeadSource,
    MatchSource,
    RowSource,
    Source,
    StoredSource,
    TreeSource,
)

_CONSTANTS = array(
    "d",
    [
        PRIOR_WEIGHT,
        MEMORY,
        SHARE,
        LEAST,
        SPREAD,
        mixing.LEAST,
        mixing.MOST,
        mixing.RATE,
        mixing.MOST_SQUARES,
        *BY_RANK,
        *LENGTHS,
        NUM_RANKS,
        len(EDGES),
        *EDGES,
    ],
)
_Text = MatchSource | StoredSource | HeadSource
_CERTAIN = array("d", (1.0,))  # of a token whose share is 1, before anything is learned
_NO_TEXT = (0,) * 7
_TEXTS = tuple(kind for kind in Kind if kind > Kind.ROWS)
_REQUEST = Struct(f"{11 + 1 + MAX_ORDER + 1 + len(_TEXTS) * len(_NO_TEXT) + 3}qddQqq")


def grow(
    selection: Selection,
    num_tokens: int,
    depth: int,
    *,
    has_branches: bool = True,
    least: float = LEAST_VALUE,
) -> None:
    """Find the likeliest nodes: at most so many, so deep, of at least that value; without branches
    a chain. The sources are the draft model's tree, the recycled rows, and of each other kind one
    at most."""
    tokens, parents = array("i", bytes(4 * num_tokens)), array("i", bytes(4 * num_tokens))
    values, kept = array("d", bytes(8 * (num_tokens + 1))), list[Numbers]()
    selection.depth, selection.least = depth if num_tokens else 0, least
    count = library().duodec_grow(
        _request(selection, kept, num_tokens, has_branches=has_branches),
        address(tokens), address(parents), address(values),
    )  # fmt: skip
    selection.tokens = tokens[:count].tolist()
    selection.parents = parents[:count].tolist()
    selection.values = values[:count].tolist()
    selection.reach, selection.is_full = values[count], count == num_tokens


def learn(selection: Selection, tokens: Sequence[int]) -> None:
    """Learn from the tokens that came where a selection was grown: each candidate along them was
    right or not. The sources are asked again: to keep what they all said would cost time between
    two forward passes."""
    nodes, parents = array("i", selection.tokens), array("i", selection.parents)
    values, kept = array("d", selection.values), list[Numbers]()
    came, counts = array("i", tokens), array("q", (0, 0))
    library().duodec_learn(
        _request(selection, kept), address(nodes), address(parents), address(values), len(nodes),
        address(came), len(came), address(counts),
    )  # fmt: skip
    selection.num_labelled, selection.num_without_draft = counts


def without(selection: Selection, source: Source, tokens: Sequence[int]) -> list[float]:
    """What the first of these tokens are worth to the other sources, one after the other, as far
    as these propose them."""
    came, values = array("i", tokens), array("d", bytes(8 * len(tokens)))
    kept: list[Numbers] = []
    count = library().duodec_without(
        _request(selection, kept), source.kind, address(came), len(came), address(values)
    )
    return values[:count].tolist()


def _request(
    selection: Selection, kept: list[Numbers], num_tokens: int = 0, *, has_branches: bool = True
) -> bytes:
    """The selection's sources and limits as C++ reads them; ``kept`` holds what it points to."""
    tree, rows, *others = selection.sources
    texts = {one.kind: _text(one, kept) for one in others if isinstance(one, _Text)}
    assert isinstance(tree, TreeSource)
    assert isinstance(rows, RowSource)
    assert len(others) == len(texts)
    return _REQUEST.pack(
        address(_CONSTANTS),
        address(selection.mixer.weights),
        address(selection.mixer.squares),
        address(_addresses(*rows.acceptance)),
        *_tree(tree),
        *_rows(rows),
        *(number for kind in _TEXTS for number in texts.get(kind, _NO_TEXT)),
        num_tokens,
        selection.depth,
        has_branches,
        selection.least,
        *_coupling(rows.coupling),
    )


def fastest_width(
    values: Sequence[float],
    seconds: Sequence[float],
    worst: Sequence[float],
    *,
    trust: float,
    caution: float,
    lost: float,
    most_bet: float,
    bet: float,
    more_s: float,
) -> int:
    """How many draft tokens of these values yield the most tokens a second, more by ``caution``
    than none. ``seconds`` and ``worst`` are the expected and the longest seconds of forward passes
    over 0, 1, ... of them; one may lose ``lost`` passes and, up to ``most_bet`` more, a
    share ``bet`` of the tokens that are promised."""
    own, likely, most = (array("d", numbers) for numbers in (values, seconds, worst))
    found: int = library().duodec_fastest_width(
        address(own), len(own), address(likely), address(most),
        trust, caution, lost, most_bet, bet, more_s,
    )  # fmt: skip
    return found


def _tree(source: TreeSource) -> tuple[int, ...]:
    tree = source.tree
    own = address(tree.tokens), address(tree.parents), address(tree.confidences)
    return *own, source.num_nodes, source.node, *_table(source.acceptance)


def _rows(source: RowSource) -> tuple[int, ...]:
    end = source.end[-MAX_ORDER:]
    return source.rows.store.address, *end, *(0,) * (MAX_ORDER - len(end)), len(end)


def _coupling(coupling: Coupling | None) -> tuple[float, int, int, int]:
    """The power of likelihoods, 0 where nothing is sampled; seed, choice and position."""
    if coupling is None:
        return 0.0, 0, 0, 0
    sampler = coupling.sampler
    return coupling.power, sampler.seed, sampler.choice, coupling.position


@lru_cache(maxsize=64)  # a text's are the same again and again, and stay where they are
def _addresses(*learned: Acceptance) -> array[int]:
    return array("q", [number for acceptance in learned for number in _table(acceptance)])


def _table(acceptance: Acceptance) -> tuple[int, int]:
    return address(acceptance.num_right), address(acceptance.num_seen)


def _text(source: _Text, kept: list[Numbers]) -> tuple[int, ...]:
    own = _numbers("i", source.tokens), _numbers("i", source.parents), _numbers("d", source.shares)
    kept += own
    if isinstance(source, MatchSource):
        length, learned, expected = (
            source.length, source.history.by_length, source.history.expected,
        )  # fmt: skip
    else:
        length, learned, expected = 0, (source.acceptance,), _CERTAIN
    known = address(_addresses(*learned)), address(expected)
    return len(source.tokens), *map(address, own), length, *known


def _numbers(kind: str, numbers: Sequence[float]) -> Numbers:
    return numbers if isinstance(numbers, array) else array(kind, numbers)
