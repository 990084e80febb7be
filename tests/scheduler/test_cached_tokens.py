"""What is reported as cached is what the target did not compute, in every cache and company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from random import Random

import pytest
from benchmarks.made_models import SHAPES, write_gguf
from fakes.tiny_models import write_hybrid

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import target as target_module
from duodec.backends.llamacpp.target.chains import LlamaChains
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.backends.llamacpp.target.copying import pays
from duodec.backends.llamacpp.target.padded import LlamaPadded
from duodec.backends.llamacpp.target.recurrent import LlamaRecurrent
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.tree_cache import Entry
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.traits import Widths
from duodec.llm import LLM
from duodec.models import resolve
from duodec.scheduler.outputs import Done

NUM_CONTEXT = 600


class Counted:
    """Tokens that llama.cpp was given to compute, but for padding."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num = 0
        for kind in (LlamaContext, LlamaChains, LlamaRecurrent):
            if "_decode" in vars(kind):
                self._count(monkeypatch, kind, "_decode", 0)
        take_pass = LlamaPadded._pass

        def unpadded(target: LlamaPadded, slot: int, begin: int, tokens: Sequence[int]) -> int:
            num_rows = take_pass(target, slot, begin, tokens)
            self.num -= num_rows - len(tokens)
            return num_rows

        monkeypatch.setattr(LlamaPadded, "_pass", unpadded)

    def _count(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, at: int) -> None:
        decode: Callable[..., None] = getattr(kind, name)

        def counted(part: object, entries: Sequence[Entry], *rest: object) -> None:
            is_inner = isinstance(part, LlamaRecurrent) and kind is LlamaChains
            self.num += 0 if is_inner else len(entries)
            decode(part, entries, *rest)

        monkeypatch.setattr(kind, name, counted)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture(scope="module")
def dense() -> Iterator[LlamaModel]:
    with closing(LlamaModel(resolve("smollm2-draft").path, num_gpu_layers=0)) as model:
        yield model


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_gguf(tmp_path_factory.mktemp("made") / "made.gguf", SHAPES["tiny"], "Q8_0")
    with closing(LlamaModel(path)) as model:
        yield model


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_hybrid(tmp_path_factory.mktemp("made") / "hybrid.gguf")
    with closing(LlamaModel(path)) as model:
        yield model


KINDS = {"dense": 0, "padded": 8, "hybrid": 0}  # rows of every forward pass


def llm_of(model: LlamaModel, vocabulary: LlamaModel, kind: str, num_slots: int) -> LLM:
    target = LlamaTarget(
        model,
        num_context=NUM_CONTEXT,
        num_threads=1,
        num_slots=num_slots,
        widths=Widths.only(KINDS[kind]),
    )
    llm = LLM(target, vocabulary, NUM_CONTEXT, num_slots=num_slots)
    llm.scheduler.num_chunk = 256 if kind == "padded" else 64  # whole pieces
    return llm


def submit(llm: LLM, prompt: Sequence[int], max_tokens: int = 1, owner: str = "") -> list[object]:
    """What will be said of a completion by plain decoding."""
    said: list[object] = []
    params = SamplingParams(max_tokens=max_tokens)
    entry = llm.scheduled(prompt, params, method="ar", on_output=said.append, owner=owner)
    llm.scheduler.submit([entry])
    return said


def run(llm: LLM) -> None:
    while llm.scheduler.step():
        pass


def done(said: list[object]) -> Done:
    assert isinstance(said[-1], Done), said
    return said[-1]


def words(dice: Random, num: int) -> list[int]:
    return [dice.randrange(3, 90) for _ in range(num)]


@pytest.fixture
def any_copy_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens that company moves to another cache would be computed again otherwise."""
    monkeypatch.setattr(target_module, "LEAST_COPIED", 1)
    monkeypatch.setattr(target_module, "pays", lambda num_own, num_other: num_other > num_own)


@pytest.mark.usefixtures("any_copy_pays")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_slots", [2, 4])
def test_what_is_not_computed_is_cached(
    kind: str, num_slots: int, counted: Counted, dense: LlamaModel, request: pytest.FixtureRequest
) -> None:
    company(request.getfixturevalue(kind), dense, kind, num_slots, counted, num_requests=60)


@pytest.mark.soak
@pytest.mark.usefixtures("any_copy_pays")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_computed_is_cached_in_any_company(
    kind: str, seed: int, counted: Counted, dense: LlamaModel, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    company(model, dense, kind, 2 + seed % 3, counted, num_requests=340, seed=seed)


def company(
    model: LlamaModel,
    vocabulary: LlamaModel,
    kind: str,
    num_slots: int,
    counted: Counted,
    *,
    num_requests: int,
    seed: int = 0,
) -> None:
    """Conversations that go on, begin alike and overlap, some together and some alone."""
    dice = Random(seed)
    llm = llm_of(model, vocabulary, kind, num_slots)
    system = words(dice, 150)
    texts = [system, words(dice, 40)]
    counted.num, num_expected = 0, 0
    pending: list[tuple[list[int], list[object]]] = []

    def settle() -> int:
        run(llm)
        num = 0
        for prompt, said in pending:
            end = done(said)
            assert 0 <= end.num_cached < len(prompt)
            num += len(prompt) - end.num_cached + len(end.finished.tokens) - 1
            texts.append([*prompt, *end.finished.tokens])
        pending.clear()
        return num

    for _ in range(num_requests):
        text = dice.choice(texts[-6:])
        text = text[: dice.randrange(1, len(text) + 1)] if dice.random() < 0.3 else text
        prompt = [*(text if len(text) < 450 else system), *words(dice, dice.choice((1, 5, 70)))]
        num_tokens = dice.choice((1, 4, 12))
        pending.append((prompt, submit(llm, prompt, num_tokens)))
        for _ in range(dice.choice((0, 0, 1, 3))):
            llm.scheduler.step()
        if dice.random() < 0.4:
            num_expected += settle()
    num_expected += settle()
    # a part's last token is computed with the rows behind it, and again with the next part
    num_twice = sum(len(text) > 256 for text in texts) if kind == "padded" else 0
    assert num_expected <= counted.num <= num_expected + num_twice
    llm.loaded.target.close()


def test_company_computes_no_prompt_again(counted: Counted, dense: LlamaModel) -> None:
    """Two requests that come together, where the slot of one knows most of both."""
    dice = Random(1)
    shared, other = words(dice, 399), words(dice, 20)
    llm = llm_of(dense, dense, "dense", 2)
    submit(llm, shared)
    run(llm)
    counted.num = 0
    both = [submit(llm, [*shared, *other]), submit(llm, [*shared, *other[:10]])]
    run(llm)
    assert counted.num == 20 + 10
    assert [done(said).num_cached for said in both] == [399, 399]
    llm.loaded.target.close()


@pytest.mark.usefixtures("any_copy_pays")
def test_cells_of_another_owner_are_computed(counted: Counted, dense: LlamaModel) -> None:
    prompt = words(Random(5), 200)
    llm = llm_of(dense, dense, "dense", 3)
    submit(llm, prompt, owner="alice")
    run(llm)
    counted.num = 0
    both = [submit(llm, [*prompt, 5], owner=owner) for owner in ("bob", "alice")]
    run(llm)
    assert [done(said).num_cached for said in both] == [0, 200]
    assert counted.num == 201 + 1
    llm.loaded.target.close()


@pytest.mark.usefixtures("any_copy_pays")
def test_a_slot_that_another_owner_has_taken_is_no_longer_copied_from(
    counted: Counted, dense: LlamaModel
) -> None:
    """It was hers when her request began; his, for the same prompt, is read ahead of hers."""
    dice = Random(6)
    prompt = words(dice, 90)
    llm = llm_of(dense, dense, "dense", 2)
    for num in (400, 99):  # the first is too long to make way for short prompts
        submit(llm, words(dice, num), owner="alice")
        run(llm)
    counted.num = 0
    both = [submit(llm, prompt, owner=owner) for owner in ("alice", "bob")]
    run(llm)
    assert [done(said).num_cached for said in both] == [0, 0]
    assert counted.num == 2 * len(prompt)
    llm.loaded.target.close()


def test_a_title_leaves_the_conversation_where_it_is(counted: Counted, dense: LlamaModel) -> None:
    """A small request overlaps the first turn; the second turn computes what is new."""
    dice = Random(2)
    first, title, more = words(dice, 300), words(dice, 40), words(dice, 15)
    llm = llm_of(dense, dense, "dense", 2)
    turn = submit(llm, first, 30)
    for _ in range(12):
        llm.scheduler.step()
    named = submit(llm, title, 5)
    run(llm)
    num_drawn = sum(len(done(said).finished.tokens) for said in (turn, named))
    assert counted.num == 300 + 40 + num_drawn - 2
    counted.num = 0
    text = [*first, *done(turn).finished.tokens]
    again = submit(llm, [*text, *more])
    run(llm)
    assert counted.num == 1 + len(more), "the last token was drawn, never computed"
    assert done(again).num_cached == len(text) - 1
    llm.loaded.target.close()


def test_copied_cells_give_the_same_text(dense: LlamaModel) -> None:
    dice = Random(3)
    prompt = words(dice, 200)
    texts = []
    for num_before in (0, 1):
        llm = llm_of(dense, dense, "dense", 2)
        for _ in range(num_before):
            submit(llm, prompt)
            run(llm)
        both = [submit(llm, [*prompt, n], 40) for n in (5, 6)]
        run(llm)
        texts.append([done(said).finished.tokens for said in both])
        llm.loaded.target.close()
    assert texts[0] == texts[1]


def test_where_no_cells_can_be_copied_they_are_computed(
    counted: Counted, dense: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = words(Random(4), 200)
    llm = llm_of(dense, dense, "dense", 2)
    submit(llm, prompt)
    run(llm)
    monkeypatch.setattr(dense.lib, "llama_state_seq_set_data", lambda *given: 0)
    counted.num = 0
    both = [submit(llm, [*prompt, n]) for n in (5, 6)]
    run(llm)
    assert counted.num == sum(201 - done(said).num_cached for said in both) == 2 * 201
    llm.loaded.target.close()


def test_a_copy_has_to_save_more_than_it_takes() -> None:
    assert pays(0, 100)
    assert not pays(95, 100)
    assert not pays(3000, 3040)
    assert pays(3000, 3200)
