"""Block drafters behind a target: what they read, what they propose, what they never change.

The models are tiny and random, as those of `test_heads`. Some are made so that a drafter must be
right: a target whose layers add nothing goes on from its last token alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fakes.block_drafters import BLOCK, KINDS, MASK, TOP_K, write_block
from fakes.families import FAMILIES, HEADS, NORM, VOCAB, WIDTH, write_family
from fakes.head_rounds import rounds
from numpy.typing import NDArray

from duodec.backends.llamacpp.heads import files as head_files
from duodec.backends.llamacpp.heads import layers as heads
from duodec.backends.llamacpp.heads.blocks import open_head
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.core.draft import Draft
from duodec.core.sampling.sampler import SamplingParams, Tokens
from duodec.core.targets import Query
from duodec.drafting.heads import Likeliest
from duodec.errors import BadOption, ModelUnreadable
from duodec.llm import load
from duodec.loading.config import EngineConfig

LAYERS = (1, 2, 3)
RECURRENT = "Qwen 3.5"  # whose positions are several numbers, too
QUICK = (("dflash", "Llama", 0.8), ("dflash2", RECURRENT, 0.8), ("dspark", "Gemma 3", 0.8))
CALM = 0.03  # how much a layer adds
PROMPT = "one two three four one two three"
SIZES: Any = {"num_slots": 1, "num_context": 256, "num_threads": 1}
CHAIN = Likeliest(num_leaves=1, num_candidates=1)
TREE = Likeliest(num_tokens=40, num_leaves=3, num_candidates=3)
Array = NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@contextmanager
def opened(path: Path, head: Path | None) -> Iterator[LlamaTarget]:
    with closing(LlamaModel(path, num_gpu_layers=0)) as model:
        kinds: Any = {}
        if head is not None:
            head_files.show_layers(model, LAYERS)
            kinds = {"open_head": lambda context: open_head(model, context, head, **SIZES)}
        with closing(LlamaTarget(model, **SIZES, **kinds)) as target:
            yield target


def proposed(target: LlamaTarget, text: Tokens, plan: Likeliest = CHAIN) -> Any:
    (scores,) = target.score([Query(0, text, heads=plan)])
    return scores.proposed()


def tokens(*numbers: int) -> Tokens:
    return np.array(numbers, dtype=np.int32)


# --- what is proposed


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_a_tree_by_place(folder: Path, kind: str) -> None:
    """After any candidate of one place come those of the next; a block is as long as it was
    trained. DSpark drafts from the text's last token on, the others from the first mask."""
    target, head = (
        write_family(folder / "tree.gguf", "Qwen 3"),
        write_block(folder / "b.gguf", kind),
    )
    with opened(target, head) as made:
        num = BLOCK if kind == "dspark" else BLOCK - 1
        assert (made.traits.heads, made.traits.num_heads) == (kind, num)
        text = np.arange(3, 30, dtype=np.int32)
        chain = proposed(made, text)
        assert len(chain.tree) == chain.num_levels == num
        tree = proposed(made, text, TREE).tree
        assert tree.tokens[0] == chain.tree.tokens[0]
        after_each = {
            tuple((tree.tokens[child], tree.confidences[child]) for child in tree.children(node))
            for node in range(3)
        }
        assert all(after_each)
        assert (len(after_each) > 1) == (kind == "dflash2")  # which knows what comes before
        cut = proposed(made, text, Likeliest(num_leaves=1, num_candidates=1, depth=2))
        assert list(cut.tree.tokens) == list(chain.tree.tokens)[:2]
        assert cut.num_levels == num  # they were all computed


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_keeps_what_it_has_read_and_takes_back_what_was_refused(
    folder: Path, kind: str
) -> None:
    """After many rounds it says what one says that reads the whole text at once."""
    target, head = write_family(folder / "k.gguf", "Llama"), write_block(folder / "kh.gguf", kind)
    with opened(target, head) as made:
        text = tokens(5, 9, 3, 17, 4)
        for _ in range(4):
            text, _ = rounds(made, text, 5)
            ours = proposed(made, text)
            with opened(target, head) as other:
                anew = proposed(other, text)
            assert list(ours.tree.tokens) == list(anew.tree.tokens)
            assert np.allclose(ours.tree.confidences, anew.tree.confidences, rtol=1e-4)


def test_blocks_are_drafted_from_the_end_of_a_text_that_was_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "WINDOW", 16)
    target = write_family(folder / "w.gguf", "Llama")
    with opened(target, write_block(folder / "wh.gguf", "dflash")) as made:
        text = np.resize(np.arange(20, dtype=np.int32), 100)
        made.score([Query(0, text)])
        assert len(proposed(made, np.append(text, np.int32(3))).tree) == BLOCK - 1


def weights_of(path: Path, *names: str) -> list[Array]:
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    return [
        gguf.quants.dequantize(found[name].data, found[name].tensor_type).astype(np.float32)
        for name in names
    ]


def normed(rows: Array) -> Array:
    return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True))


NOTHING = np.zeros((WIDTH, WIDTH), np.float32)
STILL = {"attn_output": NOTHING, "ffn_down": NOTHING}


def test_dspark_that_must_be_right_is(folder: Path) -> None:
    """What follows a token is known from it alone, and is what the Markov head says."""
    target = write_family(folder / "still.gguf", "Llama", loudness=0.0)
    embeddings, output = weights_of(target, "token_embd.weight", "output.weight")
    weights = {**STILL, "markov_w1": normed(embeddings), "markov_w2": 1000 * output}
    for from_anchor, num in ((True, BLOCK), (False, BLOCK - 1)):
        head = write_block(
            folder / "right.gguf",
            "dspark",
            weights=weights,
            fields={"sample_from_anchor": from_anchor},
        )
        with opened(target, head) as made:
            _, num_accepted = rounds(made, tokens(5, 9, 3), 6, CHAIN)
        assert num_accepted == 5 * num  # all but the first round's, which had none


def test_dflash2_that_must_be_right_is(folder: Path) -> None:
    """A text of few tokens, which are the candidates of every place: the scores between them say
    which one follows."""
    target = write_family(folder / "still.gguf", "Llama", loudness=0.0)
    embeddings, output = weights_of(target, "token_embd.weight", "output.weight")
    following = (normed(embeddings) @ output.T).argmax(axis=1)
    orbit = [5]
    while following[orbit[-1]] not in orbit:
        orbit.append(int(following[orbit[-1]]))
    assert 3 < len(orbit) <= TOP_K
    own = embeddings.copy()
    own[MASK] = 1.0  # so that the gate of the selector is open
    said = np.zeros_like(output)
    said[orbit] = 1 / WIDTH
    weights = {
        **STILL, "token_embd": own, "output": said, "selector_predecessor": normed(embeddings),
        "selector_successor": 1000 * output,
        "selector_hidden": np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32),
        **{f"{part}_conv_base": np.zeros((2, 3, WIDTH), np.float32) for part in ("attn", "ffn")},
    }  # fmt: skip
    shapes = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH)}
    head = write_block(folder / "orbit.gguf", "dflash2", weights=weights, shapes=shapes)
    with opened(target, head) as made:
        expected = [int(following[orbit[0]])]  # which the target says itself
        while len(expected) < BLOCK:
            expected.append(int(following[expected[-1]]))
        assert list(proposed(made, tokens(9, orbit[0])).tree.tokens) == expected[1:]
        _, num_accepted = rounds(made, tokens(orbit[0]), 6, CHAIN)
    assert num_accepted == 5 * (BLOCK - 1)


def test_dflash_is_right_where_a_text_repeats(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that says its last token again, and a drafter whose layers see the mean of what the
    target has read: its states are in the drafter's cache, at their places."""
    monkeypatch.setitem(FAMILIES, "Echo", replace(FAMILIES["Llama"], ends=NORM))
    target = write_family(folder / "echo.gguf", "Echo", loudness=0.0)
    identity = np.eye(WIDTH, dtype=np.float32)
    weights = {
        "fc": np.hstack([identity, NOTHING, NOTHING]), "attn_v": identity, "attn_q": NOTHING,
        "attn_output": identity, "ffn_down": NOTHING,
    }  # fmt: skip
    wide = {f"blk.{i}.attn_{part}": (WIDTH, WIDTH) for i in range(2) for part in "kv"}
    head = write_block(
        folder / "mean.gguf", "dflash", weights=weights, shapes=wide,
        fields={"attention.head_count_kv": HEADS},
    )  # fmt: skip
    with opened(target, head) as made:
        for token in (7, 31):
            text = np.full(40, token, dtype=np.int32)
            assert list(proposed(made, text).tree.tokens) == [token] * (BLOCK - 1)
        text, num_accepted = rounds(made, np.append(text, np.int32(31)), 5, CHAIN)
    assert set(text.tolist()) == {31}
    assert num_accepted == 4 * (BLOCK - 1)


# --- whose text it is


@pytest.mark.parametrize("family", FAMILIES)
def test_no_bit_of_a_target_depends_on_what_a_drafter_reads(folder: Path, family: str) -> None:
    """Of every architecture here, whether llama.cpp shows its layers or they are watched."""
    path, head = (
        write_family(folder / "read.gguf", family),
        write_block(folder / "r.gguf", "dflash"),
    )
    rng = np.random.default_rng(7)
    with opened(path, head) as target, opened(path, None) as plain:
        text = rng.integers(0, 40, 30).astype(np.int32)
        for _ in range(4):
            draft = Draft.chain(rng.integers(0, 40, int(rng.integers(0, 5))).tolist())
            (ours,) = target.score([Query(0, text, draft, heads=CHAIN)])
            (own,) = plain.score([Query(0, text, draft)])
            assert ours.num_rows == own.num_rows
            for row in range(own.num_rows):
                assert ours.row_logits(row).tobytes() == own.row_logits(row).tobytes()
            assert len(ours.proposed().tree) == BLOCK - 1
            text = np.append(text, np.int32(rng.integers(0, 40)))


@pytest.mark.parametrize(
    ("kind", "family", "temperature"),
    [
        pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow)
        for one in product(KINDS, ["Llama", "Gemma 3", RECURRENT], [0.0, 0.8])
    ],
)
def test_one_text_with_and_without_blocks(
    kind: str, family: str, temperature: float, folder: Path
) -> None:
    plain = write_family(folder / "plain.gguf", family, loudness=CALM)
    sections = {"rope.dimension_sections": [16, 0, 0, 0]} if family == RECURRENT else {}
    head = write_block(folder / "head.gguf", kind, fields=sections)
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
    with load(EngineConfig(target=str(plain), heads=str(head), **sizes)) as llm:
        assert llm.loaded.target.traits.heads == kind
        for method in ("ar", kind, f"{kind}:3", "auto", "lookup"):
            done = llm.generate(prompts, params, method=method)
            assert [one.tokens for one in done] == expected, method
            (alone,) = llm.generate(prompts[:1], params, method=method)
            assert alone.tokens == expected[0], method
            if method == kind:
                assert alone.stats.num_draft_tokens > 100


# --- which files


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": (1, 2, 4)}, "reads layers"),
        ({"fields": {"block_size": 1}}, "blocks of 1 tokens"),
        ({"left_out": ("mask",)}, "names no mask token"),
    ],
)
def test_a_drafter_that_cannot_be_one_is_refused(folder: Path, changes: Any, words: str) -> None:
    target = write_family(folder / "sound.gguf", "Llama")
    head = write_block(folder / "wrong.gguf", "dflash", **changes)
    with pytest.raises(BadOption, match=words), opened(target, head):
        pass


def test_a_model_is_no_drafter(folder: Path) -> None:
    target = write_family(folder / "sound.gguf", "Llama")
    with pytest.raises(ModelUnreadable, match="name it as `draft`"), opened(target, target):
        pass


def wrong_table(numbers: Sequence[int]) -> dict[str, Any]:
    """A drafter of fewer tokens, whose table says which they are of the target's."""
    table = np.array(numbers, dtype=np.int64)
    size = {"d2t": table.shape, "output": (len(table), WIDTH)}
    return {"shapes": size, "weights": {"d2t": table}}


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("dflash", wrong_table([1, 2, VOCAB + 5]), "crashed"),  # its graph ends the process
        ("dspark", {"left_out": ("block_size",)}, "blocks of 0 tokens"),  # and so would this one's
        ("dflash", {"left_out": ("target_layers",)}, "requires 'target_layers'"),
        ("dflash2", {"left_out": ("selector_top_k",)}, "missing conv/selector metadata"),
    ],
)
def test_what_ends_its_process_is_refused_in_one_line(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    changes: Any,
    words: str,
) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    target = write_family(folder / "sound.gguf", "Llama")
    head = write_block(folder / "fatal.gguf", kind, **changes)
    config = EngineConfig(target=str(target), heads=str(head), draft="none", context=256, threads=1)
    with pytest.raises((ModelUnreadable, BadOption), match=words) as told, load(config):
        pass
    assert head.name in str(told.value)
    assert "\n" not in str(told.value)


def test_a_drafter_of_fewer_tokens_drafts_these(folder: Path) -> None:
    target = write_family(folder / "few-target.gguf", "Llama")
    few = list(range(0, 40, 3))
    with opened(target, write_block(folder / "few.gguf", "dflash", **wrong_table(few))) as made:
        tree = proposed(made, np.arange(3, 30, dtype=np.int32), TREE).tree
    assert set(tree.tokens) <= set(few)
