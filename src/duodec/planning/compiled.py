"""Grow a selection best first, choose how much of it to score, and learn from it, in C++."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from struct import Struct

from duodec.drafting import constants
from duodec.drafting.recycling import MAX_ORDER
from duodec.native.library import Numbers, address, library
from duodec.planning.acceptance import EDGES, NUM_RANKS, Acceptance
from duodec.planning.coupling import LEAST, Coupling
from duodec.planning.mixing import Kind
from duodec.planning.selection import Selection
from duodec.planning.sources import (
    LENGTHS,
    End,
    HeadSource,
    MatchSource,
    RowSource,
    Source,
    StoredSource,
    TextSources,
    TreeSource,
)

_CONSTANTS = array(
    "d",
    [
        constants.PRIOR_WEIGHT,
        constants.MAX_LABELS,
        LEAST,
        constants.NOISE_POWER,
        constants.MIN_VALUE,
        constants.MIXING_RATE,
        constants.MAX_SQUARES,
        *constants.EXPECTED_BY_RANK,
        *LENGTHS,
        NUM_RANKS,
        len(EDGES),
        *EDGES,
    ],
)
_Text = MatchSource | StoredSource | HeadSource
_CERTAIN = array("d", (1.0,))  # likelihood of a token whose share is 1, before anything is learned
_NO_TEXT: tuple[int, ...] = (0,) * 7
_FIRST_TEXT, _NUM_TEXTS = Kind.OWN_TEXT.value, len(Kind) - Kind.OWN_TEXT
_REQUEST = Struct(f"{11 + 1 + MAX_ORDER + 1 + _NUM_TEXTS * len(_NO_TEXT) + 3}qddQqq")
_TOKEN, _NUMBER = array("i", (0,)), array("d", (0.0,))


def grow(
    selection: Selection,
    num_tokens: int,
    depth: int,
    *,
    has_branches: bool = True,
    least: float = constants.MIN_VALUE,
) -> None:
    """Find the likeliest nodes: at most ``num_tokens``, at most ``depth`` deep, of value ``least``
    or more. Without branches they form a chain. The sources are the draft model's tree, the
    recycled rows, and at most one of each other kind."""
    tokens, parents, values = _TOKEN * num_tokens, _TOKEN * num_tokens, _NUMBER * (num_tokens + 1)
    kept: list[Numbers] = []
    selection.depth, selection.least = depth if num_tokens else 0, least
    count = library().duodec_grow(
        _request(selection, kept, num_tokens, has_branches=has_branches),
        address(tokens), address(parents), address(values),
    )  # fmt: skip
    selection.tokens = tokens[:count].tolist()
    selection.parents = parents[:count].tolist()
    selection.values = values[:count].tolist()
    selection.reach, selection.is_full = values[count], count == num_tokens


_FIXED_END = Struct("2q2d2q")
_MOMENT = Struct("28q7d")
# This is how many numbers describe what one store of texts proposes.
_FOUND = 1 + (constants.MAX_MATCH + 2) + constants.MAX_MATCH


def propose(
    selection: Selection, texts: TextSources, end: End, num_tokens: int, depth: int,
    seconds: Sequence[float], worst: Sequence[float], *, has_branches: bool, least: float,
    trust: float, caution: float, lost: float, most_bet: float, bet: float, more_s: float,
) -> int:  # fmt: skip
    """`grow` a selection at the end of a text and find its `fastest_width`, in one call. The
    selection holds the draft model's tree and the sources of a datastore and of heads; rows and
    stores of texts are searched here."""
    tree, *given = selection.given
    assert isinstance(tree, TreeSource)
    kept, others = list[Numbers](), [_NO_TEXT, _NO_TEXT]
    for one in given:
        assert isinstance(one, StoredSource | HeadSource)
        others[one.kind - Kind.DATASTORE] = _text(one, kept)
    if not texts.fixed:
        texts.fixed = _fixed(tree, texts)
    tokens, parents, values = _TOKEN * num_tokens, _TOKEN * num_tokens, _NUMBER * (num_tokens + 2)
    found, likely, most = _NUMBER * (2 * _FOUND), _numbers("d", seconds), _numbers("d", worst)
    selection.depth, selection.least = depth if num_tokens else 0, least
    moment = _MOMENT.pack(
        *_place(tree), address(end.tokens), len(end.tokens), end.num_new, end.position,
        num_tokens, selection.depth, has_branches, *others[0], *others[1],
        address(likely), address(most), least, trust, caution, lost, most_bet, bet, more_s,
    )  # fmt: skip
    count: int = library().duodec_propose(
        texts.fixed[0], moment, address(tokens), address(parents), address(values), address(found)
    )
    selection.tokens, selection.parents = tokens[:count], parents[:count]
    selection.values, selection.reach = values[:count], values[count]
    selection.is_full = count == num_tokens
    selection.find = partial(_found, texts, end, found)
    return int(values[count + 1])


def _fixed(tree: TreeSource, texts: TextSources) -> tuple[bytes, object]:
    """Return what all proposals of a completion have in common, as C++ reads it, and the object
    that it points to."""
    rows, mixer = texts.rows_after((), 0), texts.memory.mixer
    matches = [MatchSource((), (), (), 1, history) for _, history in texts.stores]
    tables = [
        _addresses(*learned)
        for learned in (rows.acceptance, *(history.by_length for _, history in texts.stores))
    ]
    request = _request(Selection([tree, rows, *matches], mixer), [])
    stores = [store.store.address for store, _ in texts.stores]
    end = _FIXED_END.pack(
        *stores, constants.MAX_MATCH, constants.MIN_SHARE, constants.MAX_PLACES, constants.MAX_MATCH
    )
    return request + end, (tables, tree.acceptance, texts.stores)


def _found(texts: TextSources, end: End, found: array[float]) -> list[Source]:
    """Return the rows and the matches of a proposal."""
    rows = texts.rows_after(end.tokens, end.position)
    sources: list[Source] = [rows]
    for number, (_, history) in enumerate(texts.stores):
        num, *own = found[number * _FOUND : (number + 1) * _FOUND]
        shares, count = array("d", own[: constants.MAX_MATCH + 2]), int(num)
        nodes = array("i", array("d", own[constants.MAX_MATCH + 2 :]).tobytes())
        if count:
            parents = nodes[constants.MAX_MATCH : constants.MAX_MATCH + count]
            length = int(shares[count + 1])
            sources.append(
                MatchSource(nodes[:count], parents, shares[:count], length, history, rows.coupling)
            )
    return sources


def learn(selection: Selection, tokens: Sequence[int]) -> None:
    """Label each candidate along ``tokens``, the tokens that were generated where the selection was
    grown. The sources are queried again, since keeping their proposals would take time between two
    forward passes."""
    nodes, parents = array("i", selection.tokens), array("i", selection.parents)
    values, kept = array("d", selection.values), list[Numbers]()
    came, counts = array("i", tokens), array("q", (0, 0))
    library().duodec_learn(
        _request(selection, kept), address(nodes), address(parents), address(values), len(nodes),
        address(came), len(came), address(counts),
    )  # fmt: skip
    selection.num_labelled, selection.num_without_draft = counts


def without(selection: Selection, source: Source, tokens: Sequence[int]) -> list[float]:
    """Return what ``tokens`` are worth to the other sources, token by token, until none of them
    proposes the next one."""
    came, values = array("i", tokens), array("d", bytes(8 * len(tokens)))
    kept: list[Numbers] = []
    count = library().duodec_without(
        _request(selection, kept), source.kind, address(came), len(came), address(values)
    )
    return values[:count].tolist()


def _request(
    selection: Selection, kept: list[Numbers], num_tokens: int = 0, *, has_branches: bool = True
) -> bytes:
    """Return the selection's sources and limits as C++ reads them. ``kept`` keeps alive what they
    point to."""
    tree, rows, *others = selection.sources
    assert isinstance(tree, TreeSource)
    assert isinstance(rows, RowSource)
    texts = [_NO_TEXT] * _NUM_TEXTS
    for one in others:
        assert isinstance(one, _Text)
        texts[one.kind - _FIRST_TEXT] = _text(one, kept)
    return _REQUEST.pack(
        address(_CONSTANTS),
        address(selection.mixer.weights),
        address(selection.mixer.squares),
        address(_addresses(*rows.acceptance)),
        *_tree(tree),
        *_rows(rows),
        *chain.from_iterable(texts),
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
    """Return how many draft tokens of these values yield the most tokens a second, with a gain over
    plain decoding of at least ``caution``. ``seconds`` and ``worst`` are the expected and the
    longest seconds of forward passes over 0, 1, ... draft tokens. A draft may lose ``lost`` passes
    and, up to ``most_bet`` more, a share ``bet`` of the tokens that it promises."""
    own, likely, most = (array("d", numbers) for numbers in (values, seconds, worst))
    found: int = library().duodec_fastest_width(
        address(own), len(own), address(likely), address(most),
        trust, caution, lost, most_bet, bet, more_s,
    )  # fmt: skip
    return found


def _tree(source: TreeSource) -> tuple[int, ...]:
    return *_place(source), *_table(source.acceptance)


def _place(source: TreeSource) -> tuple[int, ...]:
    tree = source.tree
    own = address(tree.tokens), address(tree.parents), address(tree.confidences)
    return *own, source.num_nodes, source.node


def _rows(source: RowSource) -> tuple[int, ...]:
    end = source.end[-MAX_ORDER:]
    return source.rows.store.address, *end, *(0,) * (MAX_ORDER - len(end)), len(end)


def _coupling(coupling: Coupling | None) -> tuple[float, int, int, int]:
    """Return the power of likelihoods (0 where nothing is sampled), the seed, the choice and the
    position."""
    if coupling is None:
        return 0.0, 0, 0, 0
    sampler = coupling.sampler
    return coupling.power, sampler.seed, sampler.choice, coupling.position


@lru_cache(maxsize=64)  # texts repeat these arrays, and their addresses must stay valid
def _addresses(*learned: Acceptance) -> array[int]:
    return array("q", [number for acceptance in learned for number in _table(acceptance)])


def _table(acceptance: Acceptance) -> tuple[int, int]:
    return address(acceptance.num_right), address(acceptance.num_seen)


def _text(source: _Text, kept: list[Numbers]) -> tuple[int, ...]:
    tokens, shares = _numbers("i", source.tokens), _numbers("d", source.shares)
    parents = _numbers("i", source.parents)
    kept += tokens, parents, shares
    if isinstance(source, MatchSource):
        length, history = source.length, source.history
        known = address(_addresses(*history.by_length)), address(history.expected)
    else:
        length, known = 0, (address(_addresses(source.acceptance)), address(_CERTAIN))
    return len(tokens), address(tokens), address(parents), address(shares), length, *known


def _numbers(kind: str, numbers: Sequence[float]) -> Numbers:
    return numbers if isinstance(numbers, array) else array(kind, numbers)
