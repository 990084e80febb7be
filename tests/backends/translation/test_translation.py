"""A draft model of another vocabulary: bytes are kept, no text changes, drafts are accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes.decoding import (
    DyingDrafter,
    InlineDrafter,
    SlowDrafter,
    decode,
    plain_text,
    proven,
)
from fakes.vocabularies import Merged, SaysOneText, learned
from hypothesis import given, settings
from hypothesis import strategies as st

from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.grammar.llguidance import Masks
from duodec.backends.translation.model import TranslatedModel
from duodec.backends.translation.recipe import TranslatedRecipe
from duodec.backends.translation.renumbering import RenumberedModel
from duodec.backends.translation.rows import NONE, Correspondence
from duodec.backends.translation.spelling import Spelling, last_cut
from duodec.backends.translation.text import Frame, TranslatedText
from duodec.core.draft import Draft
from duodec.core.drafters import DraftRequest, RowQuery
from duodec.core.rows import log_normaliser
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.traits import DraftTraits
from duodec.drafting.growth import Tree
from duodec.drafting.plans import Chain
from duodec.errors import VocabularyMismatch
from duodec.methods.registry import METHODS
from duodec.testing import TableDraftModel, TableModel, TableTarget

TEXT = (
    "the internationalisation of the cat's thesaurus: def cat(n):\n    return n + 1\n"
    "\U0001f600 naïve 北京 \U0001f680 and then the theatre there. "
).encode()
DRAFTED = [name for name, kind in METHODS.items() if kind().takes_draft_model]

LARGE = Merged(learned(TEXT * 2, 90))
SMALL = Merged(learned(TEXT, 25), first=7)
OTHER = Merged(learned(bytes(reversed(TEXT)) + TEXT, 60), (b"<start>", b"<end>"), first=3)
PAIRS = [(LARGE, SMALL), (SMALL, LARGE), (LARGE, OTHER), (OTHER, SMALL)]

letters = st.text("abc \n.é\U0001f600", max_size=24)
pieces = st.sampled_from([bytes([letter]) for letter in "abc .é\U0001f600".encode()])


@st.composite
def vocabularies(draw: st.DrawFn) -> Merged:
    """Single bytes and random merges of what is there already."""
    known = [bytes([letter]) for letter in b"abc \n."]
    merges = []
    for _ in range(draw(st.integers(0, 8))):
        pair = (draw(st.sampled_from(known)), draw(st.sampled_from(known)))
        if pair[1][:1] in b" \n" or pair[0] + pair[1] in known:
            continue  # a tokenizer that splits at spaces has no such token
        merges.append(pair)
        known.append(pair[0] + pair[1])
    return Merged(tuple(merges), first=draw(st.integers(0, 300)))


def text_of(target: Merged, draft: Merged, frames: tuple[Frame, ...] = ()) -> TranslatedText:
    words = Correspondence(Spelling(target), Spelling(draft))
    return TranslatedText(words.target, words.draft, words.of_target.tolist(), frames)


def translated(target: Merged, draft: SaysOneText | TableModel, vocabulary: Merged, **options):
    words = Correspondence(Spelling(target), Spelling(vocabulary))
    return TranslatedModel(draft.load(), words, Masks(target).mask, **options)


def tokens(vocabulary: Merged, text: str) -> np.ndarray:
    return np.array(vocabulary.tokenize(text, is_templated=False), dtype=np.int32)


def whole(text: TranslatedText) -> tuple[int, ...]:
    return (*text.trunk, *text.path(next(text.places(Draft()))))


# --- texts


@proven
@given(vocabularies(), vocabularies(), st.lists(st.binary(max_size=6), max_size=6))
def test_a_text_keeps_its_bytes(target: Merged, draft: Merged, parts: list[bytes]) -> None:
    data = b"a" + b" ".join(parts)  # some of it no characters
    own = np.array([t for byte in data for t in target.spelled(bytes([byte]))], dtype=np.int32)
    text = text_of(target, draft)
    text.follow(own)
    filler = text.trunk if not text._draft else []
    assert b"".join(map(draft.piece, whole(text)[len(filler) :])) == data


@proven
@given(vocabularies(), vocabularies(), st.lists(letters, min_size=1, max_size=5))
def test_a_text_that_grows_and_turns_is_a_new_one(
    target: Merged, draft: Merged, texts: list[str]
) -> None:
    grown = text_of(target, draft)
    for i, text in enumerate(texts):
        own = tokens(target, "abc a " * (i % 3) + text + "b")
        for end in {1, (len(own) + 1) // 2, len(own)}:
            grown.follow(own[:end])
            fresh = text_of(target, draft)
            fresh.follow(own[:end])
            assert whole(grown) == whole(fresh)


def test_a_text_is_the_drafts_own_tokens() -> None:
    for target, draft in PAIRS:
        text = text_of(target, draft)
        text.follow(tokens(target, TEXT.decode()))
        assert list(whole(text)) == draft.tokenize(TEXT.decode(), is_templated=False)


def test_a_word_without_an_end_is_cut_between_characters() -> None:
    data = "北京".encode() * 40
    cut = last_cut(data, 96)
    assert 0 < len(data) - cut <= 96
    assert data[:cut].decode() + data[cut:].decode() == data.decode()


def test_special_tokens_and_what_templates_write_are_the_drafts() -> None:
    target = Merged(controls=(b"<user>", b"<turn>", b"<end>"))
    draft = Merged(controls=(b"<s>", b"[INST]", b"<end>"), begins=True, first=9)
    user, turn, end = (target.numbers[text] for text in target.controls)
    opening = Frame((user,), (draft.bos, draft.numbers[b"[INST]"]))
    closing = Frame((turn, *target.spelled(b"model:")), tuple(draft.spelled(b"[/INST]")))
    text = text_of(target, draft, (opening, closing))
    prompt = [user, *target.spelled(b"hi there"), turn, *target.spelled(b"model:")]
    for shown in (prompt[:-1], prompt):  # a frame is found though it came in two parts
        text.follow(np.array(shown, dtype=np.int32))
    found = b"".join(map(draft.token_text, whole(text)))
    assert found == b"<s>[INST]hi there[/INST]"
    (_, place) = text.places(Draft((end,), (-1,)))
    assert text.path(place)[-1] == draft.numbers[b"<end>"]


# --- rows


@proven
@given(st.integers(0, 300), st.integers(0, 10**6))
def test_a_vocabulary_in_another_order_has_the_same_rows(first: int, seed: int) -> None:
    draft = replace(LARGE, first=first)
    table = TableModel(draft.num_vocab, seed=seed)
    words = Correspondence(Spelling(LARGE), Spelling(draft))
    assert words.is_renumbering
    own = tokens(LARGE, "the cat then")
    theirs = tokens(draft, "the cat then")
    (expected,) = table.load().rows(RowQuery(0, theirs, Draft(), (0,)))
    expected = expected[words.of_target]
    by_id = RenumberedModel(table.load(), words, Masks(LARGE).mask)
    (row,) = by_id.rows(RowQuery(0, own, Draft(), (0,)))
    np.testing.assert_array_equal(row, expected)
    by_text = TranslatedModel(table.load(), words, Masks(LARGE).mask)
    (row,) = by_text.rows(RowQuery(0, own, Draft(), (0,)))
    np.testing.assert_allclose(row, expected - log_normaliser(expected), atol=2e-5)


@proven
@given(st.sampled_from(PAIRS), st.integers(0, 1000), st.integers(1, 30))
def test_rows_are_probabilities(pair: tuple[Merged, Merged], seed: int, length: int) -> None:
    target, draft = pair
    model = translated(target, TableModel(draft.num_vocab, seed=seed), draft)
    rng = np.random.default_rng(seed)
    text = rng.integers(0, target.num_vocab, length).astype(np.int32)  # any tokens at all
    for _ in range(3):
        nodes = tuple(rng.integers(0, target.num_vocab, 4).tolist())
        tree = Draft(nodes, (-1, 0, -1, 2))
        for row in model.rows(RowQuery(0, text, tree, (0, 1, 4))):
            assert row.shape == (target.num_vocab,)
            assert np.isfinite(row.max())
            assert np.exp(row.astype(np.float64)).sum() < 1.01
        text = np.concatenate([text[: length // 2 + 1], np.array(nodes[:2], dtype=np.int32)])


def test_a_token_that_the_draft_says_in_pieces_is_the_targets() -> None:
    target = Merged((*learned(b"cat", 2),))
    draft = Merged((*learned(b"at", 1),), first=5)
    model = translated(target, SaysOneText(draft, b"a cat sat. "), draft)
    (row,) = model.rows(RowQuery(0, tokens(target, "a "), Draft(), (0,)))
    assert target.piece(int(row.argmax())) == b"cat"


def test_a_token_that_the_target_says_in_pieces_is_read_from_one_row() -> None:
    target, draft = Merged(learned(b"inter", 4)), Merged(learned(b" international", 13), first=5)
    says = SaysOneText(draft, b"so international law. ")
    model = translated(target, says, draft)
    text = tokens(target, "so")
    nodes: list[int] = []
    for expected in (b" ", b"inter", b"n", b"a", b"t"):
        (row,) = model.rows(RowQuery(0, text, Draft.chain(nodes), (len(nodes),)))
        nodes.append(int(row.argmax()))
        assert target.piece(nodes[-1]) == expected


def test_halves_of_a_character_lead_to_the_other_half() -> None:
    target, draft = Merged(), Merged(learned("\U0001f600".encode(), 3), first=5)
    model = translated(target, SaysOneText(draft, "ha \U0001f600 ".encode()), draft)
    text = tokens(target, "ha ")
    nodes: list[int] = []
    for byte in "\U0001f600".encode():
        (row,) = model.rows(RowQuery(0, text, Draft.chain(nodes), (len(nodes),)))
        nodes.append(int(row.argmax()))
        assert target.piece(nodes[-1]) == bytes([byte])


def test_few_differences_are_a_renumbering_and_many_are_not() -> None:
    added = replace(LARGE, controls=(b"<begin>", b"<think>", b"<end>"))
    words = Correspondence(Spelling(added), Spelling(LARGE))
    assert words.is_renumbering
    assert words.of_target[added.numbers[b"<think>"]] == NONE
    model = RenumberedModel(TableModel(LARGE.num_vocab).load(), words, Masks(added).mask)
    text = np.array([added.numbers[b"<think>"], 5], dtype=np.int32)
    (row,) = model.rows(RowQuery(0, text, Draft(), (0,)))
    assert row[added.numbers[b"<think>"]] == -np.inf
    assert np.isfinite(row[5])
    assert not Correspondence(Spelling(LARGE), Spelling(SMALL)).is_renumbering


# --- drafts


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", DRAFTED)
@pytest.mark.parametrize("pair", PAIRS)
def test_every_methods_text_is_plain_decodings(
    name: str, pair: tuple[Merged, Merged], temperature: float
) -> None:
    target, draft = pair
    model = SaysOneText(target, TEXT, noise=3.0)
    params = SamplingParams(temperature=temperature, seed=3)
    prompt = target.tokenize("the internationalisation of", is_templated=False)
    drafter = InlineDrafter(translated(target, SaysOneText(draft, TEXT, noise=2.0), draft))
    length = 8 if name in ("stream", "auto") else 30  # they draft whole trees
    found, _ = decode(
        name,
        target=TableTarget(model),
        drafter=drafter,
        params=params,
        prompt=prompt,
        num_tokens=length,
    )
    if name == "sps-rejection" and temperature:
        assert len(found) == length
    else:
        assert found == plain_text(model, params, length, prompt)


@pytest.mark.parametrize("name", DRAFTED)
def test_a_slow_or_dying_drafter_changes_no_text(name: str) -> None:
    model = SaysOneText(LARGE, TEXT, noise=3.0)
    prompt = LARGE.tokenize("the internationalisation of", is_templated=False)
    expected = plain_text(model, SamplingParams(), 10, prompt)
    draft = SaysOneText(SMALL, TEXT, noise=2.0)
    for drafter in (
        SlowDrafter(translated(LARGE, draft, SMALL), 1, 2),
        DyingDrafter(translated(LARGE, draft, SMALL), 2),
    ):
        found, _ = decode(
            name, target=TableTarget(model), drafter=drafter, prompt=prompt, num_tokens=10
        )
        assert found == expected


@pytest.mark.parametrize("pair", PAIRS)
def test_what_the_draft_says_is_accepted(pair: tuple[Merged, Merged]) -> None:
    target, draft = pair
    model = SaysOneText(target, TEXT)
    prompt = target.tokenize("the internationalisation of", is_templated=False)
    drafter = InlineDrafter(translated(target, SaysOneText(draft, TEXT), draft))
    _, rounds = decode("sps:3", target=TableTarget(model), drafter=drafter, prompt=prompt)
    num_scored = sum(done.num_scored for done in rounds)
    num_accepted = sum(len(done.tokens) - 1 for done in rounds)
    assert num_accepted > 0.75 * num_scored
    assert num_scored > 20


@pytest.mark.slow
@settings(proven, max_examples=12)
@given(vocabularies(), vocabularies(), st.integers(0, 1000))
def test_random_vocabularies_change_no_text(target: Merged, draft: Merged, seed: int) -> None:
    model = TableModel(target.num_vocab, seed=seed)
    drafter = InlineDrafter(translated(target, TableModel(draft.num_vocab), draft))
    params = SamplingParams(temperature=0.8, seed=seed)
    prompt = target.tokenize("ab c", is_templated=False)
    found, _ = decode(
        "duo", target=TableTarget(model), drafter=drafter, params=params, num_tokens=8,
        prompt=prompt,
    )  # fmt: skip
    assert found == plain_text(model, params, 8, prompt)


def test_the_noise_is_the_targets_token_s() -> None:
    """Two vocabularies of the same tokens draft the same under the same seed."""
    draft = replace(LARGE, first=11)
    table = TableModel(LARGE.num_vocab, seed=4)

    class Rotated(TableDraftModel):
        def rows(self, query: RowQuery):
            words = Correspondence(Spelling(draft), Spelling(LARGE))
            own = replace(query, text=words.of_target[query.text])
            tree = tuple(words.of_target[list(query.draft.tokens)].tolist())
            own = replace(own, draft=Draft(tree, query.draft.parents))
            return [row[words.of_target] for row in super().rows(own)]

    words = Correspondence(Spelling(LARGE), Spelling(draft))
    models = (table.load(), RenumberedModel(Rotated(table), words, Masks(LARGE).mask))
    sampler = Sampler(SamplingParams(temperature=1.0, seed=8), num_prompt_tokens=3)
    request = DraftRequest(0, tokens(LARGE, "the cat "), Chain(6), sampler)
    one, other = (list(Chain(6).grow(model, request))[-1] for model in models)
    assert one.tokens == other.tokens


def test_drafts_follow_the_grammar_of_the_targets_tokens() -> None:
    model = translated(LARGE, TableModel(SMALL.num_vocab, noise=0.2), SMALL)
    mask = model.mask(Grammar("regex", "(the|then|there)( the| theatre)*"))
    sampler = Sampler(SamplingParams(temperature=1.0), num_prompt_tokens=2, mask=mask)
    text = tokens(LARGE, "a ")
    text = text[:2]
    sampler = replace(sampler, num_prompt_tokens=len(text))
    request = DraftRequest(0, text, Tree(2), sampler)
    tree = list(Tree(2, max_expanded=6).grow(model, request))[-1]
    assert len(tree) > 6
    for node in range(len(tree)):
        allowed = mask.allowed(np.array(tree.path_tokens(node)[:-1], dtype=np.int32))
        assert allowed is None or allowed[tree.tokens[node]]


# --- a process of its own


def test_a_drafters_process_translates() -> None:
    recipe = TranslatedRecipe(SaysOneText(SMALL, TEXT), _Known(LARGE))
    model = SaysOneText(LARGE, TEXT)
    prompt = LARGE.tokenize("the internationalisation of", is_templated=False)
    with ProcessDrafter(recipe, on_warning=pytest.fail) as drafter:
        drafter.wait_ready()
        found, rounds = decode(
            "sps:3", target=TableTarget(model), drafter=drafter, prompt=prompt, num_tokens=30
        )
    assert found == plain_text(model, SamplingParams(), 30, prompt)
    assert len(rounds) < 15


def test_vocabularies_without_a_common_token_are_refused() -> None:
    draft = SaysOneText(Merged(letters=b"xyz"), b"x")
    recipe = TranslatedRecipe(draft, _Known(Merged(letters=b"abc")))
    with pytest.raises(VocabularyMismatch, match="no token in common"):
        recipe.load()


def test_what_a_model_lacks_is_lacking() -> None:
    model = translated(LARGE, TableModel(SMALL.num_vocab), SMALL)
    assert model.traits == DraftTraits(has_masks=True)
    assert not model.widen(0, is_idle=True)


def test_a_slow_step_shows_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Merged((*learned(b"cat", 2),))
    draft = Merged((*learned(b"at", 1),), first=5)
    model = translated(target, SaysOneText(draft, b"a cat sat. "), draft)
    calls: list[int] = []
    object.__setattr__(model.model, "on_chunk", lambda: calls.append(1))
    monkeypatch.setattr(TableDraftModel, "traits", DraftTraits(reads_in_chunks=True))
    seconds = iter(range(100))
    monkeypatch.setattr("duodec.backends.translation.model.perf_counter", lambda: next(seconds))
    model.rows(RowQuery(0, tokens(target, "a "), Draft(), (0,)))
    assert calls


class _Known:
    """A recipe of a vocabulary that is there."""

    def __init__(self, vocabulary: Merged) -> None:
        self._vocabulary = vocabulary

    def load(self) -> Merged:
        return self._vocabulary
