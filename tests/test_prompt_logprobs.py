"""The logprobs of a prompt are those that decoding gives, whatever the method and the company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.decoding import LETTERS, WITHOUT_HEADS, Letters

import duodec
from duodec import LLM, Completion, SamplingParams
from duodec.errors import BadOption
from duodec.testing import InlineDrafter, TableModel, TableTarget

TABLE = TableModel(num_vocab=len(LETTERS) + 1, seed=7)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2], [6]]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=120, logprobs=3, logit_bias={26: -100})
SCORING = SamplingParams(prompt_logprobs=3, max_tokens=0)
SMALL = Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf"


def llm(num_slots: int = 1, num_chunk: int | None = None) -> LLM:
    drafter = InlineDrafter(replace(TABLE, noise=0.2).load())
    model = LLM(TableTarget(TABLE), Letters(), 300, drafter, num_slots=num_slots)
    model.scheduler.num_chunk = num_chunk
    return model


def check(completion: Completion, prompt: list[int], scored: Completion) -> None:
    """The scored text is the prompt and its completion."""
    known = scored.prompt_logprobs
    assert known is not None
    assert completion.logprobs
    assert known[0] is None
    assert [one.token for one in known if one] == [*prompt[1:], *completion.tokens]
    assert [replace(one, rank=None) for one in known[len(prompt) :] if one] == [
        *completion.logprobs
    ]
    for one in known[1:]:
        assert one is not None
        assert one.rank is not None
        ranked = [token for token, _ in one.tops]
        assert (one.token in ranked) is (one.rank <= len(ranked))
        if one.rank <= len(ranked):
            assert ranked[one.rank - 1] == one.token


@pytest.mark.parametrize("num_chunk", [None, 7])
@pytest.mark.parametrize("num_slots", [1, 3])
def test_they_are_the_rows_of_decoding(num_slots: int, num_chunk: int | None) -> None:
    model = llm(num_slots, num_chunk)
    completions = model.generate(PROMPTS, PARAMS)
    texts = [[*p, *c.tokens] for p, c in zip(PROMPTS, completions, strict=True)]
    for scored, completion, prompt in zip(
        model.generate(texts, SCORING), completions, PROMPTS, strict=True
    ):
        check(completion, prompt, scored)
        assert (scored.tokens, scored.text, scored.finish_reason) == ((), "", "length")
        assert completion.prompt_logprobs is None


@pytest.mark.parametrize("name", [name for name in WITHOUT_HEADS if name != "rest"])
def test_what_follows_is_the_same_with_them(name: str) -> None:
    (plain,) = llm().generate([PROMPTS[0]], PARAMS, method=name)
    both = replace(PARAMS, prompt_logprobs=0)
    (scored,) = llm().generate([PROMPTS[0]], both, method=name)
    assert scored.tokens == plain.tokens
    assert scored.logprobs == plain.logprobs
    assert [one.token for one in scored.prompt_logprobs or () if one] == PROMPTS[0][1:]


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 65}, {"prompt_logprobs": -1},
                                    {"max_tokens": 0}])  # fmt: skip
def test_what_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(BadOption, match=next(iter(fields))):
        SamplingParams(**fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def real() -> Iterator[LLM]:
    pytest.importorskip("llama_cpp")
    with LLM.load(str(SMALL), None, context=512, num_slots=2, threads=1) as model:
        yield model


def test_they_are_bitwise_those_of_a_real_model(real: LLM) -> None:
    prompts = [real.tokens_of(text) for text in ("The capital of France is", "Once upon a time")]
    params = SamplingParams(
        max_tokens=30, logprobs=5, temperature=0.7, seed=5,
        logit_bias={real.loaded.tokenizer.eos: -100.0},
    )  # fmt: skip
    completions = real.generate(prompts, params)
    texts = [[*p, *c.tokens] for p, c in zip(prompts, completions, strict=True)]
    scored = real.generate(texts, SamplingParams(max_tokens=0, prompt_logprobs=5))
    again = real.generate(texts[:1], SamplingParams(max_tokens=0, prompt_logprobs=5))
    assert again[0].prompt_logprobs == scored[0].prompt_logprobs
    for completion, prompt, one in zip(completions, prompts, scored, strict=True):
        assert len(completion.tokens) == 30
        check(completion, prompt, one)
