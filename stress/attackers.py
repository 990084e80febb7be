"""Attack a server as hostile clients do, with the least work of their own, until SIGTERM.

    python -m stress.attackers http://127.0.0.1:8000 0.25 [slow_loris ...]

The number is each attacker's pause between two attempts, in seconds (the slow lorises' is ten times
that). All attack where none is named. Each knows what a good server answers, and another status is
a failure: `unexpected`.

Attackers compute on machines of their own, so here they get what processor time is left. At the
end a line of JSON tells what each attack got: by status, or how its connections ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle, product
from typing import Any

from stress import wire_attacks as wire
from stress.grammar_shapes import SHAPES

LEAVE_S = 1.0  # after which those who post leave
_ANSWER_S = 60.0  # after which those do who wait for an answer
_NUM_LORISES = 1000
_CONTROL = "<|im_end|>"

Attack = Callable[[str, int], Awaitable[str]]
"""One attempt on a server, and how it ended."""


async def endless_header(host: str, port: int) -> str:
    """A header line without an end."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /health HTTP/1.1\r\nX: ")
        for _ in range(1 << 14):
            writer.write(b"a" * (1 << 14))
            await writer.drain()
        return "took 256 MB"
    except ConnectionError:
        return _status(await _rest(reader))
    finally:
        writer.close()


async def slow_loris(host: str, port: int) -> str:
    """A head that comes byte by byte."""
    reader, writer = await asyncio.open_connection(host, port)
    ended = asyncio.ensure_future(_rest(reader))
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nX: ")
        while not (await asyncio.wait({ended}, timeout=2.0))[0]:
            writer.write(b"a")
        return _status(ended.result())
    finally:
        ended.cancel()
        writer.close()


async def _post(host: str, port: int, body: bytes, *, path: str = "/v1/chat/completions") -> str:
    """A request whose client leaves soon."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        said = await wire.within(LEAVE_S, reader.read(1 << 14))
        return _status(said)
    except asyncio.TimeoutError:
        return "left"
    except ConnectionError:
        return "reset"
    finally:
        writer.close()


def _chat(**fields: Any) -> bytes:
    return json.dumps(
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **fields}
    ).encode()


_LONG = _chat(messages=[{"role": "user", "content": _CONTROL * 60_000}])
_MANY = _chat(messages=[{"role": "user", "content": "hi"}] * 100_000)
_PLENTY = _chat(messages=[{"role": "user", "content": "hi"}] * 24_000)
_FITTING = _chat(messages=[{"role": "user", "content": _CONTROL}] * 1_000)


async def control_tokens(host: str, port: int) -> str:
    """600 KB of control tokens in one message."""
    return await _post(host, port, _LONG)


async def short_messages(host: str, port: int) -> str:
    """100,000 messages."""
    return await _post(host, port, _MANY)


async def plenty_of_messages(host: str, port: int) -> str:
    """As many messages as a body may hold."""
    return await _post(host, port, _PLENTY)


async def fitting_messages(host: str, port: int) -> str:
    """As many messages as a context holds, with control tokens to tell from the template's."""
    return await _post(host, port, _FITTING)


def explosive(number: int) -> dict[str, Any]:
    """A schema of 2.6 KB that takes minutes and gigabytes; another for each number."""
    return {
        "allOf": [
            {"anyOf": [{"type": "string", "pattern": f".*{chr(65 + i)}.{{{8 + number % 7}}}"},
                       {"type": "number", "multipleOf": i + 2 + number}]}
            for i in range(26)
        ]
    }  # fmt: skip


_numbers = count()


async def explosive_schema(host: str, port: int) -> str:
    """A schema that nobody has compiled before."""
    return await _post(host, port, _chat(structured_outputs={"json": explosive(next(_numbers))}))


def hidden(number: int) -> dict[str, Any]:
    """A costly schema under a name that looks like a control token, before a harmless one."""
    names = (f"<[{2 * number}]>", f"<[{2 * number + 1}]>")
    return {"type": "object", "properties": {names[0]: explosive(number), names[1]: True}}


def chained(number: int) -> dict[str, Any]:
    """Definitions, each of which refers to the next: compiling them needs a deep stack."""
    last = 300 + number % 1000
    rules = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(last)}
    return {"$defs": {**rules, f"d{last}": {"const": number}}, "$ref": "#/$defs/d0"}


def heavy(number: int) -> dict[str, Any]:
    """A schema of some 200 KB, which takes tens of megabytes once it is compiled."""
    names = [f"n{number}-{i}" for i in range(3000)]
    properties = {name: {"type": "string", "maxLength": 1000} for name in names}
    return {"properties": properties, "required": names, "additionalProperties": False}


async def hidden_schema(host: str, port: int) -> str:
    """A schema that looks like another, harmless one where its texts are rewritten."""
    return await _post(host, port, _chat(structured_outputs={"json": hidden(next(_numbers))}))


async def chained_schema(host: str, port: int) -> str:
    """A schema that overflows the stack."""
    return await _post(host, port, _chat(structured_outputs={"json": chained(next(_numbers))}))


async def heavy_schema(host: str, port: int) -> str:
    """A large schema that nobody has compiled before."""
    return await _post(host, port, _chat(structured_outputs={"json": heavy(next(_numbers))}))


_SIZES = (1 << 16, 1 << 18, 1 << 20)  # the last one is more than a grammar may have
_LARGE: tuple[dict[str, Any], ...] = (
    {"structured_outputs": {"grammar": SHAPES["a literal"](3 << 20)}},
    {"structured_outputs": {"regex": "a" * (3 << 20)}},
    {"structured_outputs": {"choice": ["a" * (3 << 20)]}},
    {"structured_outputs": {"choice": ["a" * 20] * 150_000}},
    {"structured_outputs": {"json": '{"enum": ["' + "a" * 3_800_000 + '"]}'}},
    {"guided_choice": ["b" * (3 << 20)]},
    {"guided_regex": "(" * (3 << 20)},
    {"grammar": SHAPES["a chain"](3 << 20)},
    {"json_schema": "[" * 3_800_000},
)
_shaped = cycle(product(SHAPES.values(), _SIZES))
_large = cycle(_chat(**fields) for fields in _LARGE)


async def shaped_grammars(host: str, port: int) -> str:
    """Rules of each shape and size, that nobody has sent before."""
    shape, size = next(_shaped)
    rules = f"{shape(size)}\n# {next(_numbers)}"
    return await _post(host, port, _chat(structured_outputs={"grammar": rules}))


async def large_grammars(host: str, port: int) -> str:
    """Texts, choices and schemas of more than a grammar may have."""
    return await _post(host, port, next(_large))


_NESTED = {"input": "hi", "max_output_tokens": 1, "metadata": {"a": [[[]]] * 15_000}}
_ENDLESS = json.dumps({**_NESTED, "metadata": {"a": 0}}).replace("0}", "1e400}").encode()
_PRIVATE = "".join(map(chr, range(0xF0000, 0x10FFFE))) + _CONTROL


async def nested_metadata(host: str, port: int) -> str:
    """Responses that weigh much more than their text."""
    return await _post(host, port, json.dumps(_NESTED).encode(), path="/v1/responses")


_NUM_STEPS, _NUM_WALKS, _NUM_VALUES = 13, 40, 36_000


def _call(number: int, call_id: Any, arguments: str) -> list[Any]:
    call = {"type": "function_call", "call_id": call_id, "name": "x", "arguments": arguments}
    return [call, {"type": "function_call_output", "call_id": f"{number}", "output": "x"}]


async def _respond(host: str, port: int, body: bytes) -> tuple[str, str | None]:
    """The status of a response, and its id."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 23)
    try:
        head = f"POST /v1/responses HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        said = await wire.within(_ANSWER_S, reader.read())
    finally:
        writer.close()
    status, content = _status(said), said.partition(b"\r\n\r\n")[2]
    return status, json.loads(content)["id"] if status == "200" else None


async def _converse(host: str, port: int, items: Callable[[int], Any]) -> str:
    """A conversation, step after step, then small requests that all go on from its last one."""
    name: str | None = None
    ended: set[str] = set()
    for number in range(_NUM_STEPS):
        earlier = {"previous_response_id": name} if name else {}
        body = {"input": items(number), "max_output_tokens": 1, **earlier}
        status, found = await _respond(host, port, json.dumps(body).encode())
        ended.add(status)
        name = found or name
    if name:
        last = {"input": "x", "max_output_tokens": 1, "previous_response_id": name}
        walks = [_respond(host, port, json.dumps(last).encode()) for _ in range(_NUM_WALKS)]
        ended.update([status for status, _ in await asyncio.gather(*walks)])
    return " ".join(sorted(ended))


async def stored_texts(host: str, port: int) -> str:
    """Texts, which are what a conversation should hold."""
    return await _converse(host, port, lambda number: "word " * 50)


async def stored_arguments(host: str, port: int) -> str:
    """Many values in the arguments of calls, which some templates do not show."""
    values = json.dumps([0] * _NUM_VALUES)
    return await _converse(host, port, lambda number: _call(number, f"{number}", values))


async def stored_ids(host: str, port: int) -> str:
    """Ids of calls that are arrays of many values."""
    return await _converse(host, port, lambda number: _call(number, [0] * _NUM_VALUES, "{}"))


async def endless_number(host: str, port: int) -> str:
    """A number that no response can repeat."""
    return await _post(host, port, _ENDLESS, path="/v1/responses")


async def private_characters(host: str, port: int) -> str:
    """All characters that could stand for the signs of control tokens."""
    return await _post(host, port, _chat(messages=[{"role": "user", "content": _PRIVATE}]))


_NUM_WRONG = 290_000
_WRONG = _chat(messages=[{"role": "assistant", "tool_calls": [0] * _NUM_WRONG}])
_LONG_STOP = _chat(stop="a" * 3_000_000)
_PROMPT_LOGPROBS = json.dumps(
    {"prompt": list(range(1000, 1900)), "max_tokens": 1, "n": 4, "prompt_logprobs": 20}
).encode()


async def wrong_items(host: str, port: int) -> str:
    """A message with 290,000 calls, none of which is one."""
    return await _post(host, port, _WRONG)


async def long_stop(host: str, port: int) -> str:
    """A stop text of 3 MB."""
    return await _post(host, port, _LONG_STOP)


async def large_response(host: str, port: int) -> str:
    """A response of megabytes."""
    return await _post(host, port, _PROMPT_LOGPROBS, path="/v1/completions")


_FULL = frozenset({"429", "503"})  # the queue, the memory for grammars, the connections


@dataclass(frozen=True)
class Family:
    """An attack, how many attackers try it at once, and the statuses of good answers."""

    attack: Attack
    num_attackers: int
    good: frozenset[str]

    @property
    def name(self) -> str:
        return self.attack.__name__

    def unexpected(self, outcome: str) -> set[str]:
        """The statuses of an outcome that no good server answers with."""
        return {word for word in outcome.split() if word.isdecimal()} - self.good - _FULL


def _family(attack: Attack, num_attackers: int, *good: int) -> Family:
    return Family(attack, num_attackers, frozenset(map(str, good)))


ATTACKS: tuple[Family, ...] = (
    _family(endless_header, 2, 431),
    _family(slow_loris, _NUM_LORISES, 408),
    _family(control_tokens, 6, 400),
    _family(short_messages, 2, 400),
    _family(plenty_of_messages, 2, 400),
    _family(fitting_messages, 2, 200, 400),
    _family(explosive_schema, 3, 400),
    _family(hidden_schema, 2, 400),
    _family(chained_schema, 2, 200, 400),
    _family(heavy_schema, 2, 200, 400),
    _family(shaped_grammars, 2, 200, 400),
    _family(large_grammars, 2, 400),
    _family(nested_metadata, 2, 200, 400),
    _family(stored_texts, 1, 200, 400, 404),
    _family(stored_arguments, 1, 200, 400, 404),
    _family(stored_ids, 1, 400),
    _family(endless_number, 1, 400),
    _family(private_characters, 1, 400),
    _family(wire.deaf_metrics, 1, 200),
    _family(wire.deaf_mixed, 1, 200, 404),
    _family(wire.read_metrics, 1, 200),
    _family(wire.many_pipelines, 64, 200),
    _family(wire.upgrades, 1, 200),
    _family(wire.expecting, 1, 100, 200),
    _family(wire.completions, 1, 200),
    _family(wire.many_completions, 32, 200),
    _family(wire.many_choices, 1, 200),
    _family(wire.long_prompts, 1, 200),
    _family(wire.costly_sampling, 1, 200),
    _family(wire.old_keep_alive, 1, 200),
    _family(wire.many_headers, 2, 431),
    _family(wire.single_bytes, 2, 400),
    _family(wire.chunk_extensions, 2, 400, 431),
    _family(wire.endless_body, 2, 413),
    _family(wire.byte_by_byte, 2, 400, 408),
    _family(wire.half_closed, 2, 200),
    _family(wire.knocking, 2),
    _family(wire.unfinished_bodies, 96, 408, 429),
    _family(wrong_items, 2, 400),
    _family(long_stop, 2, 400),
    _family(large_response, 1, 200),
)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    with suppress(ConnectionError):
        return await reader.read(1 << 14)
    return b""


def _status(said: bytes) -> str:
    return said[9:12].decode() if said.startswith(b"HTTP/1.1 ") else "closed"


async def attack(
    host: str, port: int, pause_s: float, attacks: Sequence[Family], ended: Counter[str]
) -> None:
    """Until it is cancelled."""

    async def repeat(family: Family, number: int) -> None:
        await asyncio.sleep(number * 0.003)  # a thousand do not knock in one moment
        while True:
            try:
                how = await family.attack(host, port)
            except (OSError, asyncio.TimeoutError) as error:
                how = type(error).__name__
            ended[f"{family.name} {how}"] += 1
            await asyncio.sleep(10 * pause_s if family.attack is slow_loris else pause_s)

    await asyncio.gather(
        *(repeat(family, i) for family in attacks for i in range(family.num_attackers))
    )


def unexpected(ended: Mapping[str, Any]) -> list[str]:
    """What attacks got that no good server answers, of how they ended."""
    families = {family.name: family for family in ATTACKS}
    named = [(families.get(how.partition(" ")[0]), how) for how in ended]
    return [how for family, how in named if family and family.unexpected(how)]


async def _main(url: str, pause_s: float, names: Sequence[str]) -> None:
    attacks = [family for family in ATTACKS if not names or family.name in names]
    host, _, port = url.removeprefix("http://").partition(":")
    ended: Counter[str] = Counter()
    running = asyncio.ensure_future(attack(host, int(port), pause_s, attacks, ended))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running
    num_attackers = sum(family.num_attackers for family in attacks)
    print(json.dumps({"num_attackers": num_attackers, **dict(sorted(ended.items()))}), flush=True)


if __name__ == "__main__":
    if hasattr(os, "SCHED_OTHER"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # whatever the server has
    os.nice(19)
    asyncio.run(_main(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
