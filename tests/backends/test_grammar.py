"""Answers that must match a grammar: masks against a readable oracle, every method under them."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from threading import Thread, stack_size
from time import perf_counter

import numpy as np
import pytest
from fakes.decoding import (
    LETTERS,
    PROMPT,
    WITHOUT_HEADS,
    DyingDrafter,
    Letters,
    ListedTexts,
    Printable,
    SlowDrafter,
    proven,
)
from fakes.schemas import explosive
from hypothesis import given
from hypothesis import strategies as st

from duodec import LLM, Delta, Finished, SamplingParams
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.grammar import llguidance
from duodec.backends.grammar import trial as grammar_trial
from duodec.backends.grammar.library import Words
from duodec.backends.grammar.llguidance import Masks
from duodec.backends.grammar.trial import GrammarCompiler, GrammarTrial
from duodec.core.drafters import Drafter, DraftRequest
from duodec.core.rows import masked
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.sampling.sampler import Context, Sampler
from duodec.core.traits import DraftTraits
from duodec.drafting.plans import Chain
from duodec.errors import BadOption, GrammarsFull
from duodec.methods.registry import METHODS
from duodec.testing import InlineDrafter, TableDraftModel, TableModel, TableTarget

KEYED = [name for name in WITHOUT_HEADS if name != "sps-rejection"]

# --- masks


@dataclass(frozen=True)
class Syllables:
    """A small vocabulary whose tokens overlap; the last two are control tokens, of which one ends
    an answer."""

    pieces: tuple[bytes, ...] = (
        b"a", b"b", b"c", b"ab", b"abc", b"bc", b"ca", b"\xc3", b"\xa4", "ä".encode(), b"", b"",
    )  # fmt: skip

    @property
    def num_vocab(self) -> int:
        return len(self.pieces)

    def token_text(self, token: int) -> bytes:
        return self.pieces[token] or b"<%d>" % token

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def is_end(self, token: int) -> bool:
        return token == len(self.pieces) - 1


SYLLABLES = Syllables()
END = SYLLABLES.num_vocab - 1
PATTERNS = ("(ab|a)c{0,2}", "a{1,4}", "(abc|ä){1,2}", "[abc]{3}", "(a(b(c)?)?)?", "abcabc|abba")


@cache
def words(pattern: str) -> frozenset[bytes]:
    """Every word of up to six characters that matches."""
    found = ("".join(cs) for n in range(7) for cs in product("abcä", repeat=n))
    return frozenset(word.encode() for word in found if re.fullmatch(pattern, word))


def oracle(pattern: str, answer: list[int]) -> list[int] | None:
    """The tokens with which some word begins; None where there is none."""
    text = b"".join(map(SYLLABLES.piece, answer))
    if END in answer or END - 1 in answer or not any(w.startswith(text) for w in words(pattern)):
        return None
    return [
        token
        for token, piece in enumerate(SYLLABLES.pieces)
        if (piece and any(word.startswith(text + piece) for word in words(pattern)))
        or (token == END and text in words(pattern))
    ]


def allowed(mask: Mask, answer: list[int]) -> list[int] | None:
    found = mask.allowed(np.array(answer, dtype=np.int32))
    return None if found is None else np.flatnonzero(found).tolist()


MASKS = Masks(SYLLABLES)
ANSWERS = st.lists(st.integers(0, END), max_size=5)


@proven
@given(st.sampled_from(PATTERNS), st.lists(ANSWERS, min_size=1, max_size=12))
def test_a_mask_is_the_oracles_in_whatever_order_it_is_asked(pattern: str, answers) -> None:
    mask = MASKS.mask(Grammar("regex", pattern))
    for answer in answers:
        for end in range(len(answer) + 1):  # so that many begin a match
            assert allowed(mask, answer[:end]) == oracle(pattern, answer[:end])


def test_the_oracle_sees_ends_branches_and_breaks() -> None:
    assert oracle("(ab|a)c{0,2}", [0]) == [1, 2, 5, END]
    assert oracle("(ab|a)c{0,2}", [0, 1, 2, 2]) == [END]
    assert oracle("(ab|a)c{0,2}", [1]) is None
    assert oracle("(abc|ä){1,2}", [7]) == [8]  # half of a character


def test_masks_of_one_grammar_follow_their_own_answers() -> None:
    one, other = (MASKS.mask(Grammar("regex", "abcabc|abba")) for _ in range(2))
    assert allowed(one, [3]) == [1, 2, 6]
    assert allowed(other, []) == [0, 3, 4]
    assert allowed(one, [3, 1]) == [0]


def test_a_text_that_is_forced_may_be_cut_into_any_tokens() -> None:
    assert allowed(MASKS.mask(Grammar("regex", "abc")), []) == [0, 3, 4]


def test_where_no_token_goes_on_the_answer_ends() -> None:
    assert allowed(MASKS.mask(Grammar("regex", "az")), [0]) == [END]


def test_notations() -> None:
    assert allowed(MASKS.mask(Grammar("lark", 'start: "ab" | "c"')), []) == [0, 2, 3]
    letters = Letters(ends=True)
    schema = Grammar("json_schema", '{"type": "null"}')
    assert allowed(Masks(letters).mask(schema), []) == [LETTERS.find("n")]


BAD = {
    "no expression": Grammar("regex", "(a"),
    "not JSON": Grammar("json_schema", "{"),
    "no schema": Grammar("json_schema", '{"type": "objekt"}'),
    "a reference elsewhere": Grammar("json_schema", '{"$ref": "http://example.com/s"}'),
    "an unknown format": Grammar("json_schema", '{"type": "string", "format": "nope"}'),
    "no Lark": Grammar("lark", "begin: 'x'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_grammar_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(BadOption, match=r"cannot be used|is not JSON") as caught:
        MASKS.mask(BAD[name])
    assert "\n" not in str(caught.value)


def test_a_model_without_an_end_has_no_grammars() -> None:
    with pytest.raises(BadOption, match="no end token"):
        Masks(Letters(ends=False)).mask(Grammar("regex", "a"))


def test_a_dead_end_is_left_by_taking_another_way() -> None:
    mask = MASKS.mask(Grammar("regex", "az|bc"))
    for _ in range(3):
        assert allowed(mask, [0]) == [END]
        assert allowed(mask, [1]) == [2]


def wide(begin: str) -> Grammar:
    """Three thousand rules, all of them possible after ``begin``."""
    names = [f"r{i}" for i in range(3000)]
    rules = [f'{name}: "a" {name} | "a{"bc"[i % 2]}"' for i, name in enumerate(names)]
    return Grammar("lark", "\n".join([f"start: {begin}({' | '.join(names)})", *rules]))


def test_a_grammar_that_is_too_complex_is_refused_before_anything_is_computed() -> None:
    for _ in range(2):  # and is not remembered
        with pytest.raises(BadOption, match="too complex to follow"):
            MASKS.mask(wide(""))


def test_a_grammar_that_becomes_too_complex_fails_by_name_and_goes_on_failing() -> None:
    mask = MASKS.mask(wide('"bc" '))
    for _ in range(2):
        assert allowed(mask, []) == [1, 5]
        with pytest.raises(BadOption, match="too complex to follow"):
            allowed(mask, [5])


def test_a_row_is_cut_to_what_the_mask_knows() -> None:
    row = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    some = np.array([True, False])
    assert masked(row, some).tolist() == [1.0, -np.inf, -np.inf]
    assert masked(row[:1], some).tolist() == [1.0]
    assert masked(row, None) is row
    assert masked(row, ~some).tolist() == [-np.inf, 2.0, -np.inf]
    assert masked(row[:1], ~some).tolist() == [-np.inf]


@dataclass(frozen=True)
class Only:
    """A mask of few tokens."""

    tokens: tuple[int, ...]
    num_vocab: int
    ends: tuple[int, ...] = ()

    def close(self) -> None:
        """It holds nothing."""

    def allowed(self, answer: np.ndarray) -> np.ndarray:
        return np.isin(np.arange(self.num_vocab), self.tokens)


@pytest.mark.parametrize("tokens", [(7,), (7, 900)])
@pytest.mark.parametrize("top_k", [0, 40])
def test_few_tokens_of_a_large_row_are_drawn_among_themselves(tokens, top_k: int) -> None:
    row = np.random.default_rng(1).normal(0, 3, 1000).astype(np.float32)
    context = Context(np.array([1], dtype=np.int32))
    drawn = set()
    for seed in range(40):
        params = SamplingParams(temperature=2.0, top_k=top_k, top_p=0.99, seed=seed)
        sampler = Sampler(params, mask=Only(tokens, 1000))
        draw = sampler.draw(row, context)
        drawn.add(draw.token)
        assert (draw.margin == np.inf) == (len(tokens) == 1)
        distribution = sampler.distribution(row, context)
        assert distribution.tokens.tolist() == list(tokens)
        weights = np.exp(row[list(tokens)].astype(np.float64) / 2)
        assert distribution.probs == pytest.approx(weights / weights.sum(), rel=1e-6)
    assert drawn == set(tokens)


# --- methods

MODEL = TableModel(num_vocab=len(LETTERS) + 1, seed=7)
NOISY = replace(MODEL, noise=0.2)
SCHEMA = Grammar(
    "lark",
    r"""start: "a" item ("," item)* "."
item: /[bcd]{1,3}/ | /no (yes|ne)/
""",
)
WORDS = re.compile(r"a([bcd]{1,3}|no (yes|ne))(,([bcd]{1,3}|no (yes|ne)))*\.")


def engine_with(drafter, datastore=None) -> LLM:
    return LLM(TableTarget(MODEL), Letters(ends=True), 200, drafter, datastore)


def answer(engine: LLM, method: str, sampling: SamplingParams, num: int = 60) -> Finished:
    *_, last = engine.stream(list(PROMPT), replace(sampling, max_tokens=num), method=method)
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("method", KEYED)
def test_every_method_gives_plain_decodings_text_and_it_matches(
    method: str, temperature: float
) -> None:
    num_ended = num_accepted = 0
    for seed in range(4):
        sampling = SamplingParams(
            temperature=temperature, top_p=0.9, repetition_penalty=1.1, grammar=SCHEMA, seed=seed
        )
        plain = answer(engine_with(None), "ar", sampling)
        datastore = ListedTexts([[*PROMPT, *plain.tokens]])
        drafter = InlineDrafter(NOISY.load())
        found = answer(engine_with(drafter, datastore), method, sampling)
        assert found.tokens == plain.tokens
        num_ended += found.finish_reason == "stop"
        num_accepted += found.stats.num_accepted_tokens
        if found.finish_reason == "stop":
            assert WORDS.fullmatch(found.text)
    assert num_ended > 0
    if METHODS[method]().needs_draft_model or method == "rest":
        assert num_accepted > 0


def test_an_answer_ends_when_its_grammar_does() -> None:
    sampling = SamplingParams(grammar=Grammar("regex", "[a-c]{5}"))
    found = answer(engine_with(None), "ar", sampling)
    assert found.finish_reason == "stop"
    assert re.fullmatch("[a-c]{5}", found.text)


def test_the_rejection_rule_keeps_the_grammar() -> None:
    for seed in range(6):
        sampling = SamplingParams(temperature=1.0, grammar=SCHEMA, seed=seed)
        drafter = InlineDrafter(NOISY.load())
        found = answer(engine_with(drafter), "sps-rejection", sampling)
        if found.finish_reason == "stop":
            assert WORDS.fullmatch(found.text)


def test_drafts_without_the_mask_are_refused_and_change_nothing() -> None:
    """A draft model that does not know its vocabulary's texts."""
    sampling = SamplingParams(temperature=0.8, grammar=SCHEMA, seed=3)

    found = answer(engine_with(Unmasked(MODEL.load())), "sps", sampling)
    assert found.tokens == answer(engine_with(None), "ar", sampling).tokens


DRAFTERS = {
    "never seen": lambda: SlowDrafter(NOISY.load(), 0, 0),
    "waited for in vain": lambda: SlowDrafter(NOISY.load(), 0, 1),
    "dead at once": lambda: DyingDrafter(NOISY.load(), 0),
    "dies soon": lambda: DyingDrafter(NOISY.load(), 5),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("method", [name for name in KEYED if METHODS[name]().needs_draft_model])
def test_a_slow_or_dead_drafter_changes_no_text_of_a_grammar(method: str, drafter: str) -> None:
    sampling = SamplingParams(temperature=0.8, grammar=SCHEMA, seed=2)
    found = answer(engine_with(DRAFTERS[drafter]()), method, sampling)
    assert found.tokens == answer(engine_with(None), "ar", sampling).tokens


# --- a grammar that bans leave nothing of

ANY_END = MODEL.num_vocab - 1
HALF_WAY = Grammar("regex", "a[bcd]{2}(xy|b{9})")
ENDING = Grammar("regex", "a[bcd]{2,4}")


def banned(*tokens: int) -> dict[int, float]:
    return dict.fromkeys(tokens, -np.inf)


def drafted_for(wanted: Sequence[int]) -> list[LLM]:
    """Engines that draft what plain decoding gives and go on with what no grammar allows."""
    known = ListedTexts([[*PROMPT, *wanted, *range(12)], [*PROMPT, *wanted, ANY_END, *range(9)]])
    return [
        engine_with(InlineDrafter(NOISY.load()), known),
        engine_with(InlineDrafter(MODEL.load()), known),
        engine_with(Unmasked(MODEL.load()), known),
    ]


class Unmasked(InlineDrafter):
    """A draft model that does not know its vocabulary's texts, nor what is banned."""

    def submit(self, request) -> None:
        plain = replace(request.sampler, mask=None)
        plain = replace(plain, params=replace(plain.params, logit_bias={}))
        super().submit(replace(request, sampler=plain))


def refused(engine: LLM, method: str, sampling: SamplingParams) -> tuple[str, str]:
    """The text that came before it was refused, and why."""
    said: list[str] = []

    def listen() -> None:
        own = replace(sampling, max_tokens=60)
        events = engine.stream(list(PROMPT), own, method=method)
        said.extend(event.text for event in events if isinstance(event, Delta))

    with pytest.raises(BadOption) as caught:
        listen()
    return "".join(said), str(caught.value)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", WITHOUT_HEADS)
def test_where_bans_leave_nothing_of_a_grammar_a_text_is_refused(
    method: str, temperature: float
) -> None:
    bans = banned(*map(LETTERS.find, "bx"))
    for seed in range(3):
        sampling = SamplingParams(
            temperature=temperature, grammar=HALF_WAY, logit_bias=bans, seed=seed
        )
        plain = refused(engine_with(None), "ar", sampling)
        assert plain[0] == "" or re.fullmatch("a[cd]{0,2}", plain[0])
        assert "token 4 of the completion cannot be drawn: every token that" in plain[1]
        for engine in drafted_for([LETTERS.find(letter) for letter in "acd"]):
            assert refused(engine, method, sampling)[1] == plain[1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", WITHOUT_HEADS)
def test_a_text_ends_with_its_grammar_though_its_end_is_banned(
    method: str, temperature: float
) -> None:
    ends = [token for token in range(MODEL.num_vocab) if Letters(ends=True).is_end(token)]
    for seed in range(3):
        sampling = SamplingParams(
            temperature=temperature, grammar=ENDING, logit_bias=banned(*ends), seed=seed
        )
        plain = answer(engine_with(None), "ar", sampling)
        assert re.fullmatch("a[bcd]{4}", plain.text)
        for engine in drafted_for(plain.tokens):
            found = answer(engine, method, sampling)
            assert found.finish_reason == "stop"
            assert re.fullmatch("a[bcd]{4}", found.text)
            if method != "sps-rejection":
                assert found.tokens == plain.tokens


@pytest.mark.parametrize("method", WITHOUT_HEADS)
def test_a_text_that_ends_before_knows_nothing_of_it(method: str) -> None:
    """By a token of its own, beyond which drafts go on."""
    bans = banned(*map(LETTERS.find, "bx"))
    for last in (LETTERS.find("c"), LETTERS.find("d")):
        sampling = SamplingParams(
            grammar=Grammar("regex", "a[cd](xy|b{9})"), logit_bias=bans, stop_token_ids=(last,)
        )
        sampling = replace(sampling, logit_bias={**bans, last: 99.0})
        plain = answer(engine_with(None), "ar", sampling)
        assert plain.tokens == (LETTERS.find("a"), last)
        for engine in drafted_for(plain.tokens):
            assert answer(engine, method, sampling).tokens == plain.tokens


def test_a_vocabulary_is_read_once_for_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = engine_with(None).loaded
    loaded = replace(loaded, grammars=GrammarCompiler(loaded.tokenizer))
    LLM(loaded).check(list(PROMPT), SamplingParams(grammar=Grammar("regex", "a")))
    monkeypatch.setattr(llguidance, "_read", lambda vocabulary: pytest.fail("read again"))
    LLM(loaded).check(list(PROMPT), SamplingParams(grammar=SCHEMA))


def test_bad_grammars_are_refused_before_anything_is_computed() -> None:
    engine = engine_with(None)
    sampling = SamplingParams(grammar=BAD["no expression"])
    with pytest.raises(BadOption, match="regular expression"):
        engine.check(list(PROMPT), sampling)
    with pytest.raises(BadOption, match="regular expression"):
        answer(engine, "ar", sampling)


# --- the drafter's own mask


@dataclass(frozen=True)
class Spelling:
    """A recipe, imported by the child: a table that knows its letters."""

    def load(self) -> TableDraftModel:
        return _Spelling(MODEL)


class _Spelling(TableDraftModel):
    traits = DraftTraits(has_masks=True)

    def mask(self, grammar: Grammar) -> Mask:
        return Masks(Letters(ends=True)).mask(grammar)


def drafted(drafter: Drafter, sampler: Sampler) -> tuple[int, ...]:
    """A chain of eight after the prompt, once it is complete."""
    text = np.array(PROMPT, dtype=np.int32)
    drafter.submit(DraftRequest(0, text, Chain(8), sampler))
    end_s = perf_counter() + 20
    while not (found := drafter.poll(0, 0.05)).is_complete:
        assert perf_counter() < end_s
    return found.draft.tokens


def test_a_drafter_in_its_own_process_follows_each_answers_grammar() -> None:
    masks = Masks(Letters(ends=True))
    with ProcessDrafter(Spelling(), on_warning=pytest.fail) as drafter:
        drafter.wait_ready()
        for pattern in ("[abc]{40}", "[def]{40}", "(abc|[x-z]){4}"):
            grammar = Grammar("regex", pattern)
            sampling = SamplingParams(temperature=0.8, grammar=grammar, seed=1)
            sampler = Sampler(sampling, 0, len(PROMPT), masks.mask(grammar))
            found = drafted(drafter, sampler)
            assert found == drafted(InlineDrafter(MODEL.load()), sampler)
            word = "".join(LETTERS[token] for token in found if token < len(LETTERS))
            assert re.match(pattern.replace("{40}", "{8}").replace("{4}", "{2}"), word)
        assert drafter.restarts == 0


def test_a_grammar_that_the_drafter_cannot_follow_costs_drafts_only() -> None:
    sampling = SamplingParams(temperature=0.8, grammar=SCHEMA, seed=1)
    with ProcessDrafter(MODEL, on_warning=pytest.fail) as drafter:
        drafter.wait_ready()
        found = answer(engine_with(drafter), "sps", sampling)
    assert found.tokens == answer(engine_with(None), "ar", sampling).tokens


def test_samplers_travel_without_their_masks() -> None:
    import pickle

    sampler = Sampler(SamplingParams(grammar=SCHEMA), 1, 2, Masks(Letters(ends=True)).mask(SCHEMA))
    there = pickle.loads(pickle.dumps(sampler))
    assert there == sampler
    assert there.mask is None
    assert sampler.mask is not None


def test_json_of_a_schema_is_read_back() -> None:
    """What a mask lets through, a validator accepts: random walks along the mask."""
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    vocabulary = Printable()
    mask = Masks(vocabulary).mask(Grammar("json_schema", json.dumps(schema)))
    rng = np.random.default_rng(0)
    for _ in range(20):
        tokens: list[int] = []
        while not tokens or not vocabulary.is_end(tokens[-1]):
            tokens.append(int(rng.choice(allowed(mask, tokens) or [])))
            assert len(tokens) < 500
        value = json.loads(b"".join(map(vocabulary.piece, tokens)))
        assert value["a"] in ("x", "yy")
        assert value["b"] in (True, False)
        assert set(value) == {"a", "b"}


def test_the_answer_is_what_follows_the_prompt() -> None:
    context = Context(np.array([5, 6, 7], dtype=np.int32), (8, 9))
    assert context.completion(2).tolist() == [7, 8, 9]


# --- what a grammar may cost


def test_the_library_refuses_a_schema_that_would_take_the_process_down() -> None:
    letters = Letters(ends=True)
    llm = LLM(TableTarget(TableModel(num_vocab=letters.num_vocab, seed=7)), letters, 100)
    llm.grammars.trial = GrammarTrial(num_bytes=64 << 20)
    params = SamplingParams(grammar=Grammar("json_schema", json.dumps(explosive())), max_tokens=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Masks, "compile", lambda *_: pytest.fail("it is compiled in this process"))
        with pytest.raises(BadOption, match=r"than (64 MB|2 s) to compile; simplify it"):
            llm.generate("ab", params)
    assert llm.generate("ab", replace(params, grammar=Grammar("regex", "[a-c]+")))[0].tokens


LETTERS_WORDS = Masks(Letters(ends=True)).words


def test_a_trial_is_a_fork_of_one_process_that_may_die() -> None:
    trial = GrammarTrial()
    trial(Grammar("regex", "a"), LETTERS_WORDS)
    helper = grammar_trial._IDLE[-1]
    child = helper._child
    assert child is not None
    trial(Grammar("regex", "ab"), LETTERS_WORDS)
    assert helper._child is child
    child.kill()
    child.wait()
    trial(Grammar("regex", "abc"), LETTERS_WORDS)
    assert helper._child is not child


def test_a_trial_knows_the_models_own_tokens_and_no_others() -> None:
    trial = GrammarTrial(seconds=60.0)  # on a busy machine the first takes more than two
    words = Words((b"a", b"<|im_end|>", b"<end>"), (1, 2), (2,))
    trial(Grammar("lark", "start: <|im_end|>"), words)
    trial(Grammar("lark", "start: <[1]>"), words)
    for unknown in ("<|im_start|>", "<[7]>", "nothing"):
        with pytest.raises(BadOption, match="cannot be used"):
            trial(Grammar("lark", f"start: {unknown}"), words)
    with pytest.raises(BadOption, match="cannot be used"):  # of another vocabulary
        trial(Grammar("lark", "start: <|im_end|>"), LETTERS_WORDS)


def hidden(name: str, other: str) -> Grammar:
    """A costly schema under ``name``, and a harmless one under ``other``, which is the later one
    if both names become the same."""
    slow = {"type": "array", "items": explosive()}
    return Grammar("json_schema", json.dumps({"properties": {name: slow, other: True}}))


@pytest.mark.parametrize(
    "names",
    [
        ("<[0]>", "<[1]>"), ("\\u003c[0]>", "<[1]>"), ("\n", "\\n"),
        *(
            pytest.param(names, marks=pytest.mark.slow)
            for names in (
                ("<[99]>", "<[256]>"), ("<|a|>", "<|b|>"), ("<[0-9]>", "<[1-9]>"), ("<a>", "<b>"),
                ("<[*]>", "<[^1]>"), ("\u00e9", "e\u0301"), ("%json {}", "start:"),
                ("special token", "x"), ("a\x00", "a"),
            )
        ),
    ],
)  # fmt: skip
def test_no_text_of_a_client_is_rewritten_in_a_trial(names: tuple[str, str]) -> None:
    """Placeholders, escapes and notation: each schema is tried as it is, the second time too."""
    trial = GrammarTrial(0.1)
    for grammar in (hidden(*names), hidden(*names), hidden(*reversed(names))):
        with pytest.raises(BadOption, match=r"cannot be used|to compile"):
            trial(grammar, LETTERS_WORDS)


def test_what_is_tried_is_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text on the same vocabulary within the same limits."""
    tried, compiled = [], []
    asked, here = grammar_trial._asked, llguidance.grammar_library.compiled
    monkeypatch.setattr(
        grammar_trial,
        "_asked",
        lambda h, trial, w: (tried.append(trial.source), asked(h, trial, w))[1],
    )
    monkeypatch.setattr(
        llguidance.grammar_library, "compiled",
        lambda tokens, source: (compiled.append(source), here(tokens, source))[1],
    )  # fmt: skip
    letters = Letters(ends=True)
    llm = LLM(TableTarget(TableModel(num_vocab=letters.num_vocab, seed=7)), letters, 100)
    for source in (
        '{"enum": ["<[0]>", "<[1]>"]}',
        '{"type": "object", "properties": {"<[3]>": {}}}',
    ):
        llm.check([1], SamplingParams(grammar=Grammar("json_schema", source)))
    llm.check([1], SamplingParams(grammar=Grammar("regex", r"<\[0\]>")))
    assert tried == compiled
    assert len(tried) == 3


def chain(length: int) -> Grammar:
    """Definitions, each of which refers to the next."""
    rules = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(length)
    }
    return Grammar(
        "json_schema", json.dumps({"$defs": {**rules, f"d{length}": {}}, "$ref": "#/$defs/d0"})
    )


def test_what_a_trial_lets_pass_leaves_the_stack_alone() -> None:
    """A stack that overflows ends the process; what passes narrowly has four times as much here."""
    trial, passed, refused = GrammarTrial(), 100, 2000
    with pytest.raises(BadOption, match="nested too deeply"):
        trial(chain(refused), LETTERS_WORDS)
    while refused - passed > 4:
        middle = (passed + refused) // 2
        try:
            trial(chain(middle), LETTERS_WORDS)
            passed = middle
        except BadOption:
            refused = middle
    before = stack_size(512 << 10)
    try:  # as threads have it on some systems
        found = Thread(target=lambda: masks.append(Masks(Letters(ends=True)).mask(chain(passed))))
        masks: list[Mask] = []
        found.start()
        found.join()
    finally:
        stack_size(before)
    assert allowed(masks[0], []) is not None


@pytest.mark.parametrize(
    "source",
    [
        json.dumps({"enum": [f"v{i:06}" for i in range(30_000)]}),
        "[" * 5000 + "]" * 5000, '{"not": ' * 2000 + "{}" + "}" * 2000,
        '{"minimum": 1e400}', '{"minimum": NaN}', '{"const": Infinity}',
        '{"const": ' + "9" * 5000 + "}",
        '{"const": "\\ud800"}', '{"const": "\udc80"}', "\udc80", "", "\x00", "null", "3", '"<[0]>"',
    ],
)  # fmt: skip
def test_whatever_a_schema_holds_is_refused_in_one_line_or_compiled(source: str) -> None:
    trial, masks = GrammarTrial(), Masks(Letters(ends=True))
    for kind in ("json_schema", "regex", "lark"):
        grammar = Grammar(kind, source)
        said = ""
        try:
            masks.mask(grammar, trial(grammar, masks.words))
        except BadOption as error:
            said = str(error)
        assert "\n" not in said
        assert len(said) < 700


# --- what grammars may take together


def big(i: int, num_names: int = 400) -> Grammar:
    names = [f"n{i}-{n}" for n in range(num_names)]
    schema = {"properties": {name: {"type": "string"} for name in names}, "required": names}
    return Grammar("json_schema", json.dumps({**schema, "additionalProperties": False}))


def test_grammars_are_weighed_and_the_oldest_are_forgotten() -> None:
    trial, letters = GrammarTrial(), Letters(ends=True)
    weight = trial(big(0), Masks(letters).words)
    assert weight > 1 << 20
    masks = Masks(letters, 4 * weight)
    for i in range(12):
        masks.mask(big(i), trial(big(i), masks.words))
        assert masks.num_bytes <= 4 * weight
    assert not masks.knows(big(0))
    assert masks.knows(big(11))


def test_grammars_in_use_are_counted_until_their_completions_end() -> None:
    trial, letters = GrammarTrial(), Letters(ends=True)
    weight = trial(big(0), Masks(letters).words)
    masks = Masks(letters, 4 * weight)
    held = [masks.mask(big(i), weight) for i in range(3)]
    with pytest.raises(GrammarsFull, match="ask again"):
        masks.mask(big(3), 2 * weight)
    assert masks.num_bytes < 4 * weight
    held.clear()
    masks.mask(big(9), weight)


def test_a_mask_that_is_closed_holds_nothing_and_allows_nothing() -> None:
    masks = Masks(Letters(ends=True), 1)
    mask = masks.mask(Grammar("regex", "a+"), 2 << 20)
    masks._known.clear()
    assert masks.num_bytes > 0
    for _ in range(2):
        mask.close()
    assert masks.num_bytes == 0
    assert mask.allowed(np.empty(0, np.int32)) is None


def test_a_grammar_larger_than_the_bound_is_served_alone() -> None:
    masks = Masks(Letters(ends=True), 1 << 20)
    mask = masks.mask(Grammar("regex", "a+"), 2 << 20)
    with pytest.raises(GrammarsFull):
        masks.mask(Grammar("regex", "b+"), 1)
    del mask
    assert masks.mask(Grammar("regex", "b+"), 2 << 20).allowed(np.empty(0, np.int32)) is not None


def test_a_completion_that_ended_holds_no_grammar() -> None:
    letters = Letters(ends=True)
    llm = LLM(TableTarget(TableModel(num_vocab=letters.num_vocab, seed=7)), letters, 100)
    for i in range(4):
        llm.generate(
            "ab", SamplingParams(grammar=Grammar("regex", f"[a-c]{{{i + 1}}}"), max_tokens=9)
        )
    masks = llm.grammars.masks
    assert masks is not None
    masks._known.clear()
    gc.collect()
    assert masks.num_bytes == 0
