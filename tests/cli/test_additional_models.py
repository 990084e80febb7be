"""The other models of a server, as the command line names them."""

from __future__ import annotations

from pathlib import Path

import pytest

import duodec
from duodec.cli.commands.serve import additional_models
from duodec.errors import BadOption, ModelNotFound
from duodec.loading.config import EngineConfig

DRAFT = Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf"
FIRST = EngineConfig(
    target="smollm2", draft="other.gguf", context=300, threads=1, gpu_layers=3, cache_type_k="q8_0",
    fast=True, num_slots=4, cpu_moe=True, override_tensor=("exps=CPU",),
)  # fmt: skip


def test_a_model_shares_the_machine_and_has_options_of_its_own() -> None:
    given = [
        "coder=qwen2.5-coder-0.5b -c 100 --gpu-layers 0 --cache_type_v q4_0 -ot 'a b=CPU' -td 1",
        f"{DRAFT} --draft none",
    ]
    coder, other = additional_models(given, FIRST, "smollm2").items()
    assert coder == ("coder", EngineConfig(
        target="qwen2.5-coder-0.5b", draft="auto", context=100, threads=1, draft_threads=1,
        gpu_layers=0, cache_type_v="q4_0", fast=True, num_slots=4, override_tensor=("a b=CPU",),
        datastore="auto",
    ))  # fmt: skip
    assert other[0] == DRAFT.name
    assert (other[1].target, other[1].draft, other[1].context) == (str(DRAFT), "none", None)
    assert (other[1].gpu_layers, other[1].cpu_moe, other[1].threads) == (-1, False, 1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("smollm2", "'smollm2' is taken; write ANOTHER=smollm2"),
        ("a=qwen2.5-coder-0.5b --contxt 5", "No such option: --contxt"),
        ("a=qwen2.5-coder-0.5b -c 0", "context is 0; use 1 or more"),
        ("a=qwen2.5-coder-0.5b -c many", "-c.*many"),
        ("a=qwen2.5-coder-0.5b 'x", "name a model"),
        ("a=qwen2.5-coder-0.5b extra", "extra"),
        ("", "name a model"),
        ("a=qwen2.5-coder-0.5b -h", "-h"),
    ],
)
def test_what_is_wrong_is_told_with_the_words(words: str, told: str) -> None:
    with pytest.raises(BadOption, match=f"also is '.*{told}") as raised:
        additional_models([words], FIRST, "smollm2")
    assert words[:20] in str(raised.value)


@pytest.mark.parametrize("words", ["a=nosuch.gguf", "a=", "nosuch"])
def test_a_model_that_nobody_has_is_refused_before_anything_is_loaded(words: str) -> None:
    with pytest.raises(ModelNotFound, match=r"no model|no such file"):
        additional_models([words], FIRST, "smollm2")


def test_a_name_is_given_once() -> None:
    with pytest.raises(BadOption, match="'a' is taken"):
        additional_models(["a=qwen2.5-coder-0.5b", "a=smollm2"], FIRST, "first")
