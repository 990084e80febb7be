"""A request with pictures: the target is shown them, and whatever drafts is shown blanks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from fakes.decoding import FakeClock

from duodec.core.draft import Draft
from duodec.core.prompts.pictures import PromptTokens, run_tokens
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams, Tokens
from duodec.core.traits import TargetCache
from duodec.methods.ar import Autoregressive
from duodec.methods.request import Request, Score
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.slots import Slot


@dataclass(frozen=True)
class Part:
    tokens: Tokens


RUN = run_tokens(b"a picture", 6)
PROMPT = PromptTokens([1, 2, *RUN.tolist(), 3, 4, 5], [Part(RUN)])


def request() -> Request:
    return Request(PROMPT, 40, blank=9, clock=FakeClock())


def test_drafts_are_shown_blanks_and_the_target_the_picture() -> None:
    own = request()
    assert own.text.tolist() == [1, 2, *[9] * 6, 3, 4, 5]
    assert own.scored_text.tolist() == list(PROMPT)
    query = own.query(Score(Draft.chain([7])))
    assert query.text.tolist() == list(PROMPT)
    assert query.shown == PROMPT.shown


def test_a_prompt_without_pictures_is_one_text() -> None:
    own = Request([1, 2, 3], 10)
    assert own.shown == ()
    assert own.text.base is own.scored_text.base


def test_penalties_pass_pictures_by() -> None:
    row = np.linspace(-1, 1, 12, dtype=np.float32)
    params = SamplingParams(
        repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.5, temperature=0.7, seed=3
    )
    sampler = Sampler(params, 0, len(PROMPT))
    text = np.array(PROMPT, dtype=np.int32)
    words = text.copy()
    words[text < 0] = 1  # a word that is there in any case
    drawn = [sampler.draw(row, Context(own, (6,))).token for own in (text, words)]
    assert drawn[0] == drawn[1]
    assert np.array_equal(
        sampler.distribution(row, Context(text)).probs,
        sampler.distribution(row, Context(words)).probs,
    )


def test_parts_of_a_prompt_end_with_words() -> None:
    entry = ScheduledRequest(request(), Autoregressive(), lambda output: None)
    entry.slot = Slot(0, TargetCache())
    entry.need = Score()
    ends = []
    for num_chunk in range(1, 12):
        if entry.is_long(num_chunk):
            part = entry.query()
            assert part.shown == PROMPT.shown
            assert part.text[-1] >= 0
            ends.append(len(part.text))
    assert set(ends) <= {1, 2, 9, 10, 11}
    assert {1, 2, 9} <= set(ends)
