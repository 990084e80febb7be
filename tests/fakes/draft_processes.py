"""Ask drafters in processes of their own for drafts, and wait for what they say."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Any

import numpy as np
from fakes.decoding import Session, decode_rounds

from duodec.backends.drafter.process import ProcessDrafter
from duodec.core.drafters import Drafted, DraftRequest, Plan
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.drafting.plans import Chain
from duodec.methods.registry import method
from duodec.methods.request import Request
from duodec.testing import InlineDrafter, TableModel, TableTarget

TABLE = TableModel(noise=0.3)
PROMPT = [3, 1, 4, 1, 5]
NUM_TOKENS = 48
LONG_S = 20.0  # far above what anything takes here
GREEDY = Sampler()
Start = Callable[..., ProcessDrafter]


def until(condition: Callable[[], object], seconds: float = LONG_S) -> None:
    end = perf_counter() + seconds
    while not condition():
        assert perf_counter() < end, "waited in vain"
        sleep(0.005)


def request(text: object, plan: Plan, slot: int = 0, sampler: Sampler = GREEDY) -> DraftRequest:
    return DraftRequest(slot, np.asarray(text, dtype=np.int32), plan, sampler)


def finished(drafter: ProcessDrafter | InlineDrafter, asked: DraftRequest) -> Drafted:
    drafter.submit(asked)
    until(lambda: drafter.poll(asked.slot, 1.0).is_complete)
    return drafter.poll(asked.slot)


def drafts_again(drafter: ProcessDrafter) -> bool:
    return len(finished(drafter, request(PROMPT, Chain(3))).draft) == 3


def kill(drafter: ProcessDrafter, number: int = signal.SIGKILL) -> None:
    if drafter.pid is not None:
        os.kill(drafter.pid, number)


def text_of(
    name: str,
    session: Request,
    each_round: Callable[[int], None] = lambda _: None,
) -> list[int]:
    for i, _ in enumerate(decode_rounds(method(name), session)):
        each_round(i)
    return [int(token) for token in session.text]


def session_of(
    drafter: ProcessDrafter | None,
    temperature: float = 0.0,
    num_tokens: int = NUM_TOKENS,
    prompt: Sequence[int] = PROMPT,
    **settings: Any,
) -> Request:
    params = SamplingParams(temperature=temperature, seed=11)
    session = Session(
        TableTarget(TableModel(seconds=0.002)),
        prompt,
        len(prompt) + num_tokens,
        sampler=Sampler(params, num_prompt_tokens=len(prompt)),
        **settings,
    )
    if drafter is not None:
        session.drafter = drafter
    return session
