"""Check what servers corrupt when they draft, reuse prefixes or serve several clients at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from duodec.server.http.json_limits import parse
from duodec_lab.exactness import prompts
from duodec_lab.exactness.audit import Audit, Check
from duodec_lab.exactness.endpoint import Call, Case, Endpoint, Reply, Trouble, with_logprobs
from duodec_lab.exactness.judging import (
    DIFFERS,
    NOT_SERVED,
    SAME,
    WRONG,
    Finding,
    Response,
    logprobs_agree,
    missing,
)

_SAMPLED = {"temperature": 0.8, "seed": 7}
_NUM_EVENTS = 5  # of a stream, until its client is gone
_MOST_TURN_TOKENS = 48
_MOST_FAULTS, _MOST_SHOWN = 3, 2000  # of a response: its calls' faults, its characters


def greedy(audit: Audit) -> Iterator[Finding]:
    """The same greedy text by both servers; by one server, twice."""
    for case in audit.texts:
        first = audit.alone(audit.endpoints[0], case)
        for _, other in audit.pairs:
            yield audit.judged("greedy", case, first, audit.alone(other, case))
        if len(audit.endpoints) == 1:
            again = Response(first.endpoint, "again", audit.send(first.endpoint, case))
            yield audit.judged("greedy", case, first, again)


def logprobs(audit: Audit) -> Iterator[Finding]:
    """Logprobs leave the text as it is, and both servers give the same."""
    for case in audit.texts:
        found = []
        for endpoint in audit.endpoints:
            reply = audit.send(endpoint, case, **with_logprobs(case))
            found.append(Response(endpoint, "with logprobs", reply))
            yield audit.judged("logprobs", case, audit.alone(endpoint, case), found[-1])
        if len(found) > 1:
            yield logprobs_agree("logprobs", case, found[0], found[1], audit.tolerance)


def seeds(audit: Audit) -> Iterator[Finding]:
    """One seed, one text, by each server; by both where both are ours, which promise it."""
    for case in audit.texts:
        found = []
        for endpoint in audit.endpoints:
            first, second = (audit.send(endpoint, case, **_SAMPLED) for _ in range(2))
            found.append(Response(endpoint, "sampled", first))
            yield _equal("seeds", case, found[-1], Response(endpoint, "sampled again", second))
        if len(found) > 1 and all(endpoint.is_ours for endpoint in audit.endpoints):
            yield _equal("seeds", case, found[0], found[1])


def company(audit: Audit) -> Iterator[Finding]:
    """The text of a request is the same alone and among others."""
    for endpoint in audit.endpoints:
        alone = [audit.alone(endpoint, case) for case in audit.texts]
        calls = [partial(_whole, audit, endpoint, case, "in company") for case in audit.texts]
        for case, before, response in zip(audit.texts, alone, audit.together(calls), strict=True):
            yield audit.judged("company", case, before, response)


def aborts(audit: Audit) -> Iterator[Finding]:
    """Clients that leave in the middle of a stream change neither the texts of others nor their own
    when they come back, whole or streamed."""
    for endpoint in audit.endpoints:
        leaving, staying = audit.texts[::2], audit.texts[1::2]
        alone = {case.name: audit.alone(endpoint, case) for case in audit.texts}
        whole = [partial(_whole, audit, endpoint, case, "during aborts") for case in staying]
        left = [partial(_abort, audit, endpoint, case) for case in leaving]
        mixed = [call for pair in zip(left, whole, strict=False) for call in pair]
        mixed += left[len(whole) :]
        found = dict(zip(map(id, mixed), audit.together(mixed), strict=True))
        for case, call in zip(staying, whole, strict=True):
            yield audit.judged("aborts", case, alone[case.name], found[id(call)])
        for case in leaving:
            reply = audit.stream(endpoint, case)
            again = Response(endpoint, "streamed after its abort", reply)
            yield audit.judged("aborts", case, alone[case.name], again)


def conversation(audit: Audit) -> Iterator[Finding]:
    """An agent's conversation with tools: each turn computed anew, then turn after turn with the
    prefix of the one before, then after a change in the first line and in the middle."""
    turns = prompts.conversation(min(audit.limits.max_tokens, _MOST_TURN_TOKENS))
    cold: dict[str, dict[str, Response]] = {}
    shown: dict[str, list[Case]] = {}
    for endpoint in audit.endpoints:
        mine = turns
        refused = audit.send(endpoint, turns[-1].within(1))
        if isinstance(refused, Trouble) and refused.is_refusal:
            words = f"tools are refused ({refused}): calls and results are shown as texts"
            yield Finding("conversation", "tools", endpoint.name, "", NOT_SERVED, words)
            mine = [prompts.without_tools(turn) for turn in turns]
        responses = {case.name: _anew(audit, endpoint, case) for case in reversed(mine)}
        cold[endpoint.name], shown[endpoint.name] = responses, mine
        for case in mine:
            yield audit.judged(
                "conversation", case, responses[case.name], _whole(audit, endpoint, case, "warm")
            )
        last = mine[-1]
        for place in (0, len(last.body["messages"]) // 2 // 3 * 3 + 1):
            changed = prompts.edited(last, place)
            warm = _whole(audit, endpoint, changed, "warm")
            yield audit.judged("conversation", changed, _anew(audit, endpoint, changed), warm)
        back = _whole(audit, endpoint, last, "after the edits")
        yield audit.judged("conversation", last, responses[last.name], back)
    for first, second in audit.pairs:
        for case in shown[first.name] if shown[first.name] == shown[second.name] else ():
            pair = cold[first.name][case.name], cold[second.name][case.name]
            yield audit.judged("conversation", case, *pair)


def tools(audit: Audit) -> Iterator[Finding]:
    """Required calls of tools are valid, and so are others, unless the model writes them so again;
    and both servers call the same."""
    for choice in ("auto", "required"):
        for case in prompts.calls(audit.limits.max_tokens, tool_choice=choice):
            named = Case(f"{choice}: {case.name}", case.path, case.body)
            responses = [audit.alone(endpoint, named) for endpoint in audit.endpoints]
            for response, other in zip(responses, reversed(responses), strict=True):
                again = partial(_again, audit, named, response, other)
                yield _valid(named, response, again if choice == "auto" else None)
            if len(responses) > 1:
                yield audit.judged("tools", named, *responses)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (greedy, logprobs, seeds, company, aborts, conversation, tools)
}
"""By their names, in the order in which they run."""


def _whole(audit: Audit, endpoint: Endpoint, case: Case, how: str) -> Response:
    return Response(endpoint, how, audit.send(endpoint, case))


def _abort(audit: Audit, endpoint: Endpoint, case: Case) -> Response:
    return Response(endpoint, "aborted", audit.stream(endpoint, case, _NUM_EVENTS))


def _anew(audit: Audit, endpoint: Endpoint, case: Case) -> Response:
    return Response(endpoint, "cold", audit.anew(endpoint, case))


def _again(audit: Audit, case: Case, response: Response, other: Response) -> Response:
    """The same by the other server; by the only one, computed anew."""
    return _anew(audit, response.endpoint, case) if other is response else other


def _equal(check: str, case: Case, left: Response, right: Response) -> Finding:
    """Of sampled texts, which logprobs cannot excuse: a seed gives one text, or it does not."""
    about = (check, case.name, left.name, right.name)
    if (none := missing(check, case, left, right)) is not None:
        return none
    if left.reply == right.reply:
        return Finding(*about, SAME)
    return Finding(*about, DIFFERS, "one seed gave two texts")


def _valid(case: Case, response: Response, again: Callable[[], Response] | None) -> Finding:
    """``again`` for a request that requires no call: what is computed twice is the model's own."""
    about = ("tools", case.name, response.name, "")
    if (none := missing("tools", case, response)) is not None:
        return none
    reply = response.reply
    assert isinstance(reply, Reply)
    if reply.finish == "length":
        return Finding(*about, SAME, "cut off by the limit of tokens")
    faults = [*islice((fault for call in reply.calls for fault in _faults(call)), _MOST_FAULTS)]
    shown = reply.text[:_MOST_SHOWN]
    if again is None and not reply.calls:
        return Finding(*about, NOT_SERVED, "a text came although a call is required", shown)
    if faults and again is not None and again().reply == reply:
        return Finding(*about, SAME, f"the model's own: {'; '.join(faults)}", shown)
    if faults:
        return Finding(*about, WRONG, "; ".join(faults), shown)
    words = f"{len(reply.calls)} valid calls" if reply.calls else "a text, no call"
    return Finding(*about, SAME, words)


_KINDS: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float)}


def _faults(call: Call) -> Iterator[str]:
    """What is wrong with a call, by the schema of its tool."""
    schema = next(
        (
            tool["function"]["parameters"]
            for tool in prompts.TOOLS
            if tool["function"]["name"] == call.name
        ),
        None,
    )
    if schema is None:
        yield f"there is no tool {call.name[:80]!r}"
        return
    try:
        arguments = parse(call.arguments)
    except ValueError as error:
        yield f"the arguments of {call.name} are no JSON ({error}): {call.arguments[:80]!r}"
        return
    properties = schema["properties"]
    if not isinstance(arguments, dict) or arguments.keys() != properties.keys():
        yield f"{call.name} takes {', '.join(properties)}, not {call.arguments[:80]}"
        return
    for name, value in arguments.items():
        kind = properties[name]
        if not isinstance(value, _KINDS[kind["type"]]) or value not in kind.get("enum", [value]):
            yield f"{name} of {call.name} is {value!r:.80}"
