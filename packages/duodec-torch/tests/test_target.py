"""Rows of a `TorchTarget`: the same numbers as the model's own, the same bits at every width.

The oracle is the same model in float64, computed by transformers over each branch as a plain
sequence. Everything runs on the CPU; CUDA graphs are not captured here, but their bodies run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from fakes.decoding import proven
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")

import torch
from fakes.torch_models import (
    KINDS,
    NUM_VOCAB,
    WINDOWED,
    build,
    logits,
    oracle_rows,
    query_of,
    random_text,
    random_tree,
    target_of,
)

from duodec.core.draft import ROOT, Draft
from duodec.core.sampling.sampler import Distribution
from duodec.core.targets import Candidates
from duodec.core.traits import Widths
from duodec.errors import BadOption, ComputeFailed, ContextExceeded
from duodec_torch.forward.attention import Layout, TextWindow
from duodec_torch.forward.forwards import InputRows
from duodec_torch.forward.graphs import Graphs, Queue
from duodec_torch.forward.layouts import Readings
from duodec_torch.forward.network import Network
from duodec_torch.memo import SlotMemo
from duodec_torch.target import MAX_WIDTH, TorchScores, TorchTarget
from duodec_torch.uploads import upload


def alone(target: TorchTarget, text: Sequence[int], num_prompt: int) -> torch.Tensor:
    """The row after a text, in plain decoding: one more token each time from the prompt on."""
    for length in range(num_prompt, len(text) + 1):
        (rows,) = logits(target, query_of(text[:length], num_prompt=num_prompt))
    return rows[0]


# --- the numbers


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, *WINDOWED])
def test_a_tree_scores_as_its_branches_do_in_float64(kind: str, is_exact: bool) -> None:
    target = target_of(kind, num_context=700, is_width_exact=is_exact)
    rng = np.random.default_rng(1)
    for length, num_prompt in ((1, 1), (5, 2), (130, 130), (300, 290), (600, 0)):
        text, draft = random_text(length, length), random_tree(rng, 9, 6)
        (rows,) = logits(target, query_of(text, draft, num_prompt=num_prompt))
        expected = oracle_rows(kind, text, draft)
        assert rows.shape == expected.shape
        assert np.abs(rows.numpy() - expected).max() < 2e-4
        assert expected.std() > 1  # a row off by one would show


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_as_it_can_be(dtype: torch.dtype, is_exact: bool) -> None:
    model = build("llama").to(dtype)
    text, draft = random_text(90), Draft.sequences([[1, 2], [3], [1, 4, 5]])
    with torch.inference_mode():
        own = model(torch.tensor([text])).logits[0, -1].float()
    target = TorchTarget(
        Network(model),
        num_context=128,
        is_width_exact=is_exact,
        widths=Widths.only(8),
        num_chunk=32,
    )
    (rows,) = logits(target, query_of(text, draft, num_prompt=80))
    assert rows.dtype == torch.float32
    assert (rows[0] - own).abs().max() < 0.1 * own.std()


def test_the_deepest_and_the_widest_tree_are_scored() -> None:
    target = target_of("llama")
    text = random_text(100)
    for draft in (
        Draft.chain([t % NUM_VOCAB for t in range(MAX_WIDTH)]),
        Draft.sequences([[t % NUM_VOCAB] for t in range(MAX_WIDTH)]),
    ):
        (rows,) = logits(target, query_of(text, draft, num_prompt=90))
        some = [0, 1, 40, 80]
        for row in some:
            branch = [*text, *draft.path_tokens(row - 1)]
            assert np.abs(rows[row].numpy() - oracle_rows("llama", branch, Draft())).max() < 2e-4


def test_candidates_come_with_the_draws_as_many_as_each_query_asks_for() -> None:
    target = target_of("llama", num_slots=2)
    draft = Draft.sequences([[1, 2], [3]])
    queries = [
        replace(
            query_of(random_text(30, slot), draft, num_prompt=30, slot=slot), num_candidates=num
        )
        for slot, num in ((0, 8), (1, 3))
    ]
    for query, scores in zip(queries, target.score(queries), strict=True):
        assert isinstance(scores, TorchScores)
        assert target.traits.keeps_candidates
        for row in range(4):
            wanted = Candidates.of(scores.logits[row].numpy(), query.num_candidates)
            tokens, confidences = scores.candidates(row)
            assert tokens == wanted.tokens
            assert confidences == pytest.approx(wanted.confidences, rel=1e-6)
            assert scores.keep(row)() == (tokens, confidences)


# --- the same bits


@pytest.mark.parametrize("kind", [*KINDS, *WINDOWED])
def test_a_row_has_the_bits_of_plain_decoding_in_every_tree(kind: str) -> None:
    """Across the borders of attention's blocks and tails, trees of all widths, branches too."""
    target = target_of(kind, num_context=700)
    plain = target_of(kind, num_context=700)
    rng = np.random.default_rng(2)
    for length in (3, 79, 81, 250, 256, 331, 337, 593):
        text = random_text(length, length)
        num_prompt = max(1, length - 7)
        for num_paths in (1, 4, 40):
            draft = random_tree(rng, num_paths, 7)
            (rows,) = logits(target, query_of(text, draft, num_prompt=num_prompt))
            for node in {ROOT, *rng.integers(len(draft), size=4).tolist()}:
                branch = [*text, *draft.path_tokens(node)]
                assert torch.equal(rows[node + 1], alone(plain, branch, num_prompt))


@pytest.mark.parametrize("num_prompt", [190, 140, 133])  # their ends in 32, 16 and 8 rows
def test_bits_do_not_depend_on_how_the_prompt_was_read(num_prompt: int) -> None:
    text = random_text(200)
    rows = []
    for history in ([], [100], [37, 95, 131], [134], [150], [190], [195], [200]):
        target = target_of("llama")
        for length in history:
            logits(target, query_of(text[:length], num_prompt=length))
        logits(target, query_of([*text[:50], 1, 2, 3], num_prompt=53))  # another prompt between
        rows.append(logits(target, query_of(text, num_prompt=num_prompt))[0])
    assert all(torch.equal(rows[0], other) for other in rows[1:])


def test_the_end_of_a_prompt_costs_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a whole part has 512 rows; a question after a long prompt need not cost as many."""
    target = target_of("llama", num_context=1100, num_chunk=512)
    as_on_a_gpu(target)
    computed: list[int] = []
    read = target._forwards.read

    def counted(inputs: InputRows, num_rows: int, layout: Layout) -> torch.Tensor:
        computed.append(num_rows)
        return read(inputs, num_rows, layout)

    monkeypatch.setattr(target._forwards, "read", counted)
    text = random_text(1100)
    for length, expected in ((530, [512, 64]), (590, [128]), (700, [256]), (1030, [512, 64])):
        computed.clear()
        logits(target, query_of(text[:length], num_prompt=length))
        assert computed == expected, length


def test_an_answer_that_becomes_a_prompt_is_read_as_one() -> None:
    """A chat's second turn: the first response was decoded, and is now part of the prompt."""
    target, fresh = target_of("llama"), target_of("llama")
    text = random_text(60)
    logits(target, query_of(text[:40], num_prompt=40))
    for length in range(41, 61):
        logits(target, query_of(text[:length], num_prompt=40))
    turn = [*text, 1, 2, 3]
    (again,) = logits(target, query_of(turn, num_prompt=len(turn)))
    (expected,) = logits(fresh, query_of(turn, num_prompt=len(turn)))
    assert torch.equal(again, expected)


def test_an_accepted_branch_leaves_no_trace() -> None:
    target, fresh = target_of("qwen2"), target_of("qwen2")
    text = random_text(100)
    for step in range(12):
        draft = Draft.sequences([[5, 6, 7, 8], [30 + step, 31, 32, 33], [40, 41]])
        logits(target, query_of(text, draft, num_prompt=100))
        text = [*text, 30 + step, 31, 32, 33, 60 + step]
    (rows,) = logits(target, query_of(text, num_prompt=100))
    assert torch.equal(rows[0], alone(fresh, text, 100))


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("kind", ["llama", *WINDOWED])
def test_several_queries_in_one_call_score_as_they_do_alone(kind: str, is_exact: bool) -> None:
    options = {"num_context": 300, "is_width_exact": is_exact}
    target = target_of(kind, num_slots=3, **options)
    for step in range(3):
        queries = [
            query_of(
                [*random_text(30 + 110 * slot, slot), *range(step)],
                Draft.sequences([[3, 4], [slot + 5]]),
                num_prompt=30 + 110 * slot,
                slot=slot,
            )
            for slot in range(3)
        ]
        together = logits(target, *queries)
        for query, rows in zip(queries, together, strict=True):
            (own,) = logits(target_of(kind, **options), query)
            assert torch.equal(rows, own) if is_exact else torch.allclose(rows, own, atol=1e-4)


# --- the memo


@dataclass(frozen=True)
class Ask:
    """One query. Its text comes from the slot's last one, changed as ``kind`` says."""

    slot: int
    kind: str
    tokens: tuple[int, ...]
    cut: int
    draft: Draft

    def text(self, last: list[int], last_draft: Draft) -> list[int]:
        cut = self.cut % (len(last) + 1)
        path = last_draft.path_tokens(self.cut % len(last_draft)) if len(last_draft) else []
        texts = {
            "again": last,
            "extend": [*last, *self.tokens],
            "along the tree": [*last, *path, *self.tokens[:1]],
            "only the tree": [*last, *path],
            "truncate": last[:cut],
            "diverge": [*last[:cut], *self.tokens],
            "new": list(self.tokens),
        }
        return texts[self.kind] or [1]


KINDS_OF_ASKS = [
    "again", "extend", "along the tree", "along the tree", "only the tree", "truncate", "diverge",
    "new",
]  # fmt: skip


@st.composite
def asks(draw: Any) -> Ask:
    lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=5)
    return Ask(
        slot=draw(st.integers(0, 2)),
        kind=draw(st.sampled_from(KINDS_OF_ASKS)),
        tokens=tuple(draw(st.lists(st.integers(0, 2), max_size=12))),
        cut=draw(st.integers(0, 30)),
        draft=Draft.sequences(draw(lists)),
    )


@settings(proven, max_examples=60)
@given(st.lists(asks(), min_size=1, max_size=8), st.sampled_from([1, 6, 20]), st.booleans())
def test_a_memo_equals_a_fresh_target(sequence: list[Ask], num_prompt: int, is_exact: bool) -> None:
    """Bit for bit with exact widths; three slots, of which two are kept."""
    widths = Widths.only(8)
    options = {"num_context": 120, "widths": widths, "num_chunk": 8, "is_width_exact": is_exact}
    target = target_of("llama", num_slots=2, **options)
    last: dict[int, tuple[list[int], Draft]] = {}
    for ask in sequence:
        text = ask.text(*last.get(ask.slot, ([1], Draft())))
        last[ask.slot] = (text, ask.draft)
        query = query_of(text, ask.draft, num_prompt=num_prompt, slot=ask.slot)
        (rows,) = logits(target, query)
        (expected,) = logits(target_of("llama", **options), query)
        if is_exact:
            assert torch.equal(rows, expected)
        else:
            assert torch.allclose(rows, expected, atol=1e-4)


def count_lines(target: TorchTarget, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows, without those that pad, each forward pass computes from now on."""
    counts: list[int] = []
    send = target._forwards._send
    monkeypatch.setattr(
        target._forwards,
        "_send",
        lambda lines, num_rows: (counts.append(len(lines)), send(lines, num_rows))[1],
    )
    return counts


def test_nothing_is_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama", widths=Widths.only(32))
    counts = count_lines(target, monkeypatch)
    text = random_text(64)
    draft = Draft.sequences([[1, 2, 3], [4, 5], [6]])
    logits(target, query_of(text, num_prompt=64))
    assert counts == [32, 32]
    counts.clear()
    logits(target, query_of([*text, 9], draft, num_prompt=64))
    assert counts == [1 + 6]
    counts.clear()
    logits(target, query_of([*text, 9, 4, 5, 7], num_prompt=64))  # 4 and 5 were accepted
    assert counts == [1]
    counts.clear()
    logits(target, query_of([*text, 9, 4, 5, 7], num_prompt=64))  # a row that is wanted again
    assert counts == [1]


def test_a_slot_that_forgets_computes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama", widths=Widths.only(32))
    counts = count_lines(target, monkeypatch)
    text = random_text(64)
    logits(target, query_of(text, num_prompt=64))
    assert counts == [32, 32]
    target.forget(0)
    logits(target, query_of(text, num_prompt=64))
    assert counts == [32, 32] * 2


def test_an_abandoned_prompt_is_known_as_far_as_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Abandoned(Exception):
        pass

    num_chunks = 0

    def abandon() -> None:
        nonlocal num_chunks
        num_chunks += 1
        if num_chunks == 3:
            raise Abandoned

    target, fresh = target_of("llama"), target_of("llama")
    query = query_of(random_text(300), Draft.chain([1, 2]), num_prompt=300)
    target.on_chunk = abandon
    with pytest.raises(Abandoned):
        target.score([query])
    target.on_chunk = lambda: None
    counts = count_lines(target, monkeypatch)
    (rows,) = logits(target, query)
    assert sum(counts) == 300 - 3 * 32 + 2
    assert torch.equal(rows, logits(fresh, query)[0])


def test_a_full_context_is_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = target_of("llama", num_context=100)
    counts = count_lines(target, monkeypatch)
    for text, draft in ((random_text(181), Draft()), (random_text(101), Draft.chain([1] * 80))):
        with pytest.raises(ContextExceeded, match="`context`"):
            target.score([query_of(text, draft)])
    assert counts == []
    text, draft = random_text(100), Draft.chain([1] * 80)
    (rows,) = logits(target, query_of(text, draft, num_prompt=100))
    assert np.abs(rows[0].numpy() - oracle_rows("llama", text, Draft())).max() < 2e-4


def test_too_wide_and_too_many_are_refused() -> None:
    target = target_of("llama")
    with pytest.raises(BadOption, match="draft less"):
        target.score([query_of([1], Draft.sequences([[t] for t in range(MAX_WIDTH + 1)]))])
    with pytest.raises(BadOption, match="2 texts at once"):
        target.score([query_of([1], slot=0), query_of([1], slot=1)])


def test_a_failed_forward_is_told_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    target, fresh = target_of("llama"), target_of("llama")
    text = random_text(50)
    logits(target, query_of(text[:40], num_prompt=40))
    with monkeypatch.context() as patch:
        failing = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nadvice")
        patch.setattr(target._network, "forward", _raising(failing))
        with pytest.raises(ComputeFailed, match=r"2 GiB.*`context`") as error:
            target.score([query_of(text, num_prompt=40)])
        assert "\n" not in str(error.value)
    again, expected = (logits(t, query_of(text, num_prompt=40))[0] for t in (target, fresh))
    assert torch.equal(again, expected)


def _raising(error: Exception) -> Any:
    def forward(*args: object) -> None:
        raise error

    return forward


def test_distributions_are_those_of_the_rows() -> None:
    target = target_of("llama")
    query = query_of(random_text(20), Draft.chain([3, 4]), num_prompt=20)
    (scores,) = target.score([query])
    assert isinstance(scores, TorchScores)
    distribution = scores.distribution(2)
    expected = query.sampler.distribution(scores.logits[2].numpy(), query.context(2))
    assert isinstance(distribution, Distribution)
    assert distribution.tokens.tolist() == expected.tokens.tolist()
    assert scores.num_rows == 3
    with pytest.raises(AssertionError, match="row"):
        scores.draw(3)


def test_scores_hold_when_more_is_scored() -> None:
    target = target_of("llama")
    (first,) = target.score([query_of(random_text(20), Draft.chain([3]), num_prompt=20)])
    assert isinstance(first, TorchScores)
    before = first.logits.clone()
    target.score([query_of(random_text(30, 5), Draft.chain([3, 4]), num_prompt=20)])
    assert torch.equal(first.logits, before)


def test_all_forwards_of_several_texts_have_one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one graph serves them."""
    target = target_of("llama", num_slots=3, is_width_exact=False)
    score, seen = target._forwards.score, list[tuple[object, bool]]()

    def scored(
        inputs: InputRows, num_rows: int, layout: Layout, *, can_repeat: bool
    ) -> torch.Tensor:
        if len(inputs.bases) > 1:
            seen.append((layout, can_repeat))
        return score(inputs, num_rows, layout, can_repeat=can_repeat)

    monkeypatch.setattr(target._forwards, "score", scored)
    for slots in ((0, 1), (2, 0), (0, 1, 2)):
        logits(target, *(query_of(random_text(20, slot), slot=slot) for slot in slots))
        logits(target, *(query_of([*random_text(20, slot), 7], slot=slot) for slot in slots))
    assert len(seen) >= 3
    assert set(seen) == {(target._recurring[-1], True)}


def test_what_is_sent_to_a_gpu_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        seen.append("pinned")
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, *where, **how: seen.append((where, how)) or tensor
    )
    gpu = torch.device("cuda")
    assert upload([1.0, 2.0], gpu, torch.float32).tolist() == [1, 2]
    assert seen == ["pinned", ((gpu,), {"non_blocking": True})]


def test_a_target_that_cannot_start_gives_the_model_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    model = build("llama")
    before = model.config._attn_implementation
    with monkeypatch.context() as patch:
        patch.setattr("duodec_torch.target.Forwards", fail)
        with pytest.raises(MemoryError):
            TorchTarget(Network(model), num_context=64, num_chunk=8)
    assert model.config._attn_implementation == before
    TorchTarget(Network(model), num_context=64, num_chunk=8).close()


def test_a_closed_target_gives_the_model_back() -> None:
    model = build("llama")
    for _ in range(2):
        target = TorchTarget(Network(model), num_context=64, num_chunk=8)
        (rows,) = logits(target, query_of([1, 2, 3]))
        assert rows.shape == (1, NUM_VOCAB)
        target.close()
        target.close()


# --- parts


@pytest.mark.parametrize(
    ("ways", "num_kept"),
    [([8] * 3, 6), ([8] * 5, 3), ([8] * 2, 2), ([8, 8, 16], 2), (None, 6)],
)
def test_a_token_is_known_only_as_what_it_is_wanted_as(
    ways: list[int] | None, num_kept: int
) -> None:
    """Read in 8 rows, or continued: three of each are there."""
    memo = SlotMemo(base=0)
    text = np.arange(7, dtype=np.int32)
    memo.extend(text[:3], 8)
    memo.extend(text[3:6])
    wanted = None if ways is None else np.array([*ways, *[0] * (7 - len(ways))], dtype=np.int32)
    memo.follow(text, wanted)
    assert len(memo.trunk) == len(memo.ways) == num_kept


def test_moves_go_to_the_places_of_the_text() -> None:
    memo = SlotMemo(base=1000)
    text = np.arange(10, dtype=np.int32)
    assert memo.follow(text) == []
    memo.extend(text, 16)
    memo.tree = Draft.sequences([[1, 2], [3, 4, 5]])  # nodes 0, 1 and 2, 3, 4
    longer = np.array([*text, 3, 4, 9], dtype=np.int32)
    assert memo.follow(longer) == [(1012, 1010), (1013, 1011)]
    assert memo.trunk.tolist() == [*text.tolist(), 3, 4]
    memo.tree = Draft.sequences([[9, 8], [7]])
    assert memo.follow(np.array([*longer, 8, 1], dtype=np.int32)) == []  # they lie there
    assert len(memo.trunk) == 14
    assert memo.ways.tolist() == [16] * 10 + [0] * 4


def as_on_a_gpu(target: TorchTarget) -> None:
    """Prompts are read in few shapes."""
    chunk = target._num_chunk
    target._readings = Readings.few(chunk, chunk // 8, target._num_region)


@pytest.mark.parametrize("is_exact", [True, False])
def test_no_prompt_is_read_in_a_shape_that_was_not_warmed(
    is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of("llama", num_context=500, is_width_exact=is_exact, num_slots=2)
    as_on_a_gpu(target)
    shapes: list[tuple[int, int]] = []
    compute = target._forwards._compute

    def seen(num_rows: int, layout: Any, kept: Any) -> torch.Tensor:
        if isinstance(layout, TextWindow):
            shapes.append((num_rows, layout.num_cells))
        return compute(num_rows, layout, kept)

    monkeypatch.setattr(target._forwards, "_compute", seen)
    with target._queue.scope():
        target._warm_up()
    warmed = set(shapes)
    shapes.clear()
    for slot, length in enumerate((9, 31, 33, 470, 500)):
        text = random_text(length, length)
        (rows,) = logits(target, query_of(text, num_prompt=length, slot=slot))
        assert np.abs(rows.numpy() - oracle_rows("llama", text, Draft())).max() < 2e-4
    assert len(shapes) > 20
    assert set(shapes) <= warmed


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_warm_up_leaves_no_trace(is_exact: bool) -> None:
    """What a target on a GPU does first, so that its graphs are captured."""
    options = {"is_width_exact": is_exact, "num_context": 1500}
    target, fresh = target_of("llama", **options), target_of("llama", **options)
    for each in (target, fresh):
        as_on_a_gpu(each)
    with target._queue.scope():
        target._warm_up()
    query = query_of(random_text(50), Draft.sequences([[1, 2], [3]]), num_prompt=50)
    assert torch.equal(logits(target, query)[0], logits(fresh, query)[0])


def test_a_capture_that_fails_costs_one_warning_and_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError("no capture today\nand more words")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", fail)
    warnings: list[str] = []
    graphs = Graphs(Queue(torch.device("cpu")), warnings.append)
    graphs._can_capture = True
    runs: list[int] = []
    for i in range(3):
        graphs.run(i, lambda i=i: runs.append(i))  # type: ignore[misc]
    assert runs == [0, 1, 2]
    assert len(warnings) == 1
    assert warnings[0].startswith("CUDA graphs are off")
    assert warnings[0].endswith("no capture today")


def test_bodies_run_eagerly_where_nothing_can_be_captured() -> None:
    warnings: list[str] = []
    graphs = Graphs(Queue(torch.device("cpu")), warnings.append)
    runs: list[int] = []
    for i in range(3):
        graphs.run("key", lambda i=i: runs.append(i))  # type: ignore[misc]
    assert runs == [0, 1, 2]
    assert warnings == []
