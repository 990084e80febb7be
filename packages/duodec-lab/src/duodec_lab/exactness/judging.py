"""Judge two completions of one greedy request: the same, a near tie, or wrong.

Where texts part, the server computes the request anew, with logprobs. Those of the place say what
a greedy completion had to write. Numerical noise flips tokens that are almost as likely as each
other; a token that is clearly less likely than another is no completion of this model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from duodec_lab.exactness.endpoint import Case, Endpoint, Reply, Step, Trouble, with_logprobs

SAME, NEAR_TIE, WRONG, DIFFERS = "same", "near tie", "wrong", "differs"
FAILED, NOT_SERVED = "failed", "not served"
FAULTS = frozenset({WRONG, DIFFERS, FAILED})

_WINDOW = 60  # characters shown around the place where texts part
_NUM_MORE = 32  # tokens that lead from the last blank both texts share past where they part


class Send(Protocol):
    """Sends a request within the time that is left."""

    def __call__(self, endpoint: Endpoint, case: Case, **fields: object) -> Reply | Trouble: ...


@dataclass(frozen=True)
class Response:
    """A completion, or why there is none, and how it came about: alone, warm, streamed."""

    endpoint: Endpoint
    how: str
    reply: Reply | Trouble

    @property
    def name(self) -> str:
        return f"{self.endpoint.name} {self.how}"


@dataclass(frozen=True)
class Finding:
    """What a comparison found; the texts are those around the place where they part."""

    check: str
    case: str
    left: str  # which completions were compared
    right: str
    verdict: str
    words: str = ""
    left_text: str = ""
    right_text: str = ""

    @property
    def is_fault(self) -> bool:
        return self.verdict in FAULTS


def missing(check: str, case: Case, *responses: Response) -> Finding | None:
    """The finding that one of the completions did not come; None if all did."""
    names = [response.name for response in responses]
    for response in responses:
        if isinstance(response.reply, Trouble):
            verdict = NOT_SERVED if response.reply.is_refusal else FAILED
            left, right = (*names, "")[:2]
            return Finding(
                check, case.name, left, right, verdict, f"{response.name}: {response.reply}"
            )
    return None


def judged(
    check: str,
    case: Case,
    left: Response,
    right: Response,
    tolerance: Callable[[], float],
    anew: Send,
) -> Finding:
    """Compare two completions of a greedy request. Where they part, ``anew`` computes the place;
    logprobs within ``tolerance`` (nats) of each other are a near tie."""
    about = (check, case.name, left.name, right.name)
    if (none := missing(check, case, left, right)) is not None:
        return none
    assert isinstance(left.reply, Reply)
    assert isinstance(right.reply, Reply)
    ours, theirs = left.reply.text, right.reply.text
    if ours == theirs:
        return Finding(*about, SAME)
    at = _first_difference(ours, theirs)
    most = tolerance()
    left_gap = _gap(left.endpoint, case, left.reply, right.reply, most, anew)
    right_gap = (
        left_gap
        if left.endpoint == right.endpoint
        else _gap(right.endpoint, case, left.reply, right.reply, most, anew)
    )
    verdict, words = _verdict(left, right, left_gap, right_gap, most)
    shown = slice(max(0, at - _WINDOW), at + _WINDOW)
    return Finding(*about, verdict, words, ours[shown], theirs[shown])


def _verdict(
    left: Response,
    right: Response,
    left_gap: float | None,
    right_gap: float | None,
    tolerance: float,
) -> tuple[str, str]:
    """The verdict and why, from the gaps that each one's server computes anew."""
    if left_gap is None or right_gap is None:
        return DIFFERS, "the texts part, and no logprobs were had to judge the place by"
    words = f"where they part, {left.name} wrote what is {_more(left_gap)}"
    if left.endpoint != right.endpoint:
        words += f" by {left.endpoint.name}, {_more(right_gap)} by {right.endpoint.name}"
    culprits = [
        response.name
        for response, gap in ((left, left_gap), (right, -right_gap))
        if gap < -tolerance
    ]
    if culprits:
        return WRONG, f"{words}: {' and '.join(culprits)} left the likeliest token"
    if min(abs(left_gap), abs(right_gap)) > tolerance:
        return DIFFERS, f"{words}: the two servers compute other distributions"
    return NEAR_TIE, words


def _more(gap: float) -> str:
    return f"{abs(gap):.3f} nats {'likelier' if gap >= 0 else 'less likely'}"


def _gap(
    endpoint: Endpoint, case: Case, left: Reply, right: Reply, tolerance: float, anew: Send
) -> float | None:
    """How much likelier the left text is than the right one where they part, in nats, as this
    server computes it anew; None if it went another way. A token that is not among the likeliest
    counts as the last of them."""
    ours, theirs = left.text, right.text
    at = _first_difference(ours, theirs)
    reply = anew(endpoint, case, **with_logprobs(case))
    if isinstance(reply, Trouble):
        return None
    if left.calls or right.calls:  # whose tokens are not the text that a client is told
        is_near = any(_lead(step) <= tolerance for step in reply.steps)
        return 0.0 if is_near else None
    found = _gap_at(at, ours, theirs, 0, reply.steps, case.body["max_tokens"])
    begin = _last_blank(ours, at)
    if found is None and begin and case.path == "completions":
        # it went a third way; the text so far as a part of the prompt, whose tokens may differ
        body = {**case.body, "prompt": case.body["prompt"] + ours[:begin]}
        rest = Case(case.name, case.path, body).within(_NUM_MORE)
        reply = anew(endpoint, rest, **with_logprobs(rest))
        if isinstance(reply, Reply):
            found = _gap_at(at, ours, theirs, begin, reply.steps, _NUM_MORE)
    return found


def noise(endpoint: Endpoint, case: Case, send: Send, anew: Send) -> float:
    """How far the lead of a token over the next likeliest moves, in nats, between a completion of
    this request from a cold cache and one from a warm cache; 0 where that cannot be said."""
    cold, warm = (how(endpoint, case, **with_logprobs(case)) for how in (anew, send))
    if isinstance(cold, Trouble) or isinstance(warm, Trouble):
        return 0.0
    pairs = _shared(cold, warm)
    return max((abs(_lead(first) - _lead(second)) for first, second in pairs), default=0.0)


def _shared(left: Reply, right: Reply) -> Iterator[tuple[Step, Step]]:
    """The steps of two completions, as long as they are the same tokens."""
    pairs = zip(left.steps, right.steps, strict=False)
    return takewhile(lambda pair: pair[0].text == pair[1].text, pairs)


def _gap_at(
    at: int, ours: str, theirs: str, place: int, steps: Sequence[Step], most_steps: int
) -> float | None:
    """The gap at character ``at``, from the steps of a text that begins at ``place``. The tokens
    may have parted before the characters: of several places the one that excuses most counts."""
    gaps: list[float] = []
    for step in steps:
        gaps += _gap_of(step, ours, theirs, place, at)
        if not ours.startswith(step.text[: at - place], place):
            return None  # it went a third way
        place += len(step.text)
        if place > at:
            break
    if place == at and len(steps) < most_steps:  # it ends here
        gaps += [math.inf] if len(ours) == at else [-math.inf] if len(theirs) == at else []
    return min(gaps, key=abs, default=None)


def _gap_of(step: Step, ours: str, theirs: str, place: int, at: int) -> Iterator[float]:
    """The gap at a step, if the texts may part there: if one of its likeliest tokens covers ``at``,
    or ends a text there. The other text has a shorter token, or none of the likeliest."""
    likeliest = {**step.tops, step.text: step.logprob}
    shared = [
        logprob
        for token, logprob in likeliest.items()
        if token and place + len(token) <= at and ours.startswith(token, place)
    ]
    covering = [
        [
            logprob
            for token, logprob in likeliest.items()
            if (place + len(token) > at and text.startswith(token, place))
            or (len(text) == at == place and _is_end(token))
        ]
        for text in (ours, theirs)
    ]
    if any(covering):
        left, right = (max(found or shared or [min(likeliest.values())]) for found in covering)
        yield left - right


def _is_end(token: str) -> bool:
    return not token or (token[0] == "<" and token[-1] == ">")


def _lead(step: Step) -> float:
    """How far the likeliest token leads."""
    tops = sorted(step.tops.values(), reverse=True)
    return tops[0] - tops[1] if len(tops) > 1 else math.inf


def _first_difference(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def _last_blank(text: str, end: int) -> int:
    """Where the last word before ``end`` begins, its blanks included: there tokens begin, too."""
    head = text[:end]
    word = head.rsplit(None, 1)[-1] if head.strip() else ""
    return len(head.removesuffix(word).rstrip())


def logprobs_agree(
    check: str, case: Case, left: Response, right: Response, tolerance: float
) -> Finding:
    """Compare the logprobs of the tokens that both texts share."""
    about = (check, case.name, left.name, right.name)
    if (none := missing(check, case, left, right)) is not None:
        return none
    assert isinstance(left.reply, Reply)
    assert isinstance(right.reply, Reply)
    for response, steps in ((left, left.reply.steps), (right, right.reply.steps)):
        if not steps:
            return Finding(*about, NOT_SERVED, f"{response.name}: no logprobs came")
    shared = [(a.logprob - b.logprob, a.text) for a, b in _shared(left.reply, right.reply)]
    if not shared:
        return Finding(*about, SAME, "no token is shared")
    most, token = max(shared, key=lambda found: abs(found[0]))
    words = f"{len(shared)} tokens, logprobs at most {abs(most):.4f} nats apart (at {token!r})"
    return Finding(*about, SAME if abs(most) <= tolerance else DIFFERS, words)
