"""Score a prompt itself: the logprobs of its tokens, before the completion begins."""

from __future__ import annotations

from dataclasses import replace

from duodec.core.draft import Draft
from duodec.core.sampling.logprobs import logprob, rank
from duodec.methods.method import Method
from duodec.methods.request import Forward, Loop, Request, Score


def decode(method: Method, request: Request) -> Loop:
    """Return the method's loop, after the prompt's logprobs where the request has them."""
    if request.num_prompt_logprobs is not None:
        yield from score_prompt(request, request.num_prompt_logprobs)
    if request.remaining:
        yield from method.decode(request)


def score_prompt(request: Request, num_tops: int) -> Loop:
    """Score the prompt's tokens as a draft after its first ones: a row is the one that decoding
    would draw from there. The first token follows nothing and has no logprob."""
    prompt, known = request.text, request.prompt_logprobs
    known.append(None)
    while len(known) < len(prompt):
        begin = len(known)
        draft = Draft.chain(prompt[begin:-1][: request.max_width].tolist())
        forward: Forward = yield Score(draft, num_text=begin)
        for row in range(forward.scores.num_rows):  # some targets score less than they are given
            token = int(prompt[begin + row])
            found = logprob(forward.scores, row, token, num_tops)
            known.append(replace(found, rank=rank(forward.scores, row, token)))
