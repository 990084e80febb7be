"""The default pair for real: llama.cpp, the drafter in its process, exact texts.

The target's kernels give a row the same bits at every width, so nothing here is "close":
logits are equal, texts are equal.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from fakes.decoding import WITHOUT_HEADS, ListedTexts
from fakes.schemas import explosive

from duodec import LLM, Delta, Finished, Grammar, SamplingParams
from duodec.backends.curves import CostCurve
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.drafter.window import NUM_FIRST
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.drafts.draft import LlamaDraftModel
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.backends.paced import PacedTarget
from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import RowQuery
from duodec.core.targets import Query
from duodec.drafting import constants
from duodec.errors import BadOption, ContextExceeded, ModelUnreadable
from duodec.methods.registry import METHODS
from duodec.models import resolve
from duodec.planning.costs import Costs

QUESTIONS = (
    "Why is the sky blue?",
    "Write a Python function that reverses a list, and explain each line.",
    "List five rivers and the seas they run into.",
)
KEYED = [name for name in WITHOUT_HEADS if name != "sps-rejection"]


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    with LLM.load() as engine:
        texts = [answer(engine, chat(question), "ar", n=40).tokens for question in QUESTIONS]
        engine.loaded = replace(engine.loaded, datastore=ListedTexts(texts))
        yield engine


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel(resolve("smollm2").path)
    yield model
    model.close()


@pytest.fixture
def target(model: LlamaModel) -> Iterator[LlamaTarget]:
    target = LlamaTarget(model, num_context=1024, num_threads=1)
    yield target
    target.close()


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def answer(engine: LLM, prompt: object, method: str, n: int = 64, **sampling: float) -> Finished:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    *_, last = engine.stream(prompt, replace(params, max_tokens=n), method=method)  # type: ignore[arg-type]
    assert isinstance(last, Finished)
    return last


def logits(target: LlamaTarget, *queries: Query) -> list[list[np.ndarray]]:
    answers = []
    for scores in target.score(queries):
        assert isinstance(scores, LlamaScores)
        answers.append([row.copy() for row in scores.rows])
    return answers


def text_of(model: LlamaModel, n: int) -> np.ndarray:
    prose = "The harbour was quiet that morning, and the boats lay still in the fog. " * 60
    return np.array(model.tokenize(prose, is_templated=False)[:n], dtype=np.int32)


# --- rows


def test_a_tree_scores_as_its_branches_one_token_at_a_time(
    model: LlamaModel, target: LlamaTarget
) -> None:
    text = text_of(model, 515)  # beyond 512 cells, where llama.cpp's own attention changes paths
    tree = Draft.sequences([[5, 6, 7, 8], [5, 9], [20, 21, 22], [30]])
    (rows,) = logits(target, Query(0, text, tree))
    target.trees(0).context.num_threads = 2
    for leaf in set(range(len(tree))) - set(tree.parents):
        nodes = [leaf]
        while nodes[0] != ROOT:
            nodes.insert(0, tree.parents[nodes[0]])
        for node in nodes:
            path = np.array(tree.path_tokens(node), dtype=np.int32)
            (alone,) = logits(target, Query(0, np.concatenate([text, path])))
            assert np.array_equal(alone[0], rows[node + 1]), node


@pytest.mark.slow
def test_logits_do_not_depend_on_how_the_text_was_read(
    model: LlamaModel, target: LlamaTarget
) -> None:
    text = text_of(model, 700)
    (whole,) = logits(target, Query(0, text))
    logits(target, Query(0, text[:1]))
    for length in range(37, len(text), 37):
        logits(target, Query(0, text[:length]))
    (pieces,) = logits(target, Query(0, text))
    assert np.array_equal(whole[0], pieces[0])


@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [1, 3])
def test_a_memo_equals_a_fresh_model(
    model: LlamaModel, target: LlamaTarget, num_slots: int
) -> None:
    """Bit for bit with one slot. With several, a slot's cells can lie in another order than its
    positions (another slot's freed cells are filled), and attention sums in the order of cells."""
    rng = np.random.default_rng(0)
    text, base, draft = text_of(model, 40), text_of(model, 120), Draft()
    for step in range(40):
        kind = rng.integers(4)
        if kind == 0:  # another text
            text = base[: rng.integers(2, 60)]
        elif kind == 1:  # shorter
            text = text[: rng.integers(1, len(text) + 1)]
        else:  # on along some branch of what was drafted, and a token more
            node = int(rng.integers(-1, len(draft)))
            text = np.concatenate(
                [text, np.array([*draft.path_tokens(node), rng.integers(50)], dtype=np.int32)]
            )
        draft = Draft.sequences(
            rng.integers(0, 50, rng.integers(1, 6)).tolist() for _ in range(rng.integers(5))
        )
        (rows,) = logits(target, Query(int(rng.integers(num_slots)), text, draft))
        if step % 8 == 0:
            fresh = LlamaTarget(model, num_context=256, num_threads=1)
            (expected,) = logits(fresh, Query(0, text, draft))
            fresh.close()
            if num_slots == 1:
                assert all(np.array_equal(a, b) for a, b in zip(rows, expected, strict=True)), step
            # values are summed in fp16, so their order shows; a wrong row correlates far less
            alike = [np.corrcoef(a, b)[0, 1] for a, b in zip(rows, expected, strict=True)]
            assert min(alike) > 0.98, (step, min(alike))


def test_an_accepted_branch_leaves_no_trace(model: LlamaModel, target: LlamaTarget) -> None:
    """The cells of a refused branch are filled by later tokens, and attention adds in the order of
    cells: the accepted one must come to lie where it would have lain alone."""
    text = text_of(model, 200)
    for step in range(8):
        draft = Draft.sequences([[5, 6, 7, 8, 9], [30 + step, 31, 32, 33], [40, 41]])
        logits(target, Query(0, text, draft))
        text = np.concatenate([text, np.array([30 + step, 31, 32, 33, 60 + step], dtype=np.int32)])
    (rows,) = logits(target, Query(0, text))
    fresh = LlamaTarget(model, num_context=512, num_threads=1)
    (expected,) = logits(fresh, Query(0, text))
    fresh.close()
    assert np.array_equal(rows[0], expected[0])


def test_several_queries_in_one_call_score_as_they_do_alone(
    model: LlamaModel, target: LlamaTarget
) -> None:
    queries = [
        Query(slot, text_of(model, 30 + 10 * slot), Draft.sequences([[3, 4], [slot + 5]]))
        for slot in range(3)
    ]
    together = logits(target, *queries)
    for query, rows in zip(queries, together, strict=True):
        fresh = LlamaTarget(model, num_context=256, num_threads=1)
        (alone,) = logits(fresh, query)
        fresh.close()
        assert all(np.array_equal(a, b) for a, b in zip(rows, alone, strict=True))


@pytest.mark.slow
def test_slots_give_way_when_the_cache_is_full(model: LlamaModel) -> None:
    target = LlamaTarget(model, num_context=256, num_threads=1)
    texts = [text_of(model, 150 + slot) for slot in range(4)]
    first = [logits(target, Query(slot, text))[0][0] for slot, text in enumerate(texts)]
    again = [logits(target, Query(slot, text))[0][0] for slot, text in enumerate(texts)]
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a, b)
    with pytest.raises(ContextExceeded, match="`context`"):
        logits(target, Query(9, text_of(model, 600)))
    (rows,) = logits(target, Query(0, texts[0]))  # and it goes on after the refusal
    assert np.array_equal(rows[0], first[0])
    target.close()


# --- the draft's window


@pytest.fixture(scope="module")
def draft() -> Iterator[LlamaModel]:
    model = LlamaModel(resolve("smollm2-draft").path, num_gpu_layers=0)
    yield model
    model.close()


def drafts_of(draft: LlamaModel, max_window: int | None = None) -> LlamaDraftModel:
    found = LlamaDraftModel(draft, num_context=8192, num_threads=1, max_window=max_window)
    found.clock = lambda: float(found.num_computed) * 3e-4  # 100 tokens in the first 30 ms
    return found


def varied_text(model: LlamaModel, n: int) -> np.ndarray:
    prose = "".join(f"Boat {i} left pier {i % 7} with {i * 37 % 101} crates. " for i in range(n))
    return np.array(model.tokenize(prose, is_templated=False)[:n], dtype=np.int32)


def rows_of(model: LlamaDraftModel, text: np.ndarray, draft: Draft | None = None) -> np.ndarray:
    draft = draft or Draft()
    found = model.rows(RowQuery(0, text, draft, tuple(range(len(draft) + 1))))
    return np.array(found)


def read_all(model: LlamaDraftModel) -> int:
    """Read all older text, as an idle drafter does; in how many parts."""
    num_parts = 0
    while model.widen(0, is_idle=True):
        num_parts += 1
    return num_parts


def test_a_draft_model_anew_has_measured_nothing_and_has_the_same_rows(draft: LlamaModel) -> None:
    model, text = drafts_of(draft), varied_text(draft, 3000)
    begin = model.window.start
    model.clock = lambda: 0.0  # it seems to read for nothing
    before = rows_of(model, text[:2000])
    assert model.window.start > begin
    other = model.fresh()
    assert other.window.start == begin
    assert np.array_equal(rows_of(other, text[:2000]), before)


def test_of_a_short_text_the_draft_reads_all(draft: LlamaModel) -> None:
    """Bit for bit as a context without a window."""
    text, tree = varied_text(draft, 150), Draft.sequences([[5, 6], [7]])
    ours = rows_of(drafts_of(draft), text, tree)
    plain = LlamaContext(
        draft,
        num_context=512,
        num_sequences=128,
        num_threads=1,
        max_rows=128,
        num_chunk=128,
        uses_flash_attention=bool(library.kernels(draft.lib)),
    )
    (theirs,) = plain.rows([RowQuery(0, text, tree, (0, 1, 2, 3))])
    assert np.array_equal(ours, np.array(theirs))
    plain.close()


def test_a_long_text_is_drafted_for_at_once_and_no_token_is_read_twice(draft: LlamaModel) -> None:
    text, tree = varied_text(draft, 3000), Draft.sequences([[5, 6], [7]])
    model = drafts_of(draft)
    rows_of(model, text, tree)
    assert model.num_computed <= model.window.start + NUM_FIRST + len(tree)
    assert model.num_computed < 120
    num_parts = read_all(model)
    assert model.context.part(0).begin == 0
    num_blocks = 10
    assert len(text) < model.num_computed < len(text) + num_blocks * NUM_FIRST + 2 * len(tree)
    assert num_parts > len(text) / 128
    assert not model.widen(0, is_idle=True)
    before = model.num_computed
    rows_of(model, text, tree)
    assert model.num_computed == before + 1 + len(tree)  # the tokens whose rows are wanted


def test_rows_after_joining_are_close_to_those_of_a_full_reading(draft: LlamaModel) -> None:
    text = varied_text(draft, 1500)
    whole, parts = drafts_of(draft), drafts_of(draft)
    whole.compute_alone(True)  # the target waits, and knows for how long
    (expected,) = rows_of(whole, text)
    assert whole.context.part(0).begin == 0
    (part,) = rows_of(parts, text)
    read_all(parts)
    (joined,) = rows_of(parts, text)
    near, far = (np.corrcoef(row, expected)[0, 1] for row in (joined, part))
    assert near > 0.95
    assert near > far


@pytest.mark.slow
def test_a_step_costs_the_same_at_any_length(draft: LlamaModel) -> None:
    """The window's oldest quarter goes now and then, for the price of the first tokens; the cache
    never overflows, also beyond the positions that the model was trained for."""
    text = varied_text(draft, 12000)
    model, chain = drafts_of(draft, max_window=256), Draft.chain([1, 2])
    costs = []
    for length in [*range(150, 800), *range(8000, 8300), *range(11900, 12000)]:
        before = model.num_computed
        rows_of(model, text[:length], chain)
        costs.append(model.num_computed - before)
    assert sum(cost > 3 + NUM_FIRST for cost in costs) <= 5  # the first, two jumps, new positions
    assert max(costs) <= 3 + NUM_FIRST + 256
    assert model.window.most == 256


def test_older_text_of_one_request_takes_no_room_of_another(draft: LlamaModel) -> None:
    text = varied_text(draft, 1500)
    model = drafts_of(draft, max_window=512)  # the cache of one text
    for slot in range(4):
        model.rows(RowQuery(slot, text[slot:], Draft(), (0,)))
    num_seen = [len(text) - slot - model.context.part(slot).begin for slot in range(4)]
    assert num_seen == [96, 100, 100, 100]  # nobody was evicted
    for slot in range(4):
        while model.widen(slot, is_idle=True):
            pass
    assert all(model.context.part(slot).num_ids for slot in range(4))
    before = model.num_computed
    for slot in range(4):
        model.rows(RowQuery(slot, text[slot:], Draft(), (0,)))
    assert model.num_computed == before + 4


def test_a_text_that_goes_on_is_read_on_and_another_one_from_its_end(draft: LlamaModel) -> None:
    text = varied_text(draft, 3000)
    model = drafts_of(draft)
    rows_of(model, text[:2500])
    before = model.num_computed
    rows_of(model, text[:2700])
    assert model.num_computed == before + 200
    rows_of(model, text[1000:])
    assert model.num_computed <= before + 200 + model.window.start + NUM_FIRST


# --- texts


@pytest.fixture(scope="module")
def plain_answers() -> dict[tuple[object, ...], Finished]:
    """Those that were asked for already, by what was asked."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ar", "duo", "auto"])
def test_cores_that_are_left_in_the_middle_change_no_text(engine: LLM, method: str) -> None:
    """As to a large request that the server prepares: in turn for some forward passes."""
    settings = {"n": 48, "temperature": 0.8, "top_p": 0.95, "seed": 5}
    plain = answer(engine, chat(QUESTIONS[0]), "ar", **settings)
    scheduler, prepare, shared = engine.scheduler, engine.scheduler.prepare, list[bool]()
    try:
        scheduler.is_crowded = lambda: scheduler.num_forwards % 5 > 2
        scheduler.prepare = lambda is_shared: (shared.append(is_shared), prepare(is_shared))[1]
        ours = answer(engine, chat(QUESTIONS[0]), method, **settings)
    finally:
        scheduler.prepare = prepare
        scheduler.is_crowded = lambda: False
    assert (ours.tokens, ours.text) == (plain.tokens, plain.text)
    assert shared.count(True) > 2
    assert shared.count(False) > 2


@pytest.mark.parametrize(
    ("method", "temperature"),
    [
        pytest.param(*one, marks=() if one in (("duo", 0.0), ("auto", 0.9)) else pytest.mark.slow)
        for one in product(KEYED, (0.0, 0.9))
        if one[0] != "ar"
    ],
)
def test_one_seed_one_text(
    engine: LLM,
    plain_answers: dict[tuple[object, ...], Finished],
    method: str,
    temperature: float,
) -> None:
    drafted = accepted = 0
    n = 24 if METHODS[method]().reads_off_path else 64  # of wide trees a CPU scores few a second
    for question in QUESTIONS if method in ("auto", "duo", "stream") else QUESTIONS[:2]:
        settings = {"n": n, "temperature": temperature, "top_p": 0.95, "seed": 11}
        key = (question, *settings.values())
        if key not in plain_answers:
            plain_answers[key] = answer(engine, chat(question), "ar", **settings)
        plain = plain_answers[key]
        ours = answer(engine, chat(question), method, **settings)
        assert ours.tokens == plain.tokens
        assert ours.text == plain.text
        drafted += ours.stats.num_draft_tokens
        accepted += ours.stats.num_accepted_tokens
    if method not in ("auto", "stream"):  # which may find that nothing pays here, unlike at a pace
        assert drafted > 0
        assert accepted > 0 or method in ("lookup", "rest")


def test_plain_decoding_is_llama_cpps_own(engine: LLM) -> None:
    """Against llama-cpp-python's `Llama`, greedy, with the same kind of cache (30: bf16)."""
    import llama_cpp

    llama = llama_cpp.Llama(
        str(resolve("smollm2").path), n_ctx=1024, n_threads=1, n_threads_batch=1,
        flash_attn=True, type_k=30, verbose=False,
    )  # fmt: skip
    for question in QUESTIONS:
        tokens = engine.tokens_of(chat(question))
        ours = answer(engine, tokens, "ar", n=80)
        llama.reset()
        theirs = []
        for token in llama.generate(tokens, temp=0.0, top_k=1, repeat_penalty=1.0):
            theirs.append(token)
            if len(theirs) == len(ours.tokens):
                break
        assert list(ours.tokens) == theirs
    llama.close()


@pytest.mark.slow
def test_many_refusals_in_a_long_text_change_nothing(engine: LLM) -> None:
    """Past 512 cells, with a prompt that the draft knows little of."""
    prompt = chat("Continue this list of unusual words, many of them: " + "zephyr, quoll, " * 120)
    plain = answer(engine, prompt, "ar", n=150, temperature=1.2, top_p=0.95, seed=3)
    ours = answer(engine, prompt, "sps", n=150, temperature=1.2, top_p=0.95, seed=3)
    assert ours.stats.num_prompt_tokens > 450
    assert sum(r.num_accepted < r.num_scored for r in ours.stats.rounds) > 20
    assert ours.tokens == plain.tokens


@pytest.mark.slow
def test_a_long_prompt_is_drafted_for_from_its_end_and_changes_nothing(engine: LLM) -> None:
    """Many times what the draft reads at first."""
    prompt = chat("Say what left each pier. " + "".join(
        f"Boat {i} left pier {i % 7} with {i * 37 % 101} crates. " for i in range(60)
    ))  # fmt: skip
    plain = answer(engine, prompt, "ar", n=32)
    assert plain.stats.num_prompt_tokens > 900
    # at a pace, so that a draft pays however busy the machine is
    target = PacedTarget(engine.loaded.target, CostCurve.constant(0.05))
    paced = LLM(replace(engine.loaded, target=target, costs=Costs()))
    for method in ("duo", "pearl", "sps", "stream"):
        ours = answer(paced, prompt, method, n=32)
        assert ours.tokens == plain.tokens
        assert ours.stats.num_draft_tokens > 0


@pytest.mark.slow
def test_the_rejection_rule_is_reproducible_too(
    engine: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every draft is waited for: this rule's text depends on what was drafted."""
    monkeypatch.setattr(constants, "MAX_WAIT", 200.0)
    first, second = (
        answer(engine, chat(QUESTIONS[0]), "sps-rejection", temperature=0.8, seed=2)
        for _ in range(2)
    )
    assert first.tokens == second.tokens
    assert first.stats.num_accepted_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("corruption", ["row off by one", "stale row"])
def test_mutants_of_the_target_are_caught(
    engine: LLM, monkeypatch: pytest.MonkeyPatch, corruption: str
) -> None:
    plain = answer(engine, chat(QUESTIONS[1]), "ar", temperature=0.7, seed=5)
    draw = LlamaScores.draw

    def shifted(self: LlamaScores, row: int) -> object:
        return draw(self, max(0, row - 1))

    kept: list[np.ndarray] = []

    def stale(self: LlamaScores, row: int) -> object:
        kept.append(self.rows[row].copy())
        return self.query.sampler.draw(kept[max(0, len(kept) - 2)], self.query.context(row))

    monkeypatch.setattr(LlamaScores, "draw", shifted if "off" in corruption else stale)
    broken = answer(engine, chat(QUESTIONS[1]), "sps", temperature=0.7, seed=5)
    assert broken.tokens != plain.tokens


# --- faults


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sps", "duo", "stream"])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_blow_to_the_drafter_changes_no_token(method: str, blow: signal.Signals) -> None:
    warnings: list[str] = []
    from duodec.llm import load
    from duodec.loading.config import EngineConfig

    # at a pace, so that a draft pays however busy the machine is
    with load(EngineConfig(pace=0.03), on_warning=warnings.append) as engine:
        drafter = engine.loaded.drafter
        assert isinstance(drafter, ProcessDrafter)
        plain = answer(engine, chat(QUESTIONS[0]), "ar", n=72, seed=1, temperature=0.8)
        num_deltas = 0
        last = None
        for event in engine.stream(
            chat(QUESTIONS[0]),
            SamplingParams(seed=1, temperature=0.8, max_tokens=72),
            method=method,
        ):
            num_deltas += isinstance(event, Delta)
            if num_deltas == 20 and drafter.pid:
                os.kill(drafter.pid, blow)
                num_deltas += 1
            last = event
        assert isinstance(last, Finished)
        assert last.tokens == plain.tokens
        assert last.stats.drafter_restarts <= 1
        again = answer(engine, chat(QUESTIONS[0]), method, n=72, seed=1, temperature=0.8)
        assert again.tokens == plain.tokens
        drafter.wait_ready()
        resumed = answer(engine, chat(QUESTIONS[0]), method, n=40, seed=1, temperature=0.8)
        assert resumed.stats.num_draft_tokens > 0
        assert len(warnings) == 1, warnings


# --- the engine


def test_a_full_context_is_a_clear_end() -> None:
    with LLM.load(draft=None, context=64) as engine:
        tokens = engine.tokens_of("Once upon a time")
        last = answer(engine, tokens, "lookup", n=500)
        assert last.finish_reason == "context"
        assert len(tokens) + len(last.tokens) == 64


def test_repeated_calls_reuse_the_prefix(engine: LLM) -> None:
    target = engine.loaded.target
    assert isinstance(target, LlamaTarget)
    first = answer(engine, chat(QUESTIONS[2]), "ar", n=20)
    computed: list[int] = []
    decode = target.trees(0).context._decode

    def counting(entries: object, used: object) -> None:
        computed.append(len(entries))  # type: ignore[arg-type]
        decode(entries, used)  # type: ignore[arg-type]

    target.trees(0).context._decode = counting  # type: ignore[method-assign,assignment]
    try:
        history = [
            *chat(QUESTIONS[2]),
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "Thank you."},
        ]
        answer(engine, history, "ar", n=2)
    finally:
        target.trees(0).context._decode = decode  # type: ignore[method-assign]
    assert computed[0] < 30  # the first turn is known


def test_times_are_in_order_and_counts_add_up(engine: LLM) -> None:
    stats = answer(engine, chat(QUESTIONS[0]), "duo", n=60).stats
    assert 0 < stats.ttft_s <= stats.ttft_s + stats.decode_s
    assert all(a.end_s <= b.start_s for a, b in pairwise(stats.rounds))
    assert sum(n * count for n, count in enumerate(stats.acceptance_histogram)) == (
        stats.num_accepted_tokens
    )
    assert stats.num_new_tokens == 60


def test_reading_a_prompt_can_be_abandoned_by_the_engines_hook(engine: LLM) -> None:
    def stop() -> None:
        raise InterruptedError

    prompt = engine.tokens_of("The harbour was quiet that morning. " * 200)
    with engine.checked_by(stop), pytest.raises(InterruptedError):
        list(engine.stream(prompt, SamplingParams(max_tokens=2), method="ar"))
    assert answer(engine, chat(QUESTIONS[0]), "ar", n=8).tokens


SCHEMA = """{"type": "object", "additionalProperties": false, "required": ["sea", "rivers"],
"properties": {"sea": {"type": "string", "maxLength": 12}, "rivers": {"type": "array",
"minItems": 2, "maxItems": 3, "items": {"type": "string", "maxLength": 12}}}}"""


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["ar", "stream", "duo", "lookup"])
def test_a_schema_is_kept_and_changes_with_no_method(
    engine: LLM, method: str, temperature: float
) -> None:
    """Real tokens, of many letters each; the drafter's process lays the mask on its own."""
    sampling = {
        "temperature": temperature, "seed": 4, "grammar": Grammar("json_schema", SCHEMA),
    }  # fmt: skip
    prompt = chat("Name a sea and the rivers that run into it.")
    found = answer(engine, prompt, method, n=150, **sampling)
    value = json.loads(found.text)
    assert list(value) == ["sea", "rivers"]
    assert 2 <= len(value["rivers"]) <= 3
    assert found.finish_reason == "stop"
    assert found.tokens == answer(engine, prompt, "ar", n=150, **sampling).tokens


@pytest.mark.parametrize("has_amx", [True, False])
def test_weights_are_never_laid_out_for_amx(monkeypatch: pytest.MonkeyPatch, has_amx: bool) -> None:
    """Where an old compiler made the kernels for them, the process would die."""
    lib = library.load()
    asked = []

    def load(path: bytes, params: Any) -> None:
        asked.append(params.use_extra_bufts)

    words = b"CPU : AVX512 = 1 | AMX_INT8 = 1 | " if has_amx else b"CPU : AVX512 = 1 | "
    monkeypatch.setattr(lib, "llama_print_system_info", lambda: words)
    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    monkeypatch.setattr(library, "kernels", lambda lib: "")  # it is not our build
    with pytest.raises(ModelUnreadable):
        LlamaModel(resolve("smollm2").path)
    assert asked == [not has_amx]


def test_options_of_a_pair_reach_what_decodes() -> None:
    path = resolve("smollm2-draft").path
    options: Any = {"context": 128, "threads": 1, "num_slots": 2, "parse_special": True}
    limits: Any = {"grammar_s": 0.01, "grammar_bytes": 1 << 34}  # time ends it, not memory
    with LLM.load(path, None, **limits, **options) as llm:
        assert llm.loaded.num_context == 128
        assert llm.scheduler.num_slots == 2
        assert len(llm.tokens_of("<|im_end|>")) == 1
        with pytest.raises(BadOption, match=r"longer than 0\.01 s"):
            llm.check(
                [1], SamplingParams(grammar=Grammar("json_schema", json.dumps(explosive(24))))
            )
