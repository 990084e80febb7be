"""Every family of docs/models.md: each method's text is that of plain decoding, and that is
llama.cpp's own. The models are tiny and random; their drafts are right at times."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from fakes import ROOT
from fakes.families import FAMILIES, write_family

from duodec import LLM, SamplingParams
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.llamacpp.target.chains import MAX_ROWS
from duodec.backends.llamacpp.target.recurrent import NUM_SNAPSHOTS, LlamaRecurrent
from duodec.core.events import Finished
from duodec.errors import BadOption
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.methods.registry import METHODS

NUM_TOKENS = 120
TEMPERATURES = (0.0, 0.8)
PROMPTS = ("The cat sat on the mat", "One two three one two", "Why is it so?", "a b c a b c")
KEYED = [
    name
    for name, kind in METHODS.items()
    if name not in ("ar", "sps-rejection", "rest") and not kind.needs_heads
]
BRANCHED = ("lookahead", "recycling", "sps-rejection")
TOGETHER = ("auto", "duo", "stream")


# a plain one, compressed caches, sinks and windows, and a hybrid
QUICK = ("Llama", "DeepSeek 2", "gpt-oss", "Qwen 3.5")


@pytest.fixture(
    scope="module",
    params=[
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES
    ],
)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """Its draft is the target with some noise."""
    folder = tmp_path_factory.mktemp("models")
    path = write_family(folder / "target.gguf", family)
    draft = write_family(folder / "draft.gguf", family, noise=0.02)
    with LLM.load(
        str(path), draft=str(draft), context=512, num_slots=len(PROMPTS), threads=1, draft_threads=1
    ) as llm:
        yield llm


def params(llm: LLM, temperature: float) -> SamplingParams:
    """Without the tokens that end a text."""
    return SamplingParams(
        max_tokens=NUM_TOKENS, temperature=temperature, seed=7,
        logit_bias=dict.fromkeys(ends(llm), -100.0),
    )  # fmt: skip


def ends(llm: LLM) -> list[int]:
    return list(llm.end_tokens)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> dict[tuple[float, str], tuple[int, ...]]:
    """What plain decoding says, one request at a time."""
    return {
        (t, prompt): llm.generate(prompt, params(llm, t), method="ar")[0].tokens
        for t in TEMPERATURES
        for prompt in PROMPTS
    }


Texts = dict[tuple[float, str], tuple[int, ...]]


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_every_method_has_the_text_of_plain_decoding(
    family: str, llm: LLM, expected: Texts, temperature: float
) -> None:
    drafts = FAMILIES[family].drafts
    num_saved = num_refused = 0
    most = getattr(llm.loaded.target, "max_draft", MAX_ROWS)
    differ = []
    for name in KEYED:
        if name in BRANCHED and drafts != "trees":
            continue
        (one,) = llm.generate(PROMPTS[0], params(llm, temperature), method=name)
        if one.tokens != expected[temperature, PROMPTS[0]]:
            differ.append((name, 1))
        num_saved += NUM_TOKENS - len(one.stats.rounds)  # by drafts that were accepted
        num_refused += one.stats.num_draft_tokens - one.stats.num_accepted_tokens
        assert max(done.num_scored for done in one.stats.rounds) <= most, name
        if name in TOGETHER:
            found = llm.generate(list(PROMPTS), params(llm, temperature), method=name)
            if [c.tokens for c in found] != [expected[temperature, prompt] for prompt in PROMPTS]:
                differ.append((name, len(PROMPTS)))
    assert not differ, "method and requests whose texts differ"
    assert num_saved > 0, "forward passes"
    assert num_refused > NUM_TOKENS


def test_a_killed_drafter_changes_no_text(family: str, llm: LLM, expected: Texts) -> None:
    drafter = llm.loaded.drafter
    assert isinstance(drafter, ProcessDrafter)
    killed = 0
    for i, event in enumerate(llm.stream(PROMPTS[1], params(llm, 0.8), method="duo")):
        if isinstance(event, Finished):
            assert killed
            assert event.tokens == expected[0.8, PROMPTS[1]]
        elif i > 3 and not killed and drafter.pid:
            killed = drafter.pid
            os.kill(killed, signal.SIGKILL)


def test_drafts_are_trees_or_chains(family: str, llm: LLM) -> None:
    target = llm.loaded.target
    if target.traits.is_recurrent:
        assert not target.traits.has_branches
        for name in BRANCHED:
            with pytest.raises(BadOption, match="branches"):
                llm.method(name)
        assert target.traits.max_draft == NUM_SNAPSHOTS
        assert FAMILIES[family].drafts == "chains"
    else:
        assert target.traits.has_branches
        assert FAMILIES[family].drafts == "trees"


def test_plain_decoding_is_llama_cpps_own(family: str, tmp_path: Path) -> None:
    """By its own high-level interface, which reads the text at once. Of two tokens that are as
    likely either may be chosen; a mixture may route some tokens to another expert."""
    path = write_family(tmp_path / "target.gguf", family, kind="F32")
    with LLM.load(str(path), draft=None, context=512, threads=1) as llm:
        prompt, banned = llm.tokens_of(PROMPTS[0]), ends(llm)
        text = list(llm.generate(PROMPTS[0], params(llm, 0.0), method="ar")[0].tokens)
    peer = llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, logits_all=True, verbose=False)
    peer.eval([*prompt, *text[:-1]])
    rows = peer.scores[len(prompt) - 1 : len(prompt) - 1 + len(text)].copy()
    peer.close()
    rows[:, banned] = -np.inf
    short = rows.max(axis=1) - rows[range(len(text)), text]
    num_others = np.count_nonzero(short > 0.01 * rows[np.isfinite(rows)].std())
    assert len(text) == NUM_TOKENS
    has_experts = "expert_count" in FAMILIES[family].fields
    assert num_others <= (NUM_TOKENS / 10 if has_experts else 0)


def test_the_documentation_has_a_row_for_each_family() -> None:
    text = (ROOT / "docs" / "models.md").read_text("utf-8").partition("\n## Safetensors")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("| family")
    ]
    assert [
        (name, kind.split("`")[1], drafts, told, left) for name, _, kind, drafts, told, left in rows
    ] == [
        (name, family.architecture, family.drafts, "exact", ", ".join(family.left))
        for name, family in FAMILIES.items()
    ]


def test_a_target_that_takes_nothing_back_says_that_it_decodes_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaRecurrent, "put_back", lambda self, slot, checkpoint: False)
    path = write_family(tmp_path / "target.gguf", "Mamba 2")
    draft = write_family(tmp_path / "draft.gguf", "Llama")
    config = EngineConfig(target=str(path), draft=str(draft), context=256, threads=1)
    warnings: list[str] = []
    with load(config, on_warning=warnings.append) as llm:
        assert llm.loaded.drafter is None
        texts = {
            llm.generate("a b c", SamplingParams(max_tokens=8), method=name)[0].tokens
            for name in ("ar", "sps", "duo", "auto")
        }
    assert len(texts) == 1
    assert len(warnings) == 1
    assert "decodes plainly" in warnings[0]
