"""Values of another type than a parameter's, or out of its range, end in a line that says so."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pytest
from fakes.decoding import Letters

from duodec.core.sampling.parameters import Parameter, check
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.loading.config import EngineConfig
from duodec.testing import TableModel, TableTarget

WHOLE = ("seed", "top_k", "max_tokens", "logprobs")
REAL = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
NO_NUMBERS: tuple[Any, ...] = (
    True, False, np.bool_(True), "1", b"1", [], [1], {}, {1: 2}, Decimal(1), 1j, object(), len,
    np.array(1), np.array([[1.0, 2.0], [3.0, 4.0]]),
)  # fmt: skip
NOT_WHOLE = (1.5, 2.5, 2.0, math.nan, math.inf, -math.inf, np.float32(1), Fraction(1, 2))
HUGE = (10**400, -(10**400), 10**5000, -(10**5000))


@dataclass
class Told:
    """What a value makes of it: an error of a line, or none."""

    words: str = ""

    @classmethod
    def of(cls, name: str, value: object) -> Told:
        try:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        except BadOption as error:
            return cls(str(error))
        return cls()


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [*NO_NUMBERS, *NOT_WHOLE, -1, *HUGE], ids=range(28))
def test_a_whole_number_is_nothing_else(name: str, value: object) -> None:
    if name == "max_tokens" and isinstance(value, int) and value > 1:
        return  # as many as the context holds
    told = Told.of(name, value).words
    assert told.startswith(f"{name} is ")
    assert "; write a " in told or "; use " in told, "the remedy"
    assert "\n" not in told
    assert len(told) < 200


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(
    "value", [*NO_NUMBERS, math.nan, math.inf, -math.inf, *HUGE, None], ids=range(23)
)
def test_a_number_is_nothing_else(name: str, value: object) -> None:
    told = Told.of(name, value).words
    assert told.startswith(f"{name} is ")
    assert "; write a " in told or "; use " in told, "the remedy"
    assert "\n" not in told
    assert len(told) < 200


@pytest.mark.parametrize("name", [*WHOLE, *REAL])
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64, int])
def test_numpys_numbers_become_pythons(name: str, kind: type) -> None:
    found = getattr(SamplingParams(**{name: kind(1)}), name)
    assert type(found) in (int, float)
    assert found == 1


def test_numpys_floats_and_fractions_are_numbers() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_p=Fraction(1, 2))  # type: ignore[arg-type]
    assert (params.temperature, params.top_p) == (0.5, 0.5)
    assert type(params.temperature) is type(params.top_p) is float


def test_the_same_text_comes_of_numpys_numbers() -> None:
    llm = LLM(TableTarget(TableModel(30, seed=7)), Letters(30), 100)
    ours = {"seed": 2**63 + 5, "max_tokens": 9, "top_k": 7, "logprobs": 1, "temperature": 1.0}
    kinds = (np.uint64, np.int64, np.int32, np.int8, np.float32)
    theirs = {name: kind(value) for kind, (name, value) in zip(kinds, ours.items(), strict=True)}
    first, second = llm.generate([[1, 2]] * 2, [ours, theirs])
    assert first.tokens == second.tokens
    assert first.logprobs == second.logprobs
    for choice in (1.5, True, "1"):
        with pytest.raises(BadOption, match=r"choice is .*; write a"):
            llm.stream([1, 2], choice=choice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": {"5": 1.0}}, "a token of logit_bias is '5'; write a number"),
        ({"logit_bias": {2.5: 1.0}}, "a token of logit_bias is 2.5; write a whole number"),
        ({"logit_bias": {True: 1.0}}, "a token of logit_bias is True; write a number"),
        ({"logit_bias": {5: "1"}}, "logit_bias of token 5 is '1'; write a number"),
        ({"logit_bias": {5: None}}, "logit_bias of token 5 is None; write a number"),
        ({"logit_bias": {5: 10**400}}, "logit_bias of token 5 is 1.*; write a smaller number"),
        ({"logit_bias": {5: math.nan}}, "logit_bias is .*; use tokens of the vocabulary"),
        ({"logit_bias": {5: 1e300}}, "logit_bias is .*; use tokens of the vocabulary"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias is .*; use tokens of the vocabulary"),
        ({"logit_bias": {2**40: 1.0}}, "logit_bias is .*; use tokens of the vocabulary"),
        ({"logit_bias": [5]}, "logit_bias is .*; use tokens of the vocabulary"),
        ({"logit_bias": None}, "logit_bias is None; use tokens of the vocabulary"),
        ({"stop": 5}, "stop is 5; give a text, or a list of texts"),
        ({"stop": np.array(1)}, r"stop is array\(1\); give a text, or a list of texts"),
        ({"stop": ["a", 5]}, "a stop string is 5; give a text"),
        ({"stop": [None]}, "a stop string is None; give a text"),
        ({"stop": b"ab"}, "a stop string is 97; give a text"),
        ({"grammar": "root ::= x"}, "grammar is 'root ::= x'; give a Grammar, or a JSON"),
    ],
)
def test_what_is_no_number_is_named_with_its_remedy_too(fields: Any, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        SamplingParams(**fields)


def test_biases_and_stops_are_pythons() -> None:
    params = SamplingParams(logit_bias={np.int64(5): np.float32(1), 6: -1e300}, stop=None)  # type: ignore[arg-type]
    assert params.logit_bias == {5: 1.0, 6: -math.inf}
    assert {*map(type, params.logit_bias)} == {int}
    assert params.stop == ()


def test_the_parameters_of_loading_are_checked_alike() -> None:
    for name in ("num_slots", "context", "grammar_bytes"):
        for value in (1.5, True, "2", -(10**5000)):
            with pytest.raises(BadOption, match=r" is .*; (write a|use )"):
                EngineConfig(**{name: value})  # type: ignore[arg-type]
        assert type(getattr(EngineConfig(**{name: np.int64(1 << 20)}), name)) is int  # type: ignore[arg-type]


@dataclass(frozen=True)
class Own:
    """A record of two numbers."""

    size: Annotated[int, Parameter("", ge=1)] = 1
    share: Annotated[float | None, Parameter("", ge=0)] = None


def test_none_is_no_number_where_the_field_cannot_be_none() -> None:
    check(Own())
    with pytest.raises(BadOption, match="size is None; write a number"):
        check(Own(size=None))  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="size is 0; use 1 or more"):
        check(Own(size=0))
