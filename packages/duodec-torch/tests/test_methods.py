"""Texts of a `TorchTarget`: every method's is plain decoding's, and that is transformers'.

Small random models, on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")

import torch
from fakes.decoding import WITHOUT_HEADS, FixedBudget, ListedTexts, Session, decode_rounds
from fakes.torch_models import KINDS, NUM_VOCAB, WINDOWED, build, random_text, target_of

from duodec.backends.llamacpp.drafts.draft import LlamaDraftModel
from duodec.backends.llamacpp.model import LlamaModel
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.round import Round
from duodec.core.rows import Row
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import Draw, Sampler, SamplingParams
from duodec.core.traits import Widths
from duodec.methods.registry import method
from duodec.models import resolve
from duodec.testing import InlineDrafter
from duodec_torch.forward.network import Network
from duodec_torch.target import TorchScores, TorchTarget

KEYED = [name for name in WITHOUT_HEADS if name != "sps-rejection"]
NUM_TOKENS = 48
PROMPT = tuple(random_text(40, 9))
SAMPLINGS = {
    "greedy": SamplingParams(),
    "nucleus": SamplingParams(temperature=0.8, top_p=0.9, seed=3),
    "all samplers": SamplingParams(
        temperature=1.1, top_k=30, top_p=0.97, min_p=0.01, repetition_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=0.1, logit_bias={3: 1.0, 4: -2.0}, seed=4,
    ),
    "masked": SamplingParams(
        temperature=0.8, top_p=0.9, grammar=Grammar("regex", "goes with the mask below"), seed=5
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Thirds:
    """A mask that forks with every token: it bans a third of them, by the last token and how many
    there are."""

    ends = ()

    def close(self) -> None:
        """It holds nothing."""

    def allowed(self, answer: np.ndarray) -> np.ndarray:
        return (np.arange(NUM_VOCAB) + len(answer) + int(answer[-1:].sum())) % 3 > 0


@cache
def known_row(kind: str, tokens: tuple[int, ...]) -> Row:
    with torch.inference_mode():
        row: Row = drafting_model(kind)(torch.tensor([tokens])).logits[0, -1].numpy()
    return row


@cache
def drafting_model(kind: str) -> torch.nn.Module:
    model: torch.nn.Module = build(kind)
    return model


@dataclass(frozen=True)
class BlurredModel(DraftModel):
    """A draft model that is the target, less sure of itself: mostly right, often wrong."""

    kind: str
    noise: float = 0.5
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def rows(self, query: RowQuery) -> list[Row]:
        found = []
        for row in query.rows:
            tokens = (*query.text.tolist(), *query.draft.path_tokens(row - 1))
            exact = known_row(self.kind, tokens)
            blur = self.rng.normal(0, self.noise * exact.std(), NUM_VOCAB)
            found.append((exact + blur).astype(np.float32))
        return found


def decode(
    target: TorchTarget,
    kind: str,
    name: str,
    params: SamplingParams,
    num_tokens: int = NUM_TOKENS,
    budget: int = 5,
) -> tuple[list[int], list[Round]]:
    session = Session(
        target=target,
        prompt=PROMPT,
        capacity=len(PROMPT) + num_tokens,
        drafter=InlineDrafter(BlurredModel(kind)),
        sampler=Sampler(params, 0, len(PROMPT), Thirds() if params.grammar else None),
        datastore=ListedTexts([random_text(400, 2), *known_texts(kind)]),
        costs=FixedBudget(budget),
    )
    rounds = list(decode_rounds(method(name), session))
    return session.text[len(PROMPT) :].tolist(), rounds


@cache
def known_texts(kind: str) -> list[list[int]]:
    return [list(own_text(kind, PROMPT, NUM_TOKENS))]


@cache
def own_text(kind: str, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """Greedy, by transformers' own `generate`."""
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        found = drafting_model(kind).generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
            max_new_tokens=num_tokens, pad_token_id=0,
        )  # fmt: skip
    return tuple(found[0, len(prompt) :].tolist())


@cache
def plain_text(kind: str, sampling: str) -> list[int]:
    found, _ = decode(target_of(kind), kind, "ar", SAMPLINGS[sampling])
    return found


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, *WINDOWED])
def test_greedy_text_is_that_of_transformers(kind: str, is_exact: bool) -> None:
    target = target_of(kind, is_width_exact=is_exact)
    found, _ = decode(target, kind, "ar", SamplingParams())
    assert tuple(found) == own_text(kind, PROMPT, NUM_TOKENS)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", [name for name in KEYED if name != "ar"])
def test_the_text_is_plain_decodings(name: str, sampling: str) -> None:
    found, rounds = decode(target_of("llama"), "llama", name, SAMPLINGS[sampling])
    assert found == plain_text("llama", sampling)
    if sampling == "masked":
        for i, token in enumerate(found):
            assert Thirds().allowed(np.array(found[:i]))[token]
    if sampling == "greedy" and name in ("sps", "pearl", "duo", "stream"):
        assert sum(done.num_accepted for done in rounds) > 5
        assert any(done.num_accepted < done.num_scored for done in rounds)


@pytest.mark.parametrize("sampling", ["greedy", "nucleus"])
@pytest.mark.parametrize("name", KEYED)
def test_the_text_is_plain_decodings_in_widths_that_agree(name: str, sampling: str) -> None:
    """Plain decoding and short drafts take 8 rows, others 16; on the CPU the two agree."""
    target = target_of("llama", widths=Widths((8, 16)))
    found, _ = decode(target, "llama", name, SAMPLINGS[sampling], budget=12)
    assert found == plain_text("llama", sampling)


@pytest.mark.parametrize("sampling", ["greedy", "nucleus"])
@pytest.mark.parametrize("name", [name for name in KEYED if name != "ar"])
@pytest.mark.parametrize("kind", WINDOWED)
def test_windows_and_soft_caps_leave_the_text_plain_decodings(
    kind: str, name: str, sampling: str
) -> None:
    found, rounds = decode(target_of(kind), kind, name, SAMPLINGS[sampling])
    assert found == plain_text(kind, sampling)
    if sampling == "greedy" and name in ("sps", "duo", "stream"):
        assert any(done.num_accepted < done.num_scored for done in rounds)


def test_margins_and_bits_are_plain_decodings_too() -> None:
    """The margin is a difference of logits: it would show a bit that differs."""
    margins: dict[str, dict[int, float]] = {"ar": {}, "sps": {}}
    for name, seen in margins.items():
        target = target_of("llama")
        _, rounds = decode(target, "llama", name, SAMPLINGS["nucleus"])
        position = 0
        for done in rounds:
            position += len(done.tokens)
            seen[position] = done.margin
            if len(done.tokens) > 1:  # the narrowest of several
                del seen[position]
    common = margins["ar"].keys() & margins["sps"].keys()
    assert len(common) > 5
    assert all(margins["ar"][at] == margins["sps"][at] for at in common)


def test_the_rejection_rule_runs_and_is_reproducible() -> None:
    params = SamplingParams(temperature=0.9, seed=2)
    texts = [decode(target_of("llama"), "llama", "sps-rejection", params) for _ in range(2)]
    assert texts[0][0] == texts[1][0]
    assert sum(done.num_accepted for done in texts[0][1]) > 0


@pytest.mark.parametrize("name", ["ar", "sps", "stream"])
def test_a_target_serves_one_text_after_the_other(name: str) -> None:
    target = target_of("llama")
    for sampling in (*SAMPLINGS, *SAMPLINGS):
        found, _ = decode(target, "llama", name, SAMPLINGS[sampling])
        assert found == plain_text("llama", sampling)


def test_a_row_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TorchScores.draw

    def shifted(self: TorchScores, row: int) -> Draw:
        return right(self, max(0, row - 1))

    monkeypatch.setattr(TorchScores, "draw", shifted)
    found, _ = decode(target_of("llama"), "llama", "sps", SamplingParams())
    assert tuple(found) != own_text("llama", PROMPT, NUM_TOKENS)


# --- a trained model, where it is at hand


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of gguf and transformers while they load
def test_smollm2_says_what_transformers_says_by_every_method() -> None:
    import transformers

    path = resolve("smollm2").path
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    tokens = torch.tensor([[504, 2365, 282, 4649, 314, 260, 253, 314, 260, 1789]])
    with torch.inference_mode():
        own = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=16,
            eos_token_id=None, pad_token_id=0,
        )[0, tokens.shape[1] :].tolist()  # fmt: skip
    target = TorchTarget(Network(model), num_context=128, widths=Widths.only(8), num_chunk=16)
    prompt = tokens[0].tolist()
    draft = LlamaModel(resolve("smollm2-draft").path)
    for name in WITHOUT_HEADS:
        session = Session(
            target,
            prompt,
            len(prompt) + 16,
            InlineDrafter(LlamaDraftModel(draft, num_context=256, num_threads=1)),
            Sampler(num_prompt_tokens=len(prompt)),
            datastore=ListedTexts([prompt + own]),
            costs=FixedBudget(5),
        )
        rounds = list(decode_rounds(method(name), session))
        assert session.text[len(prompt) :].tolist() == own, name
        assert (sum(done.num_accepted for done in rounds) > 0) == (name != "ar"), name
