"""Layers that draft behind a target: what they read, what they keep, what they never change.

The models are tiny and random. Where their layers add little, the next token follows from the last
one, and so a layer that goes on from a token is often right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.families import write_eagle3, write_family
from fakes.head_rounds import CHAIN, rounds

from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.heads import files as head_files
from duodec.backends.llamacpp.heads import layers as heads
from duodec.backends.llamacpp.heads.files import has_mtp
from duodec.backends.llamacpp.heads.layers import MtpHead, State
from duodec.backends.llamacpp.library import load as load_llama
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.core.draft import ROOT, Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec.drafting.heads import Likeliest
from duodec.errors import BadOption, ComputeFailed, ModelUnreadable
from duodec.llm import load
from duodec.loading.config import EngineConfig

CHAINS, TREES = "Qwen 3.5", "GLM 4 MoE"  # a hybrid, and one that scores trees
CALM = 0.03
PROMPT = "one two three four one two three"
SIZES: Any = {"num_slots": 1, "num_context": 256, "num_threads": 1}


class Counted(MtpHead):
    """Counts the tokens that the layer computes, and keeps its logits."""

    def __init__(self, *arguments: Any, **sizes: Any) -> None:
        super().__init__(*arguments, **sizes)
        self.computed: list[int] = []
        self.rows: list[State] = []

    def _decode(self, *arguments: Any) -> None:
        super()._decode(*arguments)
        self.computed.append(len(arguments[2]))

    def _last(self, num_rows: int) -> tuple[State, State]:
        row, state = super()._last(num_rows)
        self.rows.append(row.copy())
        return row, state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module", params=[CHAINS, "Qwen 3.5 MoE", "Qwen 3 Next", TREES])
def path(request: pytest.FixtureRequest, folder: Path) -> Path:
    found = folder / f"{request.param}.gguf"
    return write_family(found, request.param, loudness=CALM, num_heads=1)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    with closing(LlamaModel(path, num_gpu_layers=0, has_mtp=True)) as found:
        yield found


def target_of(model: LlamaModel, num_rows: int = 0, head: Any = Counted, **sizes: Any) -> Any:
    sizes = {**SIZES, **sizes}
    kinds = {"open_head": lambda _: head(model, **sizes)} if head else {}
    return LlamaTarget(model, widths=Widths.only(num_rows), **sizes, **kinds)


def test_a_head_keeps_what_it_has_read_and_takes_back_what_was_refused(
    model: LlamaModel,
) -> None:
    """After many rounds it says what one says that reads the whole text at once."""
    text = np.array([5, 9, 3, 17, 4], dtype=np.int32)
    with closing(target_of(model)) as target:
        for _ in range(4):
            text, _ = rounds(target, text, 5)
            (scores,) = target.score([Query(0, text[:-1], heads=CHAIN)])
            assert len(scores.proposed().tree) == 3
            assert target._head.computed[-3] <= 2  # the others were read in earlier rounds
            with closing(target_of(model)) as other:
                other.score([Query(0, text[:-1], heads=CHAIN)])
                assert other._head.computed == [len(text) - 1, 1, 1, 1]
                for ours, own in zip(target._head.rows[-3:], other._head.rows, strict=True):
                    assert ours.tobytes() == own.tobytes()


def test_what_follows_from_the_last_token_alone_is_drafted_rightly(folder: Path) -> None:
    """Each token is given to the layer with its own position and the state before it: of a target
    whose layers add nothing, every draft comes true."""
    for family in (CHAINS, TREES):
        path = write_family(folder / "still.gguf", family, loudness=0.0, num_heads=1)
        with (
            closing(LlamaModel(path, num_gpu_layers=0, has_mtp=True)) as model,
            closing(target_of(model)) as target,
        ):
            _, num_accepted = rounds(target, np.array([5, 9, 3], dtype=np.int32), 8)
            assert num_accepted == 7 * 3, family  # all but the first round's, which had none


@pytest.mark.parametrize("num_rows", [0, 8])
def test_no_bit_of_the_target_depends_on_a_head(model: LlamaModel, num_rows: int) -> None:
    num_rows = 0 if model.is_recurrent else num_rows
    rng = np.random.default_rng(7)
    with (
        closing(target_of(model, num_rows)) as target,
        closing(target_of(model, num_rows, head=None)) as plain,
    ):
        text = rng.integers(0, 40, 30).astype(np.int32)
        for number in range(12):
            draft = Draft.chain(rng.integers(0, 40, int(rng.integers(0, 5))).tolist())
            with_head, without = (
                one.score([Query(0, text, draft, heads=plan)])[0]
                for one, plan in ((target, CHAIN if number % 3 else None), (plain, None))
            )
            assert with_head.num_rows == without.num_rows
            for row in range(without.num_rows):
                ours, own = with_head.row_logits(row), without.row_logits(row)
                assert ours.tobytes() == own.tobytes()
            text = np.append(text, np.int32(rng.integers(0, 40)))


def test_a_head_that_rests_computes_nothing(model: LlamaModel) -> None:
    with closing(target_of(model)) as target:
        text = np.arange(20, dtype=np.int32)
        target.score([Query(0, text)])
        assert not target._head.computed
        (scores,) = target.score([Query(0, text, heads=CHAIN)])
        assert len(scores.proposed().tree) > 0
        assert scores.proposed().seconds > 0
        assert target._head.computed == [20, 1, 1, 1]


def test_a_head_goes_on_from_the_end_of_a_text_that_it_has_not_read(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are kept of so many tokens; what is older is never read."""
    monkeypatch.setattr(heads, "WINDOW", 16)
    with closing(target_of(model)) as target:
        text = np.resize(np.arange(20, dtype=np.int32), 100)
        target.score([Query(0, text)])
        text, _ = rounds(target, text, 4)
        assert 16 <= target._head.computed[0] <= 33
        assert len(target.score([Query(0, text, heads=CHAIN)])[0].proposed().tree) > 0


def test_another_text_in_the_slot_is_drafted_for_anew(model: LlamaModel) -> None:
    with closing(target_of(model)) as target, closing(target_of(model)) as other:
        first, second = np.arange(9, dtype=np.int32), np.arange(9, dtype=np.int32)[::-1].copy()
        for text in (first, second, first[:5], first):
            (scores,) = target.score([Query(0, text, heads=CHAIN)])
            known = scores.proposed().tree
            other._head._texts.clear()
            (anew,) = other.score([Query(0, text, heads=CHAIN)])
            assert list(known.tokens) == list(anew.proposed().tree.tokens) or text is first


def test_branches_are_proposed_beside_the_path(model: LlamaModel) -> None:
    """A cache without branches: of several nodes the first is gone on from."""
    with closing(target_of(model)) as target:
        plan = Likeliest(num_leaves=4, num_candidates=3, depth=3)
        (scores,) = target.score([Query(0, np.arange(5, dtype=np.int32), heads=plan)])
        tree = scores.proposed().tree
        assert len(tree) == 9
        assert sorted(tree.ranks) == [0] * 3 + [1] * 3 + [2] * 3
        assert {tree.ranks[parent] for parent in tree.parents if parent != ROOT} == {0}


# --- which files


def test_a_layer_is_asked_for_where_it_is_whole(folder: Path) -> None:
    def found(family: str, num_heads: int = 1) -> Header:
        path = write_family(folder / "header.gguf", family, num_heads=num_heads)
        header = Header.read(load_llama(), path)
        assert header is not None
        return header

    assert has_mtp(found(CHAINS))
    assert found(CHAINS).kv_heads == found(CHAINS, 0).kv_heads
    assert not has_mtp(found(CHAINS, 0))
    assert not has_mtp(found(CHAINS, 2))  # llama.cpp's graph ends the process
    assert has_mtp(found("DeepSeek 3"))
    assert not has_mtp(found("DeepSeek 2"))  # and there, as it is stored the old way


# --- through the library


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (CHAINS, "mtp"),
        pytest.param(TREES, "mtp", marks=pytest.mark.slow),
        ("Llama", "eagle3"),
        ("Qwen 2", "eagle3"),
        pytest.param(CHAINS, "eagle3", marks=pytest.mark.slow),
    ],
)
def test_one_text_with_and_without_heads(
    family: str, kind: str, temperature: float, folder: Path
) -> None:
    plain = write_family(folder / "plain.gguf", family, loudness=CALM)
    if kind == "mtp":
        target = write_family(folder / "heads.gguf", family, loudness=CALM, num_heads=1)
        config = partial(EngineConfig, target=str(target))
    else:
        head = write_eagle3(folder / "eagle3.gguf")
        config = partial(EngineConfig, target=str(plain), heads=str(head))
    sizes: Any = {"draft": "none", "context": 256, "threads": 1, "num_slots": 3}
    prompts = [PROMPT, "two three", "four four four one"]
    with load(EngineConfig(target=str(plain), **sizes)) as llm:
        ends = llm.end_tokens
        params = SamplingParams(
            max_tokens=40, temperature=temperature, seed=3, logit_bias=dict.fromkeys(ends, -100.0)
        )
        expected = [one.tokens for one in llm.generate(prompts, params, method="ar")]
        with pytest.raises(BadOption, match=f"needs {kind} heads"):
            llm.generate(PROMPT, params, method=kind)
    with load(config(**sizes)) as llm:
        assert llm.loaded.target.traits.heads == kind
        for method in ("ar", kind, f"{kind}:5", "auto", "lookup"):
            done = llm.generate(prompts, params, method=method)
            assert [one.tokens for one in done] == expected, method
            (alone,) = llm.generate(prompts[:1], params, method=method)
            assert alone.tokens == expected[0], method
            if method in ("mtp", "eagle3"):
                assert alone.stats.num_draft_tokens > 20
            if method == "mtp" and not temperature:
                assert alone.stats.num_accepted_tokens > 15


def test_the_layer_stays_out_of_memory_on_request(folder: Path) -> None:
    path = write_family(folder / "heads.gguf", CHAINS, num_heads=1)
    config = EngineConfig(target=str(path), draft="none", context=256, threads=1, mtp="off")
    with load(config) as llm:
        assert not llm.loaded.target.traits.heads
        with pytest.raises(BadOption, match="mtp heads"):
            llm.generate(PROMPT, method="mtp")


# --- EAGLE-3


def test_eagle3_is_refused_for_another_target(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_files, "SHOWN_ARCHITECTURES", frozenset({"llama"}))
    target = write_family(folder / "llama.gguf", "Llama")
    other = write_family(folder / "olmo.gguf", "OLMo 2")
    head = write_eagle3(folder / "eagle.gguf")
    deep = write_eagle3(folder / "deep.gguf", layers=(1, 2, 9))
    for path, wanted, words in (
        (target, deep, "reads layers"),
        (other, head, "shows no layers"),
    ):
        with (
            closing(LlamaModel(path, num_gpu_layers=0)) as model,
            pytest.raises(BadOption, match=words),
        ):
            head_files.DraftLayer(wanted, model, num_gpu_layers=0)
    with closing(LlamaModel(target, num_gpu_layers=0)) as model, pytest.raises(ModelUnreadable):
        head_files.DraftLayer(target, model, num_gpu_layers=0)


@pytest.mark.parametrize("family", ["Llama", "Qwen 2"])
def test_no_bit_of_the_target_depends_on_layers_that_are_read(folder: Path, family: str) -> None:
    """Whether llama.cpp shows them, or they are watched while a pass is computed."""
    path, head = write_family(folder / "read.gguf", family), write_eagle3(folder / "reads.gguf")
    rng = np.random.default_rng(7)
    with (
        closing(LlamaModel(path, num_gpu_layers=0)) as model,
        closing(LlamaModel(path, num_gpu_layers=0)) as plain_model,
    ):
        head_files.show_layers(model, (1, 2, 3))
        opened = partial(heads.Eagle3Head, model, path=head, **SIZES)
        with (
            closing(LlamaTarget(model, **SIZES, open_head=opened)) as target,
            closing(LlamaTarget(plain_model, **SIZES)) as plain,
        ):
            text = rng.integers(0, 40, 30).astype(np.int32)
            num_proposed = 0
            for _ in range(8):
                draft = Draft.chain(rng.integers(0, 40, int(rng.integers(0, 5))).tolist())
                (ours,) = target.score([Query(0, text, draft, heads=CHAIN)])
                (own,) = plain.score([Query(0, text, draft)])
                assert ours.num_rows == own.num_rows
                for row in range(own.num_rows):
                    assert ours.row_logits(row).tobytes() == own.row_logits(row).tobytes()
                num_proposed += len(ours.proposed().tree)
                text = np.append(text, np.int32(rng.integers(0, 40)))
            assert num_proposed == 8 * 3


# --- where a head computes


def test_eagle3_is_kept_where_its_steps_cost_least(folder: Path) -> None:
    head = write_eagle3(folder / "places.gguf")
    closed: list[int] = []

    class Placed(heads.Eagle3Head):
        def __init__(self, context: object, number: int, seconds: float) -> None:
            super().__init__(model, context, head, **SIZES)
            self.number, self.seconds = number, seconds

        def step_s(self) -> float:
            assert super().step_s() > 0
            return self.seconds

        def close(self) -> None:
            super().close()
            closed.append(self.number)

    def full() -> heads.LlamaHead:
        raise ModelUnreadable("no room")

    def opened(context: object) -> heads.LlamaHead:
        with pytest.raises(ModelUnreadable, match="no room"):
            heads.cheapest([full, full])
        heads.cheapest([full, partial(Placed, context, 9, 1.0)]).close()
        every = [partial(Placed, context, i, s) for i, s in enumerate((2.0, 1.0, 1.5))]
        return heads.cheapest([full, *every, full])

    target = write_family(folder / "places-target.gguf", "Llama")
    with closing(LlamaModel(target, num_gpu_layers=0)) as model:
        with closing(LlamaTarget(model, **SIZES, open_head=opened)):
            assert closed == [9, 0, 2]
        assert closed == [9, 0, 2, 1]


@pytest.mark.parametrize(
    ("own", "computes"),
    [((), (False, False)), (("output",), (True, False)), (("token_embd", "output"), (True, True))],
)
def test_a_head_stays_on_the_device_with_what_it_shares(
    own: tuple[str, ...], computes: tuple[bool, bool], folder: Path
) -> None:
    """llama.cpp ends the process where a CPU is to read a target's tensor on a device."""
    header = Header.read(load_llama(), write_eagle3(folder / f"{len(own)}.gguf", own=own))
    assert header is not None
    found = [head_files.computes_on_cpu(header, has_moved=moved) for moved in (False, True)]
    assert found == list(computes)


def test_a_place_that_cannot_compute_a_head_is_left_out() -> None:
    closed: list[str] = []

    class Fake:
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        def step_s(self) -> float:
            if self.seconds < 0:
                raise ComputeFailed(self.name)
            return self.seconds

        def close(self) -> None:
            closed.append(self.name)

    def wrong() -> Any:
        raise BadOption("no head of this target")

    made: Any = Fake
    places = [partial(made, "broken", -1.0), partial(made, "slow", 2.0), partial(made, "quick", 1)]
    assert heads.cheapest(places).step_s() == 1
    assert closed == ["broken", "slow"]
    with pytest.raises(ComputeFailed, match="broken"):
        heads.cheapest(places[:1] * 2)
    closed.clear()
    with pytest.raises(BadOption):
        heads.cheapest([places[1], wrong])
    assert closed == ["slow"]


def test_to_measure_a_head_changes_nothing_that_it_drafts(folder: Path) -> None:
    """Even in the middle of a text that it has read."""
    target, head = write_family(folder / "measured.gguf", "Llama"), write_eagle3(folder / "m.gguf")
    text, found = np.arange(3, 24, dtype=np.int32), []
    for is_measured in (False, True):
        opened: list[heads.LlamaHead] = []

        def open_head(context: object, opened: Any = opened) -> heads.LlamaHead:
            opened.append(heads.Eagle3Head(opened_for, context, head, **SIZES))
            return opened[-1]

        with (
            closing(LlamaModel(target, num_gpu_layers=0)) as opened_for,
            closing(LlamaTarget(opened_for, **SIZES, open_head=open_head)) as made,
        ):
            own: list[int] = []
            for length in (16, 17):
                query = Query(0, text[:length], Draft(), Sampler(SamplingParams()), heads=CHAIN)
                (scores,) = made.score([query])
                if is_measured:
                    assert opened[0].step_s() > 0
                own += scores.proposed().tree.tokens
            found.append(own)
    assert len(found[0]) > 3
    assert found[0] == found[1]
