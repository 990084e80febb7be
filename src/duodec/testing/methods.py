"""Decode with a method on tables, and check that its text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from duodec.core.drafters import Drafter
from duodec.core.round import Round
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams, Tokens
from duodec.core.targets import Target
from duodec.methods.method import Method
from duodec.methods.registry import method as method_named
from duodec.methods.request import NoDatastore, NoDrafter, Request
from duodec.planning.costs import Costs
from duodec.scheduler.outputs import Failed, Output
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec.testing.drafters import InlineDrafter
from duodec.testing.tables import TableModel, TableTarget

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)
_NUM_TOKENS = 40


class FixedBudget(Costs):
    """Say how much to draft, whatever was measured."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self._num_tokens = num_tokens

    def budget(self) -> int:
        return self._num_tokens

    @property
    def knows_plain(self) -> bool:
        return True

    def curve(self, num_tokens: int) -> Sequence[float]:
        return [1.0] * (num_tokens + 1)

    def worst(self, num_tokens: int) -> Sequence[float]:
        return self.curve(num_tokens)

    def step_s(self) -> float:
        return 0.1

    def head_level_s(self) -> float:
        return 0.0


@dataclass(frozen=True)
class ListedTexts:
    """Hold texts in a list, indexed by every span of their tokens."""

    texts: Sequence[Sequence[int]]
    _spans: dict[int, dict[tuple[int, ...], list[Sequence[int]]]] = field(default_factory=dict)

    def continuations(
        self, text: Tokens, *, max_span: int, min_span: int, length: int
    ) -> NDArray[np.int32]:
        for span in range(min(max_span, len(text)), min_span - 1, -1):
            after = self._after(span).get(tuple(text[-span:].tolist()), ())
            if found := [list(rest[:length]) for rest in after]:
                rows = sorted(window + [-1] * (length - len(window)) for window in found)
                return np.array(rows, dtype=np.int32)
        return np.empty((0, length), dtype=np.int32)

    def _after(self, span: int) -> dict[tuple[int, ...], list[Sequence[int]]]:
        """Return what follows each span of ``span`` tokens, at all of its places."""
        if span not in self._spans:
            found: dict[tuple[int, ...], list[Sequence[int]]] = {}
            for known in self.texts:
                for end in range(span, len(known)):
                    found.setdefault(tuple(known[end - span : end]), []).append(known[end:])
            self._spans[span] = found
        return self._spans[span]


def decode(
    method: str | Method,
    target: Target,
    *,
    drafter: Drafter | None = None,
    datastore: ListedTexts | None = None,
    params: SamplingParams | None = None,
    prompt: Sequence[int] = PROMPT,
    num_tokens: int = _NUM_TOKENS,
    budget: int = 6,
) -> tuple[list[int], list[Round]]:
    """Return the tokens that a method makes of a prompt, and its rounds. ``budget`` is how many
    tokens the planner would draft. Raises what decoding raises."""
    request = Request(
        prompt,
        len(prompt) + num_tokens,
        drafter or NoDrafter(),
        Sampler(params or SamplingParams(), 0, len(prompt)),
        costs=FixedBudget(budget),
        datastore=datastore or NoDatastore(),
    )
    outputs: list[Output] = []
    kind = method_named(method) if isinstance(method, str) else method
    with closing(Scheduler(target, request.costs)) as scheduler:
        scheduler.submit([ScheduledRequest(request, kind, outputs.append)])
        while scheduler.step():
            pass
    if isinstance(outputs[-1], Failed):
        raise outputs[-1].error
    return request.text[len(prompt) :].tolist(), request.rounds


def plain_text(
    model: TableModel,
    params: SamplingParams,
    num_tokens: int = _NUM_TOKENS,
    prompt: Sequence[int] = PROMPT,
) -> list[int]:
    """Return what plain decoding must give, by a loop that shares nothing with the methods."""
    sampler = Sampler(params, 0, len(prompt))
    tokens = list(prompt)
    for _ in range(num_tokens):
        context = Context(np.array(tokens, dtype=np.int32))
        tokens.append(sampler.draw(model.logits(context), context).token)
    return tokens[len(prompt) :]


def check_method(name: str, *, num_tokens: int = _NUM_TOKENS) -> list[Round]:
    """Decode with a new method of this name: greedily and sampled, with draft models that are the
    target, agree with it now and then, and never do. Returns all rounds, with what was drafted and
    accepted. Raises AssertionError if the text is not that of plain decoding."""
    model = TableModel(seed=7)
    target = TableTarget(model)
    if kind := method_named(name).needs_heads:
        target = TableTarget(model, heads=replace(model, noise=0.4), kind_of_heads=kind)
    drafts = (model, replace(model, noise=0.4), TableModel(seed=8))
    rounds: list[Round] = []
    for params in (SamplingParams(), SamplingParams(temperature=0.8, seed=5)):
        wanted = plain_text(model, params, num_tokens)
        for draft in drafts:
            found, done = decode(
                name, target, drafter=InlineDrafter(draft.load()), params=params,
                datastore=ListedTexts([[*PROMPT, *wanted]]), num_tokens=num_tokens,
            )  # fmt: skip
            assert found == wanted, f"{name} makes another text than plain decoding: {params}"
            rounds += done
    return rounds
