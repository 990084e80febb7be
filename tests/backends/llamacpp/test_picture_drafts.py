"""Drafts behind pictures: no timing, no death of what drafts and no head changes a text."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.block_drafters import write_block
from fakes.decoding import DyingDrafter, SlowDrafter
from fakes.draft_processes import until
from fakes.families import write_eagle3
from fakes.head_rounds import CHAIN
from fakes.seeing_pairs import ABOUT, NUM_SLOTS, TWO, Pair, asked, image, load_pair, params, words
from fakes.seeing_pairs import tokens as tokens_of

from duodec import LLM
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.core.drafters import Drafted, DraftModel
from duodec.core.events import Finished
from duodec.core.prompts.pictures import PromptTokens
from duodec.core.targets import Query
from duodec.methods.registry import METHODS
from duodec.testing import InlineDrafter

SLOW = pytest.mark.slow
DRAFTED = [
    name
    for name, kind in METHODS.items()
    if kind.needs_draft_model and name != "sps-rejection" and not kind.needs_heads
] + ["auto"]  # fmt: skip
FAMILIES = [
    "Qwen 2.5 VL",  # M-RoPE
    pytest.param("Gemma 3", marks=SLOW),  # not causal
    pytest.param("Qwen 3.5", marks=SLOW),  # a hybrid
]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    with load_pair(tmp_path_factory.mktemp("models"), str(request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def draft(pair: Pair) -> Iterator[DraftModel]:
    """The pair's draft model, in this process."""
    recipe = LlamaRecipe(
        pair.files.draft, 512, 1, num_vocab=pair.llm.loaded.tokenizer.num_vocab, num_texts=NUM_SLOTS
    )
    with closing(recipe.load()) as model:
        yield model


# --- slow, dead and hung


class Hesitant(InlineDrafter):
    """Says nothing each time that it was looked at so often."""

    def __init__(self, model: DraftModel, period: int) -> None:
        super().__init__(model)
        self._period, self._num_polls = period, 0

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        self._num_polls += 1
        if self._num_polls % self._period == 0:
            return Drafted(is_complete=False)
        return super().poll(slot, wait_s, beyond)


DRAFTERS: dict[str, Callable[[DraftModel], Any]] = {
    "nothing seen, nothing waited for": lambda model: SlowDrafter(model, 0, 0),
    "nothing seen, a step waited for": lambda model: SlowDrafter(model, 0, 1),
    "a step seen, two waited for": lambda model: SlowDrafter(model, 1, 2),
    "dead before its first word": lambda model: DyingDrafter(model, 0),
    "dies after a few requests": lambda model: DyingDrafter(model, 5),
    "silent at times": lambda model: Hesitant(model, 2),
    "silent at other times": lambda model: Hesitant(model, 3),
}
QUICK = ("a step seen, two waited for", "dies after a few requests")


@pytest.mark.parametrize(
    "drafter", [name if name in QUICK else pytest.param(name, marks=SLOW) for name in DRAFTERS]
)
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=SLOW), 0.8])
def test_a_slow_or_dead_drafter_changes_no_text(
    pair: Pair, draft: DraftModel, drafter: str, temperature: float
) -> None:
    loaded = pair.llm.loaded
    own = params(pair.llm, temperature)
    for prompt in (ABOUT, TWO):
        plain = tokens_of(pair.llm, prompt, own)
        for method in DRAFTED:
            llm = LLM(
                loaded.target, loaded.tokenizer, 512, DRAFTERS[drafter](draft), num_slots=NUM_SLOTS
            )
            assert tokens_of(llm, prompt, own, method) == plain, method


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
@pytest.mark.parametrize("fault", ["slow", "hung", "killed"])
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=SLOW), 0.8])
def test_what_happens_to_the_drafters_process_changes_no_text(
    pair: Pair, fault: str, temperature: float
) -> None:
    llm = pair.llm
    drafter = llm.loaded.drafter
    assert isinstance(drafter, ProcessDrafter)
    own = params(llm, temperature)
    plain = tokens_of(llm, TWO, own)
    num_struck = 0

    def send(number: int) -> None:
        if drafter.pid is not None:
            os.kill(drafter.pid, number)

    for method in DRAFTED:
        until(lambda: drafter.is_ready, 120)
        passes = iter(range(10_000))

        def strike(passes: Iterator[int] = passes) -> bool:
            nonlocal num_struck
            i = next(passes)
            num_struck += i % 5 == 2
            if fault == "killed" and i % 5 == 2:
                send(signal.SIGKILL)
            elif fault == "hung" and i == 2:
                send(signal.SIGSTOP)
            elif fault == "slow":  # what it says comes some forward passes late
                send(signal.SIGSTOP if i % 5 == 2 else signal.SIGCONT)
            return False

        *_, last = llm.stream(TWO, own, method=method, should_stop=strike)
        assert isinstance(last, Finished)
        send(signal.SIGCONT)
        assert tuple(last.tokens) == plain, method
    assert num_struck >= len(DRAFTED)


# --- heads

HEADS = [
    ("Qwen 3.5", "mtp"),
    ("Gemma 3", "eagle3"),
    *(
        pytest.param(pair, marks=pytest.mark.slow)
        for pair in (
            ("Qwen 3.5", "eagle3"),
            ("Qwen 2.5 VL", "eagle3"),
            ("Qwen 3 VL", "dflash"),
            ("SmolVLM", "eagle3"),
            ("Qwen 3.5", "dflash"),
            ("SmolVLM", "dflash2"),
            ("Gemma 3", "dspark"),
        )
    ),
]


@pytest.fixture(scope="module", params=HEADS, ids=" ".join)
def headed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    family, kind = request.param
    folder = tmp_path_factory.mktemp("heads")
    more: dict[str, Any] = {}
    if kind == "eagle3":
        more["heads"] = str(write_eagle3(folder / "eagle3.gguf"))
    elif kind != "mtp":
        more["heads"] = str(write_block(folder / "block.gguf", kind))
    with load_pair(folder, family, num_heads=int(kind == "mtp"), **more) as found:
        assert found.llm.loaded.target.traits.heads == kind
        yield found


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=SLOW), 0.8])
def test_heads_draft_behind_pictures_and_change_no_text(headed: Pair, temperature: float) -> None:
    llm = headed.llm
    own = params(llm, temperature)
    kind = llm.loaded.target.traits.heads
    for prompt in (ABOUT, TWO):
        plain = tokens_of(llm, prompt, own)
        for method in (kind, "auto", "duo", "lookup"):
            (done,) = llm.generate([prompt], own, method=method)
            assert tuple(done.tokens) == plain, method
            if method == kind:
                assert done.stats.num_draft_tokens > 10
                if kind == "mtp":  # goes on from a token alone, and so is right at times
                    assert done.stats.num_accepted_tokens > 0
    prompts = [ABOUT, TWO, asked(words("one two three one two"))]
    alone = [tokens_of(llm, prompt, own) for prompt in prompts]
    for method in (kind, "auto"):
        together = llm.generate(prompts, own, method=method)
        assert [tuple(done.tokens) for done in together] == alone, method


def test_a_head_goes_on_behind_whatever_picture_is_the_last(headed: Pair) -> None:
    """Pictures that come, change and go in one slot: it proposes something after each of the texts,
    and what a new one does where it knows as much."""
    llm = headed.llm
    target = llm.loaded.target
    prompts = [
        asked(words("one two three one two three one two three"), image(1), words("one two")),
        asked(words("one two three one two three one two three"), image(2), words("one two")),
        asked(words("one two three one two three one two three one two three one two three")),
        asked(image(3), words("two"), image(4, (64, 48)), words("one two three one two three")),
        asked(image(3), words("two"), image(4, (64, 48)), words("one two three four one")),
        asked(image(3), words("two")),
    ]

    def proposed(prompt: Any) -> list[int]:
        found = llm.tokens_of(prompt)
        shown = found.shown if isinstance(found, PromptTokens) else ()
        text, said = np.array(found, dtype=np.int32), []
        for more in ([], [5, 9], [3]):
            text = np.concatenate([text, np.array(more, dtype=np.int32)])
            (scores,) = target.score([Query(0, text, heads=CHAIN, shown=shown)])
            tree = scores.proposed().tree
            assert len(tree) > 0
            said += list(tree.tokens)
        return said

    for slot in range(NUM_SLOTS):
        target.forget(slot)
    ours = [proposed(prompt) for prompt in prompts]
    for number in (0, 1, 3, 4):  # of the others, a part was computed before a picture now gone
        target.forget(0)
        assert proposed(prompts[number]) == ours[number]


def test_files_of_heads_and_of_pictures_are_found_together(tmp_path: Path) -> None:
    with load_pair(tmp_path, "Qwen 3.5", num_heads=1, draft="none") as found:
        assert found.llm.loaded.target.traits.heads == "mtp"
        assert found.sight.projector.num_dims > 0
