"""Hybrid targets: chains, and a state that refused tokens are taken back from.

The model is tiny and random, in Qwen3.5's architecture; its weights give the same bits at every
width, so nothing here is "close".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes.families import write_family
from fakes.tiny_models import write_hybrid

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.drafts.draft import LlamaDraftModel
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.backends.llamacpp.drafts.recurrent_draft import LlamaRecurrentDraft
from duodec.backends.llamacpp.footprint import Footprint
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import recurrent
from duodec.backends.llamacpp.target.caches import CacheTypes
from duodec.backends.llamacpp.target.recurrent import NUM_SNAPSHOTS, LlamaRecurrent
from duodec.backends.llamacpp.target.trees import LlamaScores, LlamaTrees
from duodec.backends.tree_cache import Entry
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.core.events import Finished
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.targets import Query
from duodec.errors import BadOption, ModelUnreadable
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.loading.load import load_target
from duodec.loading.resolve import resolve_target
from duodec.machine.core_plan import CorePlan
from duodec.machine.topology import Topology
from duodec.models import resolve
from duodec.testing import InlineDrafter

WORDS = Grammar("regex", "( (one|two|three|four)){70,90}")  # so that drafts come true at times


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("models") / "hybrid.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    with closing(LlamaModel(path, num_gpu_layers=0)) as found:
        yield found


class Counted(LlamaRecurrent):
    """Counts its forward passes."""

    num_passes = 0

    def _decode(self, entries: Sequence[Entry]) -> None:
        self.num_passes += 1
        super()._decode(entries)


def target_of(model: LlamaModel, num_slots: int = 1) -> Counted:
    return Counted(model, num_slots=num_slots, num_context=600, num_threads=1)


def query(text: Sequence[int], chain: Sequence[int] = (), slot: int = 0) -> Query:
    return Query(slot, np.array(text, np.int32), Draft.chain(chain))


def last_row(target: LlamaRecurrent, *queries: Query) -> list[np.ndarray]:
    found = []
    for scores in target.score(queries):
        assert isinstance(scores, LlamaScores)
        found.append(scores.rows[-1].copy())
    return found


def test_rows_after_many_refusals_are_those_of_a_text_that_is_read_alone(
    model: LlamaModel,
) -> None:
    dice = np.random.default_rng(0)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in dice.integers(100, 40000, count)]

    texts = [tokens(40 + 9 * slot) for slot in range(3)]
    with closing(target_of(model, 3)) as target, closing(target_of(model)) as alone:
        assert target.num_snapshots == NUM_SNAPSHOTS
        for _ in range(16):
            slots = [slot for slot in range(3) if dice.random() < 0.7] or [0]
            chains = [tokens(int(dice.integers(0, NUM_SNAPSHOTS + 1))) for _ in slots]
            queries = [query(texts[s], c, s) for s, c in zip(slots, chains, strict=True)]
            for slot, chain, row in zip(slots, chains, last_row(target, *queries), strict=True):
                (plain,) = last_row(alone, query([*texts[slot], *chain]))
                assert (row == plain).all()
                texts[slot] += [*chain[: dice.integers(0, len(chain) + 1)], *tokens(1)]


UNSNAPPED = ("Mamba 2", "Falcon H1", "Qwen 3 Next", "Granite 4")
ALIKE = [pytest.param(name, marks=pytest.mark.slow) for name in UNSNAPPED[2:]]  # hybrids, too


@pytest.fixture(scope="module", params=[*UNSNAPPED[:2], *ALIKE])
def unsnapped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaModel]:
    """Of an architecture that llama.cpp keeps no snapshots of."""
    path = write_family(tmp_path_factory.mktemp("models") / "target.gguf", request.param)
    with closing(LlamaModel(path, num_gpu_layers=0)) as found:
        yield found


def test_without_snapshots_refused_tokens_are_taken_back_by_checkpoints(
    unsnapped: LlamaModel,
) -> None:
    dice = np.random.default_rng(3)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in dice.integers(1, unsnapped.num_vocab, count)]

    texts = [tokens(40 + 9 * slot) for slot in range(3)]
    with closing(target_of(unsnapped, 3)) as target, closing(target_of(unsnapped)) as alone:
        assert (target.num_snapshots, target.max_draft) == (0, NUM_SNAPSHOTS)
        for _ in range(60):
            slots = [slot for slot in range(3) if dice.random() < 0.7] or [0]
            chains = [tokens(int(dice.integers(0, NUM_SNAPSHOTS + 1))) for _ in slots]
            if dice.random() < 0.3:  # plain decoding for a while
                chains = [[] for _ in slots]
            if dice.random() < 0.3:  # another answer, an edited turn, a long new one
                cut = int(dice.integers(10, len(texts[slots[0]]) + 1))
                texts[slots[0]][cut:] = tokens(int(dice.integers(1, 50)))
            queries = [query(texts[s], c, s) for s, c in zip(slots, chains, strict=True)]
            for slot, chain, row in zip(slots, chains, last_row(target, *queries), strict=True):
                (plain,) = last_row(alone, query([*texts[slot], *chain]))
                assert (row == plain).all()
                texts[slot] += [*chain[: dice.integers(0, len(chain) + 1)], *tokens(1)]


def test_accepted_tokens_are_computed_again_with_the_next_chain(unsnapped: LlamaModel) -> None:
    """One forward pass a round, and few tokens again."""
    text = list(range(1, 30))
    with closing(target_of(unsnapped)) as target:
        last_row(target, query(text, (5, 6, 7, 8)))
        again = 0
        for num_accepted in (2, 0, 4, 1, 3, 4, 2):
            text += [*(5, 6, 7, 8)[:num_accepted], 9]
            passes, computed = target.num_passes, target.num_computed
            last_row(target, query(text, (5, 6, 7, 8)))
            again += target.num_computed - computed - 5
            assert target.num_passes - passes <= 2
        assert target.num_passes <= 2 + 7 + 2, "two of them with a new checkpoint"
        assert again <= 7 * NUM_SNAPSHOTS


def test_a_draft_longer_than_the_snapshots_is_scored_as_far_as_they_go(model: LlamaModel) -> None:
    with closing(target_of(model)) as target:
        (scores,) = target.score([query([5, 6, 7], range(100, 130))])
        assert scores.num_rows == NUM_SNAPSHOTS + 1
        assert not target.traits.has_branches


def test_states_and_snapshots_are_counted_before_loading(path: Path, model: LlamaModel) -> None:
    header = Header.read(library.load(), path)
    assert header is not None
    with closing(target_of(model)) as target:
        last_row(target, query(range(100, 140)))
        own = model.lib.llama_state_seq_get_size_ext(target.handle, 0, 1)
    assert 0 <= own - header.state_bytes < 1000, "what llama.cpp writes, less its heading"
    assert header.kv_heads == (0, 0, 0, 1)
    footprint = Footprint.of(library.load(), header, CacheTypes(), num_slots=3)
    assert footprint.state_bytes == 3 * (1 + NUM_SNAPSHOTS) * header.state_bytes


def test_a_conversation_reads_only_what_is_new(model: LlamaModel) -> None:
    turn = [int(token) for token in np.random.default_rng(1).integers(100, 40000, 60)]
    with closing(target_of(model)) as target:
        text = list(turn)
        for _ in range(4):
            before = target.num_computed
            (row,) = last_row(target, query(text))
            assert target.num_computed - before == 60
            text += turn
        before = target.num_computed
        (again,) = last_row(target, query(text[: len(text) - 60]))  # another answer to the last
        assert target.num_computed - before <= 2, "from the checkpoint"
        assert (again == row).all()
        other = [*text[:30], *turn[:20]]
        (moved,) = last_row(target, query(other))  # further back than any checkpoint: read again
        with closing(target_of(model)) as alone:
            assert (moved == last_row(alone, query(other))[0]).all()


def test_a_text_that_is_forgotten_is_read_again_from_no_checkpoint(model: LlamaModel) -> None:
    dice = np.random.default_rng(1)
    text, other = ([int(t) for t in dice.integers(100, 40000, 80)] for _ in range(2))
    with closing(target_of(model, num_slots=2)) as target:
        last_row(target, query(text[:40]))
        (row,) = last_row(target, query(text))
        target.forget(0)
        before = target.num_computed
        (again,) = last_row(target, query(text))
        assert target.num_computed - before == len(text)
        assert (again == row).all()
        target.forget(0)
        last_row(target, query(other))
        (moved,) = last_row(target, query([*other[:50], *text[:9]]))  # no state of ``text`` is left
        with closing(target_of(model)) as alone:
            assert (moved == last_row(alone, query([*other[:50], *text[:9]]))[0]).all()


def test_a_recurrent_draft_forgets_a_text_and_gives_its_state_away_without_it(
    hybrid: LlamaModel,
) -> None:
    text = np.random.default_rng(1).integers(5, 60, 80).astype(np.int32)
    with closing(LlamaRecurrentDraft(hybrid, num_context=600, num_threads=1)) as drafting:

        def read(slot: int) -> int:
            before = drafting.num_computed
            drafting.rows(RowQuery(slot, text, Draft(), (0,)))
            return drafting.num_computed - before

        assert read(0) == len(text)
        assert read(0) <= 1
        drafting.forget(0)
        assert read(0) == len(text)
        assert read(1) == len(text), "there is one state, and it was the other slot's"


def test_conversations_of_several_requests_read_only_what_is_new(hybrid: LlamaModel) -> None:
    """Four turns each of three at once, with drafts that are partly refused."""
    dice = np.random.default_rng(8)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in dice.integers(1, hybrid.num_vocab, count)]

    texts = [tokens(60) for _ in range(3)]
    with closing(target_of(hybrid, 3)) as target:
        assert target.max_draft == NUM_SNAPSHOTS
        for turn in range(4):
            before = target.num_computed
            last_row(target, *(query(text, (), slot) for slot, text in enumerate(texts)))
            num_again = 0 if turn == 0 or target.num_snapshots else 3 * (NUM_SNAPSHOTS + 5)
            assert target.num_computed - before <= 3 * 60 + num_again
            for _ in range(5):
                chains = [tokens(4) for _ in texts]
                queries = [query(text, chains[slot], slot) for slot, text in enumerate(texts)]
                before = target.num_computed
                last_row(target, *queries)
                assert target.num_computed - before <= 3 * (1 + 4 + NUM_SNAPSHOTS + 5)
                for text, chain in zip(texts, chains, strict=True):
                    text += [*chain[: dice.integers(0, 5)], *tokens(1)]
            for text in texts:
                text += tokens(59)  # the end of the answer's last token is held already


def test_an_abandoned_prompt_is_read_again(model: LlamaModel) -> None:
    text = [int(token) for token in np.random.default_rng(2).integers(100, 40000, 550)]

    def stop() -> None:
        raise KeyboardInterrupt

    with closing(target_of(model)) as target:
        target.on_chunk = stop
        with pytest.raises(KeyboardInterrupt):
            target.score([query(text)])
        target.on_chunk = lambda: None
        (row,) = last_row(target, query(text))
        with closing(target_of(model)) as alone:
            assert (row == last_row(alone, query(text))[0]).all()


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_every_methods_text_is_plain_decodings(model: LlamaModel, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5, grammar=WORDS)
    prompt = " one two three four one two three"
    with (
        closing(LlamaModel(resolve("smollm2-draft").path, num_gpu_layers=0)) as small,
        closing(target_of(model)) as target,
    ):
        draft = LlamaDraftModel(small, num_context=512, num_threads=1)
        engine = LLM(target, model, 500, InlineDrafter(draft))
        texts, accepted = {}, {}
        for name in ("ar", "lookup", "sps", "stream", "auto"):
            *_, last = engine.stream(prompt, replace(sampling, max_tokens=60), method=name)
            assert isinstance(last, Finished)
            texts[name] = last.tokens
            accepted[name] = sum(done.num_accepted for done in last.stats.rounds)
        draft.context.close()
    assert all(text == texts["ar"] for text in texts.values())
    assert accepted["lookup"] + accepted["sps"] + accepted["stream"] > 0


def test_methods_that_score_branches_are_refused(model: LlamaModel) -> None:
    with closing(target_of(model)) as target:
        engine = LLM(target, model, 500)
        with pytest.raises(BadOption, match="'lookahead' scores branches, and this target"):
            engine.method("lookahead")


def test_a_hybrid_is_loaded_as_a_target_that_has_no_branches(path: Path) -> None:
    loaded = load_target(resolve_target(EngineConfig(target=str(path), draft=None, num_slots=2)))
    with closing(loaded.model):
        plan = CorePlan.make(Topology.flat((0,)), target_is_on_cpu=True)
        with closing(loaded.start(128, plan)) as target:
            assert target.traits.is_recurrent
            assert not target.traits.has_branches
        with pytest.raises(ModelUnreadable, match="whose state has no branches"):
            LlamaTrees(loaded.model, num_context=64, num_threads=1)  # type: ignore[arg-type]


# --- as drafts


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in UNSNAPPED[1:]]


@pytest.fixture(scope="module", params=["Qwen 3.5", "LFM 2", UNSNAPPED[0], *OTHERS])
def hybrid(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaModel]:
    path = write_family(tmp_path_factory.mktemp("models") / "draft.gguf", request.param)
    with closing(LlamaModel(path, num_gpu_layers=0)) as found:
        yield found


def test_rows_of_any_draft_are_those_of_a_path_that_is_read_alone(hybrid: LlamaModel) -> None:
    dice = np.random.default_rng(4)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in dice.integers(1, hybrid.num_vocab, count)]

    texts = {slot: tokens(20 + slot) for slot in (0, 5, 9)}  # of more texts than there are states
    draft = LlamaRecurrentDraft(hybrid, num_context=500, num_threads=1, num_texts=2)
    with closing(draft), closing(target_of(hybrid)) as alone:
        for _ in range(25):
            slot = int(dice.choice(list(texts)))
            chain = tokens(4)
            for length in range(5):
                shape = Draft.chain(chain[:length])
                (row,) = draft.rows(
                    RowQuery(slot, np.array(texts[slot], np.int32), shape, (length,))
                )
                (plain,) = last_row(alone, query([*texts[slot], *chain[:length]]))
                assert (row == plain).all()
            tree = Draft((chain[0], chain[1], chain[2]), (-1, -1, 0))
            found = draft.rows(RowQuery(slot, np.array(texts[slot], np.int32), tree, (2, 3)))
            for row, path in zip(found, ([chain[1]], [chain[0], chain[2]]), strict=True):
                (plain,) = last_row(alone, query([*texts[slot], *path]))
                assert (row == plain).all()
            texts[slot] += [*chain[: dice.integers(0, 5)], *tokens(1)]


def test_a_step_of_a_chain_computes_one_token(hybrid: LlamaModel) -> None:
    text = np.arange(1, 60, dtype=np.int32)
    with closing(LlamaRecurrentDraft(hybrid, num_context=500, num_threads=1)) as draft:
        draft.rows(RowQuery(0, text, Draft(), (0,)))
        before = draft.num_computed
        for length in range(1, 6):
            draft.rows(RowQuery(0, text, Draft.chain(range(70, 70 + length)), (length,)))
        assert draft.num_computed - before == 5
        parted = np.array([*text, 70, 71, 99], dtype=np.int32)
        draft.rows(RowQuery(0, parted, Draft(), (0,)))
        assert draft.num_computed - before == 5 + 3, "from the end of the last text"


def test_texts_that_take_turns_have_a_state_each(hybrid: LlamaModel) -> None:
    config = LlamaRecipe(Path("-"), 600, 1, num_slots=4)
    draft = config.over(hybrid)
    texts = [np.arange(1 + i, 200 + i, dtype=np.int32) for i in range(4)]
    with closing(draft):
        for slot, text in enumerate(texts):
            draft.rows(RowQuery(slot, text, Draft(), (0,)))
        before = draft.num_computed
        for length in range(1, 6):
            for slot, text in enumerate(texts):
                chain = Draft.chain(range(70, 70 + length))
                draft.rows(RowQuery(slot, text, chain, (length,)))
        assert draft.num_computed - before == 4 * 5


def test_a_text_that_ends_in_a_draft_goes_back_to_its_own_end(hybrid: LlamaModel) -> None:
    """As pearl's and duo's, and as those of a translated vocabulary, which never ask for the text
    alone."""
    text = np.arange(1, 61, dtype=np.int32)
    with closing(LlamaRecurrentDraft(hybrid, num_context=500, num_threads=1)) as draft:
        draft.rows(RowQuery(0, text, Draft(), (0,)))
        before = draft.num_computed
        pending = np.array([*text, 70, 71, 72], dtype=np.int32)
        draft.rows(RowQuery(0, pending, Draft.chain([73]), (1,)))
        refused = np.array([*text, 70, 80], dtype=np.int32)
        draft.rows(RowQuery(0, refused, Draft.chain([81]), (1,)))
        for token in range(82, 90):  # the last word spelled in other ways
            draft.rows(RowQuery(0, refused, Draft.chain([token]), (1,)))
        assert draft.num_computed - before <= 4 + 3 + 8 + 2


@pytest.mark.parametrize("window", [128, 300])
def test_a_small_window_is_kept_to(hybrid: LlamaModel, window: int) -> None:
    dice = np.random.default_rng(6)
    text = dice.integers(1, hybrid.num_vocab, 100).astype(np.int32)
    draft = LlamaRecurrentDraft(hybrid, num_context=500, num_threads=1, max_window=window)
    with closing(draft):
        for _ in range(200):
            text = np.append(text, np.int32(dice.integers(1, hybrid.num_vocab)))
            (row,) = draft.rows(RowQuery(0, text, Draft.chain([1, 2, 3]), (3,)))
            assert np.isfinite(row).all()
        assert draft.num_computed < 100 + 200 * 6 + 4 * window


def test_what_was_read_of_an_abandoned_text_is_not_read_again(hybrid: LlamaModel) -> None:
    text = np.random.default_rng(7).integers(1, hybrid.num_vocab, 700).astype(np.int32)

    class Abandoned(Exception):
        pass

    def abandon() -> None:
        raise Abandoned

    with closing(LlamaRecurrentDraft(hybrid, num_context=900, num_threads=1)) as draft:
        before = draft.num_computed
        draft.on_chunk = abandon
        for _ in range(4):
            with pytest.raises(Abandoned):
                draft.rows(RowQuery(0, text, Draft(), (0,)))
        draft.on_chunk = lambda: None
        (row,) = draft.rows(RowQuery(0, text, Draft(), (0,)))
        assert draft.num_computed - before == 700
        with closing(Counted(hybrid, num_slots=1, num_context=900, num_threads=1)) as alone:
            (plain,) = last_row(alone, query(text))
        assert (row == plain).all()


def test_whether_states_go_back_is_tried_before_a_text_is_held(unsnapped: LlamaModel) -> None:
    with closing(target_of(unsnapped)) as target:
        (first,) = last_row(target, query(range(1, 40)))
        (second,) = last_row(target, query(range(1, 40), (5, 6)))
        with closing(target_of(unsnapped)) as alone:
            assert (second == last_row(alone, query([*range(1, 40), 5, 6]))[0]).all()
    assert np.isfinite(first).all()


def test_of_a_long_text_the_end_is_read(hybrid: LlamaModel) -> None:
    dice = np.random.default_rng(5)
    text = dice.integers(1, hybrid.num_vocab, 1500).astype(np.int32)
    with closing(LlamaRecurrentDraft(hybrid, num_context=900, num_threads=1)) as draft:
        for _ in range(8):
            before = draft.num_computed
            (row,) = draft.rows(RowQuery(0, text, Draft(), (0,)))
            assert np.isfinite(row).all()
            assert draft.num_computed - before <= 600
            more = dice.integers(1, hybrid.num_vocab, 90).astype(np.int32)
            text = np.concatenate([text, more])


def test_a_state_that_cannot_be_put_back_is_refused_as_a_draft(
    path: Path, monkeypatch: pytest.MonkeyPatch, model: LlamaModel
) -> None:
    monkeypatch.setattr(LlamaRecurrent, "put_back", lambda self, slot, checkpoint: False)
    with pytest.raises(ModelUnreadable, match=r"cannot put back.*use another draft"):
        LlamaRecurrentDraft(model, num_context=100, num_threads=1)


def test_a_hybrid_drafts_in_its_own_process(path: Path) -> None:
    """Another vocabulary than the target's in part, and the same text."""
    config = EngineConfig(target="smollm2-draft", draft=str(path), context=256, threads=1)
    with load(config) as llm:
        texts = {
            name: llm.generate("one two three one two", SamplingParams(max_tokens=12), method=name)
            for name in ("ar", "sps", "duo", "stream")
        }
    assert len({done[0].tokens for done in texts.values()}) == 1
    assert texts["sps"][0].stats.num_draft_tokens > 0


# --- conversations


def test_a_changed_turn_is_read_from_the_checkpoint_before_it(
    hybrid: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a conversation changes, a part of it is read again, and its rows are the same."""
    dice = np.random.default_rng(12)
    monkeypatch.setattr(recurrent, "MOST_CHECKPOINTS", 5)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in dice.integers(1, hybrid.num_vocab, count)]

    target = Counted(hybrid, num_slots=1, num_context=600, num_threads=1, num_chunk=48)
    with closing(target), closing(target_of(hybrid)) as alone:
        text: list[int] = []
        for _ in range(30):  # more turns than there are checkpoints
            text += tokens(int(dice.integers(12, 24)))
            last_row(target, query(text))
        assert len(target._checkpoints[0]) == 5
        for _ in range(24):
            at = int(dice.integers(20, len(text)))
            text[at:] = tokens(len(text) - at)
            known = target.num_known(0, np.array(text, np.int32))
            before = target.num_computed
            chain = tokens(3)
            (row,) = last_row(target, query(text, chain))
            assert target.num_computed - before == len(text) + 3 - known
            assert at - known <= 2 * 600 / 5 + 48
            (plain,) = last_row(alone, query([*text, *chain]))
            assert (row == plain).all()


def test_checkpoints_are_bounded_by_their_bytes(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(target_of(model, 2)) as target:
        text = list(range(60, 100))
        last_row(target, query(text))
        size = len(target._checkpoints[0][0].state)
        monkeypatch.setattr(recurrent, "CHECKPOINT_BYTES", 2 * 3 * size)
        for turn in range(10):
            text += range(100 + turn, 140 + turn)
            last_row(target, query(text))
        marks = [one.num_tokens for one in target._checkpoints[0]]
        assert len(marks) == 3
        assert marks[-1] == len(text) - 1
        monkeypatch.setattr(recurrent, "CHECKPOINT_BYTES", 0)
        last_row(target, query([*range(100, 160)], (), 1))
        last_row(target, query([*range(100, 220)], (), 1))
        assert [one.num_tokens for one in target._checkpoints[1]] == [119]
