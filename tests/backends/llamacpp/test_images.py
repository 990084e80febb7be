"""Pictures: every method's text is that of plain decoding, whatever a draft knows of them, and a
picture is computed once. The models are tiny and random, one of each family."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.seeing_pairs import (
    ABOUT,
    TWO,
    Pair,
    asked,
    image,
    load_pair,
    params,
    tokens,
    words,
)
from fakes.vision_models import SEEING, picture_file, write_projector

from duodec import LLM, SamplingParams
from duodec.backends.llamacpp.model import open_context
from duodec.backends.llamacpp.target.chains import NUM_BATCH, LlamaChains
from duodec.backends.llamacpp.target.context import Batch, logits
from duodec.backends.llamacpp.target.padded import LlamaPadded
from duodec.backends.llamacpp.target.recurrent import LlamaRecurrent
from duodec.backends.llamacpp.vision import image as vision_image
from duodec.backends.llamacpp.vision.image import ImageTokens
from duodec.backends.llamacpp.vision.layout import Layout
from duodec.backends.llamacpp.vision.sight import LlamaSight
from duodec.backends.tree_cache import Entry
from duodec.core.draft import Draft
from duodec.core.prompts.pictures import Picture, PromptTokens
from duodec.core.sampling.sampler import Sampler
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec.errors import BadOption, ContextExceeded, ModelUnreadable, PicturesFull
from duodec.methods.registry import METHODS

TEMPERATURES = (0.0, 0.8)
KEYED = [
    name
    for name, kind in METHODS.items()
    if name not in ("ar", "sps-rejection", "rest") and not kind.needs_heads
]
# not causal, with M-RoPE, and a hybrid with it
QUICK = ("Gemma 3", "Qwen 2.5 VL", "Qwen 3.5")


@pytest.fixture(
    scope="module",
    params=[
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SEEING
    ],
)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    with load_pair(tmp_path_factory.mktemp("models"), str(request.param)) as found:
        yield found


# --- exactness


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
@pytest.mark.parametrize(
    "prompt", [pytest.param(ABOUT, id="one", marks=pytest.mark.slow), pytest.param(TWO, id="two")]
)
def test_every_method_has_the_text_of_plain_decoding(
    pair: Pair, temperature: float, prompt: Any
) -> None:
    llm = pair.llm
    own = params(llm, temperature)
    plain = tokens(llm, prompt, own)
    num_accepted = 0
    for method in KEYED:
        if pair.has(method):
            (done,) = llm.generate([prompt], own, method=method)
            assert tuple(done.tokens) == plain, (pair.family, method)
            num_accepted += sum(one.num_accepted for one in done.stats.rounds)
    assert num_accepted > 0, "no draft was ever right: nothing was tested"


def test_a_picture_is_seen(pair: Pair) -> None:
    llm, rows = pair.llm, set()
    for shown in ([], [image(1)], [image(2)], [image(1), image(2)], [image(2), image(1)]):
        prompt = llm.tokens_of(asked(words("one"), *shown, words("two")))
        own = prompt.shown if isinstance(prompt, PromptTokens) else ()
        (scores,) = llm.loaded.target.score([Query(0, np.array(prompt, dtype=np.int32), shown=own)])
        rows.add(np.array(scores.row_logits(0)).tobytes())
    assert len(rows) == 5


def test_rows_are_those_of_llama_cpp_itself(pair: Pair) -> None:
    """Embeddings at the positions that mtmd gives them, tokens behind them where they end."""
    llm, sight = pair.llm, pair.sight
    prompt = llm.tokens_of(TWO)
    assert isinstance(prompt, PromptTokens)
    text = np.array(prompt, dtype=np.int32)
    found = _plainly(sight, prompt)
    (scores,) = llm.loaded.target.score([Query(0, text, shown=prompt.shown)])
    assert np.array_equal(np.array(scores.row_logits(0)), found)


def _plainly(sight: LlamaSight, prompt: PromptTokens, size: int = 512) -> Any:
    """The last row of a prompt, part by part as mtmd's own helper computes it."""
    model = sight._model
    lib = model.lib
    handle = open_context(
        model, num_context=size, num_sequences=1, num_threads=1, num_batch=size, max_rows=1,
        is_width_exact=True, is_unified=False,
    )  # fmt: skip
    text, position, shown = np.array(prompt, dtype=np.int32), 0, list(prompt.shown)
    batch = Batch(lib, size, 1)
    begin = 0
    try:
        while begin < len(text):
            if text[begin] < 0:
                part = shown.pop(0)
                assert isinstance(part, ImageTokens)
                num = len(part.tokens)
                axes = part.positions(position)
                states = Batch(
                    lib, num, 1, num_states=part.rows().shape[1], num_positions=len(axes)
                )
                states.struct.token = None
                states.states[:] = part.rows()
                states._position[:] = axes.reshape(-1)
                states._num_seqs[:] = 1
                states.struct.n_tokens = num
                lib.llama_set_causal_attn(handle, part.is_causal)
                assert lib.llama_decode(handle, states.struct) == 0
                lib.llama_set_causal_attn(handle, True)
                begin += num
                position += part.num_positions
                continue
            end = begin
            while end < len(text) and text[end] >= 0:
                end += 1
            last = end == len(text)
            entries = [
                Entry(int(token), position + i, (0,), 0 if last and begin + i == end - 1 else None)
                for i, token in enumerate(text[begin:end])
            ]
            batch.fill(entries)
            assert lib.llama_decode(handle, batch.struct) == 0
            position += end - begin
            begin = end
        return logits(model, handle, 1)[0].copy()
    finally:
        lib.llama_free(handle)


def test_a_picture_may_take_several_passes(pair: Pair) -> None:
    """As large ones do of models whose pictures are as large as they are sent."""
    sight = pair.sight
    pixels = np.random.default_rng(5).integers(0, 256, (400, 384, 3), dtype=np.uint8).tobytes()
    prompt = sight.tokenize([("one two", None), Picture(384, 400, pixels), ("three four", None)])
    if max(len(part.tokens) for part in prompt.shown) <= NUM_BATCH:
        pytest.skip("its pictures are made small")
    kind = LlamaRecurrent if pair.llm.loaded.target.traits.is_recurrent else LlamaChains
    with closing(kind(sight._model, num_slots=1, num_context=3072, num_threads=1)) as target:
        text = np.array(prompt, dtype=np.int32)
        (scores,) = target.score([Query(0, text, Draft.chain([5]), shown=prompt.shown)])
        found = np.array(scores.row_logits(0))
    assert np.array_equal(found, _plainly(sight, prompt, 3072))


@pytest.mark.parametrize("num_piece", [16, 512])
def test_padded_passes_read_pictures(pair: Pair, num_piece: int) -> None:
    """As a device has them; whatever the cells held before."""
    if pair.llm.loaded.target.traits.is_recurrent:
        pytest.skip("a recurrent model's passes are not padded")
    other = asked(image(1), words("one two"), image(3, (40, 64)), words("one two one two"))
    prompts = [pair.llm.tokens_of(prompt) for prompt in (TWO, other, TWO)]
    options: Any = {"num_context": 512, "num_threads": 1, "num_piece": num_piece}
    target = LlamaPadded(pair.sight._model, widths=Widths((1, 4)), **options)
    with closing(target):
        for prompt in prompts:
            assert isinstance(prompt, PromptTokens)
            text = np.array(prompt, dtype=np.int32)
            sampler = Sampler(num_prompt_tokens=len(text))
            for draft in (Draft(), Draft.chain([5, 6, 7])):
                (scores,) = target.score([Query(0, text, draft, sampler, shown=prompt.shown)])
                row = np.array(scores.row_logits(0))
                assert np.array_equal(row, _plainly(pair.sight, prompt))
            behind = PromptTokens([*prompt, 5, 6], prompt.shown)
            assert np.array_equal(scores.row_logits(2), _plainly(pair.sight, behind))
            text = np.array(behind, dtype=np.int32)
            (scores,) = target.score([Query(0, text, sampler=sampler, shown=prompt.shown)])
            assert scores.num_computed is not None
            assert scores.num_computed <= 3
            assert np.array_equal(scores.row_logits(0), _plainly(pair.sight, behind))


def test_shared_passes_of_fixed_rows_read_pictures(pair: Pair) -> None:
    """As a device has them with --fast."""
    if pair.llm.loaded.target.traits.is_recurrent:
        pytest.skip("a recurrent model's passes are not padded")
    other = asked(words("one two"), image(3, (40, 64)), words("one two one two"))
    prompts = [pair.llm.tokens_of(prompt) for prompt in (TWO, other)]
    options: Any = {"num_slots": 2, "num_context": 512, "num_threads": 1, "num_rows": 4}
    queries = [
        Query(slot, np.array(prompt, dtype=np.int32), Draft.chain([5, 6]), shown=prompt.shown)
        for slot, prompt in enumerate(prompts)
        if isinstance(prompt, PromptTokens)
    ]
    with closing(LlamaChains(pair.sight._model, **options)) as target:
        for _ in range(2):
            for prompt, scores in zip(prompts, target.score(queries), strict=True):
                assert isinstance(prompt, PromptTokens)
                behind = PromptTokens([*prompt, 5], prompt.shown)
                assert np.array_equal(scores.row_logits(0), _plainly(pair.sight, prompt))
                assert np.array_equal(scores.row_logits(1), _plainly(pair.sight, behind))


@pytest.mark.parametrize("method", ["ar", "auto", "duo"])
def test_clients_with_other_pictures_share_forward_passes(pair: Pair, method: str) -> None:
    llm = pair.llm
    prompts = [asked(words("one two"), image(i), words("one two three")) for i in (3, 4)]
    prompts.append(asked(words("one two one two")))
    own = params(llm, 0.8)
    alone = [tokens(llm, prompt, own) for prompt in prompts]
    together = llm.generate(prompts, own, method=method)
    assert [tuple(done.tokens) for done in together] == alone
    assert len(set(alone)) == 3


def test_a_prompt_in_parts_has_the_same_text(pair: Pair) -> None:
    llm = pair.llm
    own = params(llm, 0.8)
    prompt = asked(
        words("one two " * 20), image(5), words("three four " * 20), image(6), words("a")
    )
    plain = tokens(llm, prompt, own)
    try:
        for num_chunk in (1, 7, 16, 64):
            llm.scheduler.num_chunk = num_chunk
            other = asked(words(f"{num_chunk}"))
            first, _ = llm.generate([prompt, other], own, method="auto")
            assert tuple(first.tokens) == plain, num_chunk
    finally:
        llm.scheduler.num_chunk = None


def test_text_alone_is_what_it_is_without_the_other_file(pair: Pair) -> None:
    llm = pair.llm
    prompt, own = asked(words("one two three one two")), params(llm, 0.8)
    with LLM.load(str(pair.files.target), mmproj="none", **pair.options) as blind:
        plain = tokens(blind, prompt, own)
        with pytest.raises(BadOption, match="reads text only"):
            blind.tokens_of(ABOUT)
    for method in ("ar", "auto"):
        assert tokens(llm, prompt, own, method) == plain


def test_penalties_and_grammars_see_no_pictures(pair: Pair) -> None:
    llm = pair.llm
    for more in (
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"logprobs": 2},
        {"min_tokens": 5},
    ):
        own = SamplingParams(max_tokens=20, temperature=0.8, seed=3, **more)  # type: ignore[arg-type]
        plain = tokens(llm, ABOUT, own)
        for method in ("lookup", "auto"):
            assert tokens(llm, ABOUT, own, method) == plain
    with pytest.raises(BadOption, match="prompt_logprobs"):
        llm.generate([ABOUT], SamplingParams(prompt_logprobs=1))


# --- what is computed


def test_a_picture_is_computed_once(pair: Pair) -> None:
    llm = pair.llm
    own = replace(params(llm, 0.0), max_tokens=4)  # most of the next prompt is known
    history = asked(words("a new one"), image(11, (64, 48)), words("what is it?"))
    before = pair.num_encoded
    (first,) = llm.generate([history], own)
    num_parts = pair.num_encoded - before
    assert num_parts >= 1
    (again,) = llm.generate([history], own)
    assert pair.num_encoded - before == num_parts
    assert again.tokens == first.tokens
    turn = [*history, {"role": "assistant", "content": first.text}, *asked(words("and then?"))]
    llm.generate([turn], own)
    assert pair.num_encoded - before == num_parts


def test_choices_of_one_request_share_a_picture(pair: Pair) -> None:
    before = pair.num_encoded
    prompt = asked(words("one of many"), image(12), words("say it"))
    pair.llm.generate([prompt], SamplingParams(max_tokens=4, temperature=0.8), n=3)
    num = pair.num_encoded - before
    pair.llm.generate([asked(image(13), words("say it"))], SamplingParams(max_tokens=4))
    assert num == pair.num_encoded - before - num


def test_a_picture_that_changes_in_the_middle_is_computed_anew(pair: Pair) -> None:
    llm = pair.llm
    own = params(llm, 0.8)

    def prompt(number: int) -> Any:
        return asked(words("one two three"), image(20), words("a"), image(number), words("b"))

    with LLM.load(str(pair.files.target), **pair.options) as fresh:
        plain = {number: tokens(fresh, prompt(number), own) for number in (21, 22)}
    num = len(llm.tokens_of(prompt(21)).shown)  # type: ignore[attr-defined]
    for number in (21, 22, 21):
        before = pair.num_encoded
        assert tokens(llm, prompt(number), own) == plain[number]
        assert number == 21 or pair.num_encoded - before == num // 2
    assert tokens(llm, prompt(22), own, "auto") == plain[22]


# --- layouts


def test_a_layout_finds_pictures_and_positions(pair: Pair) -> None:
    prompt = pair.llm.tokens_of(TWO)
    assert isinstance(prompt, PromptTokens)
    text = np.array(prompt, dtype=np.int32)
    layout = Layout.of(text, prompt.shown)
    assert [text[run.begin] < 0 for run in layout.runs] == [True] * len(prompt.shown)
    behind = layout.runs[-1].end
    saved = sum(run.num_saved for run in layout.runs)
    assert layout.position(behind) == behind - saved
    assert (saved > 0) is SEEING[pair.family].uses_mrope
    for run in layout.runs:
        assert layout.cut(run.begin) == run.begin
        assert layout.cut(run.end) == run.end
        assert {layout.cut(i) for i in range(run.begin + 1, run.end)} <= {run.begin}
    assert layout.next_run(behind) is None
    part = Layout.of(text[:behind], prompt.shown)
    assert part == layout


# --- refusals


def test_what_does_not_fit_is_refused_in_one_line(pair: Pair, tmp_path: Path) -> None:
    other = write_projector(tmp_path / "mmproj-other.gguf", pair.family, width=128)
    broken = tmp_path / "mmproj-broken.gguf"
    broken.write_bytes(pair.files.mmproj.read_bytes()[:-4096])
    for path in (other, broken, pair.files.draft):
        with pytest.raises(ModelUnreadable) as error:
            LLM.load(str(pair.files.target), mmproj=str(path), **pair.options).close()
        assert "\n" not in str(error.value)
        assert path.name in str(error.value)


def test_a_prompt_must_not_end_with_a_picture(pair: Pair, tmp_path: Path) -> None:
    template = tmp_path / "bare.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    options = {**pair.options, "chat_template": str(template)}
    prompt: Sequence[Any] = asked(words("a"), image())
    with LLM.load(str(pair.files.target), **options) as llm:
        found = llm.tokens_of(asked(image(), words("a")))
        assert min(found) < 0
        if llm.tokens_of(asked(image(), words("a")))[-2] < 0:  # nothing stands behind a picture
            with pytest.raises(BadOption, match="ends with a picture"):
                llm.tokens_of(prompt)


def test_pictures_that_do_not_fit_the_context_are_refused(pair: Pair) -> None:
    many = asked(*[image(i) for i in range(30)], words("a"), words("b " * 400))
    with pytest.raises(ContextExceeded, match="tokens"):
        pair.llm.generate([many])
    with pytest.raises(BadOption, match="more than 32"):
        pair.llm.tokens_of(asked(*[image(i) for i in range(33)], words("a")))


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 199), (199, 1), (3, 400), (99, 97)])
def test_odd_sizes_are_seen_or_refused(pair: Pair, size: tuple[int, int]) -> None:
    """The library ends the process where it is surprised."""
    width, height = size
    try:
        prompt = pair.sight.picture(Picture(width, height, bytes(3 * width * height)))
    except BadOption:
        assert max(size) > 50 * min(size)
        return
    for part in prompt.shown:
        assert isinstance(part, ImageTokens)
        assert part.rows().shape == (len(part.tokens), pair.sight.projector.num_dims)


def test_pictures_that_wait_are_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    projector = pair.sight.projector
    gc.collect()
    before = projector.num_bytes
    first = pair.sight.tokenize([Picture(48, 32, bytes(3 * 48 * 32)), ("a", None)])
    assert projector.num_bytes > before
    monkeypatch.setattr(vision_image, "MOST_BYTES", projector.num_bytes)
    with pytest.raises(PicturesFull, match="ask again"):
        pair.sight.tokenize([Picture(48, 32, bytes(3 * 48 * 32)), ("a", None)])
    del first
    gc.collect()
    assert projector.num_bytes == before


@pytest.mark.slow
def test_the_command_line_shows_pictures(pair: Pair, tmp_path: Path) -> None:
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    first.write_bytes(picture_file(1))
    second.write_bytes(picture_file(2))

    def said(*more: str) -> subprocess.CompletedProcess[str]:
        options = (
            "-md", str(pair.files.draft), "-c", "256", "-t", "1", "--chat-template",
            pair.options["chat_template"], "-n", "30", "--temperature", "0.8", "--seed", "7",
        )  # fmt: skip
        return subprocess.run(
            [sys.executable, "-m", "duodec", "run", str(pair.files.target), "one two", *options,
             *more],
            capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    shown = ("--image", str(first), "--image", str(second))
    expected = pair.llm.generate(
        [asked(image(1), image(2), words("one two"))],
        SamplingParams(max_tokens=30, temperature=0.8, seed=7),
    )[0]
    for method in ("auto", "ar"):
        done = said("--method", method, *shown)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == expected.text.strip()
        done = said("--method", method, *shown, "--json")
        assert json.loads(done.stdout.splitlines()[-1])["text"] == expected.text
    for more, why in (
        (("--image", str(tmp_path / "none.png")), "none.png"),
        (("--image", str(pair.files.target)), "no picture"),
        (("--image", str(first), "--raw"), "--raw"),
        (("--image", str(first), "--mmproj", "none"), "reads text only"),
    ):
        done = said(*more)
        assert done.returncode == 2
        assert why in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
