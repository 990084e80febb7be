"""Compile grammars that nobody would send, and follow them: no signal, no hang, no memory beyond
its bounds, no mask that takes long.

Schemas and expressions are drawn from families: nested repetition, references, products of
alternatives, long enumerations, counted expressions, lengths, names that look like notation; and
rules in llama.cpp's notation, by shape and size, whose translation has a time. Each
is tried as a server tries it. What passes is compiled in a fork of this process as it is for a
request, and followed at random.

    python -m stress.fuzz_grammars --num 5000 --seconds 600
"""

from __future__ import annotations

import json
import os
import random
import resource
import string
from collections import Counter
from collections.abc import Callable
from functools import cache
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import typer

from duodec.backends.grammar.child import _num_bytes as written_bytes
from duodec.backends.grammar.library import MOST_SOURCE_BYTES
from duodec.backends.grammar.llguidance import Masks
from duodec.backends.grammar.trial import NUM_BYTES, SECONDS, GrammarTrial
from duodec.core.sampling.grammar import Grammar, Kind
from duodec.errors import BadOption
from duodec.server.api.formats.gbnf import in_lark
from stress.fuzzing import ended, keep, publish
from stress.grammar_shapes import SHAPES

_SLACK = 2.0  # how much longer than its trial a grammar may take, and a second
_MOST_TRANSLATED_S = 3.0  # of rules of any shape: they have 256 KB at most
_MOST_MASK_S = 0.5  # of a forward pass of one request, on a busy machine
_NUM_TOKENS = 150  # followed of each grammar
_WALK_S = 20.0
_NUM_VOCAB = 40_000

Schema = dict[str, Any]
Dice = random.Random


class Vocabulary:
    """Bytes, the signs of JSON and random words; two control tokens, one of which is the end."""

    num_vocab = _NUM_VOCAB

    @staticmethod
    @cache
    def _pieces() -> tuple[bytes, ...]:
        dice = Dice(1)
        fixed = [bytes([i]) for i in range(256)]
        fixed += [s.encode() for s in ('":', '",', '{"', '"}', "[[", "]]", "},", "null", "true")]
        words = {
            "".join(dice.choices(string.ascii_letters + " ,.", k=dice.randint(2, 9))).encode()
            for _ in range(2 * _NUM_VOCAB)
        }
        return (*fixed, *sorted(words)[: _NUM_VOCAB - len(fixed) - 2], b"", b"")

    def piece(self, token: int) -> bytes:
        return self._pieces()[token]

    def token_text(self, token: int) -> bytes:
        return b"<|a|>" if token == _NUM_VOCAB - 2 else b"<|end|>"

    def is_end(self, token: int) -> bool:
        return token == _NUM_VOCAB - 1


# --- families


def _size(dice: Dice, most: int) -> int:
    """Small, mostly."""
    return int(most ** dice.random()) + 1


def _text(dice: Dice) -> str:
    odd = (
        "<[0]>",
        "<[256]>",
        "<|a|>",
        "start:",
        "%json",
        '"',
        "\\",
        "\n",
        "é",
        "\u2028",
        "😀",
        "\0",
    )
    return "".join(dice.choices([*odd, "a", "b", "c"], k=_size(dice, 20)))


def expression(dice: Dice, depth: int = 0) -> str:
    if depth > 4 or dice.random() < 0.2:
        return dice.choice(
            ("a", "b", ".", "[a-z]", "[^x]", r"\w", r"\d", r"\p{L}", "é", "(?s:.)", "")
        )
    inner = [expression(dice, depth + 1) for _ in range(dice.randint(1, 4))]
    low = _size(dice, 60)
    return dice.choice((
        lambda: f"({'|'.join(inner)})", lambda: f"({''.join(inner)})*",
        lambda: f"({''.join(inner)}){{{low},{low + _size(dice, 200)}}}",
        lambda: f"(.*{inner[0]}.{{{low}}})", lambda: "".join(inner), lambda: f"({inner[0]})?",
    ))()  # fmt: skip


def schema(dice: Dice, depth: int = 0) -> Any:
    if depth > 5 or dice.random() < 0.1:
        return dice.choice(
            ({}, True, {"type": "null"}, {"const": _text(dice)}, {"$ref": "#/$defs/s"})
        )
    inner: Callable[[], Any] = lambda: schema(dice, depth + 1)  # noqa: E731
    least = _size(dice, 300)
    found: Schema = dice.choice((
        lambda: {"type": "string", "pattern": expression(dice)},
        lambda: {"type": "string", "pattern": expression(dice, 2), "minLength": least,
                 "maxLength": least + _size(dice, 1000)},
        lambda: {"type": "string", "maxLength": _size(dice, 100_000)},
        lambda: {"type": "number", "minimum": dice.random() * 10**least, "multipleOf": least},
        lambda: {"type": "integer", "minimum": -least, "maximum": 10 ** _size(dice, 300)},
        lambda: {"enum": [_text(dice) for _ in range(_size(dice, 3000))]},
        lambda: {"enum": ["a" * i for i in range(_size(dice, 500))]},
        lambda: {"type": "array", "items": inner(), "minItems": _size(dice, 1000),
                 "maxItems": 1000 + least},
        lambda: {"type": "array", "items": inner(), "prefixItems": [inner() for _ in range(3)]},
        lambda: {"anyOf": [inner() for _ in range(_size(dice, 12))]},
        lambda: {"allOf": [inner() for _ in range(_size(dice, 12))]},
        lambda: {"anyOf": [inner()] * _size(dice, 200)},
        lambda: {"anyOf": [{"type": "array", "items": inner(), "minItems": i, "maxItems": 2 * i + 1}
                           for i in range(_size(dice, 300))]},
        lambda: {"allOf": [{"anyOf": [{"type": "string", "pattern": f".*{chr(65 + i)}.{{{least}}}"},
                                      {"type": "number", "multipleOf": i + 2}]}
                           for i in range(_size(dice, 26))]},
        lambda: {"type": "object", "properties": {_text(dice): inner() for _ in range(5)},
                 "required": [_text(dice)], "additionalProperties": inner()},
        lambda: {"type": "object",
                 "properties": {f"p{i}": {"type": "string"} for i in range(_size(dice, 3000))}},
        lambda: {"patternProperties": {expression(dice, 2): inner()}},
        lambda: {"type": "object", "minProperties": least, "maxProperties": 2 * least},
    ))()  # fmt: skip
    return found


def _chained(dice: Dice) -> Schema:
    """Definitions that refer to one another, each once or twice."""
    most, times = _size(dice, 3000), dice.randint(1, 3)
    rules: Schema = {f"d{most}": {"type": "null"}}
    for i in range(most):
        step = {"$ref": f"#/$defs/d{i + 1 if dice.random() < 0.98 else dice.randrange(most)}"}
        kind = dice.choice(("properties", "anyOf"))
        inner = {f"k{n}": step for n in range(times)} if kind == "properties" else [step] * times
        rules[f"d{i}"] = {"type": "object", kind: inner} if kind == "properties" else {kind: inner}
    return {"$defs": rules, "$ref": "#/$defs/d0"}


def _of_rules(dice: Dice) -> Grammar:
    """Rules in llama.cpp's notation, by shape and size; as they are where that is none."""
    rules = dice.choice(list(SHAPES.values()))(_size(dice, MOST_SOURCE_BYTES))
    try:
        return Grammar("lark", in_lark(rules))
    except ValueError:
        return Grammar("lark", rules)


def drawn(number: int) -> Grammar:
    """The grammar of a number."""
    dice = Dice(number)
    kind: Kind = dice.choice(("regex", "lark", "json_schema", "json_schema", "json_schema"))
    if kind == "lark":
        return _of_rules(dice)
    if kind == "regex":
        return Grammar(kind, expression(dice))
    if dice.random() < 0.1:
        return Grammar(kind, json.dumps(_chained(dice)))
    whole = schema(dice)
    if isinstance(whole, dict):
        whole = {"$defs": {"s": schema(dice, 2)}, **whole}
    return Grammar(kind, json.dumps(whole))


# --- what becomes of them


def followed(grammar: Grammar, masks: Masks, num_bytes: int, number: int) -> dict[str, float]:
    """Compile a grammar, and follow it at random; what it took."""
    dice = Dice(number)
    before, begin_s = written_bytes(), process_time()
    mask = masks.mask(grammar, num_bytes)
    compile_s, compiled = process_time() - begin_s, written_bytes()
    path: list[int] = []
    slowest_s, end_s, error = 0.0, perf_counter() + _WALK_S, 0
    while len(path) < _NUM_TOKENS and perf_counter() < end_s:
        begin_s = process_time()
        try:
            allowed = mask.allowed(np.array(path, dtype=np.int32))
        except BadOption:
            error = 1
            break
        finally:
            slowest_s = max(slowest_s, process_time() - begin_s)
        choices = np.flatnonzero(allowed) if allowed is not None else np.empty(0)
        if not len(choices) or masks.words.ends[0] in path:
            break
        some = [int(choices[dice.randrange(len(choices))]) for _ in range(4)]
        length: Callable[[int], int] = lambda token: len(masks.words.tokens[token])  # noqa: E731
        path.append((max if dice.random() < 0.3 else min)(some, key=length))
    return {
        "compile_s": compile_s, "mask_s": slowest_s, "num_tokens": len(path), "is_error": error,
        "compiled_mb": (compiled - before) / 1e6, "followed_mb": (written_bytes() - compiled) / 1e6,
    }  # fmt: skip


def problem_of(facts: dict[str, float]) -> str:
    """What is wrong with a grammar that passed its trial, or ""."""
    if facts["compile_s"] > _SLACK * SECONDS + 1:
        return f"compiled in {facts['compile_s']:.1f} s"
    if facts["compiled_mb"] > NUM_BYTES / 1e6:
        return f"takes {facts['compiled_mb']:.0f} MB"
    if facts["mask_s"] > _MOST_MASK_S:
        return f"a mask takes {facts['mask_s']:.2f} s"
    return ""


def _forked(grammar: Grammar, masks: Masks, num_bytes: int, number: int) -> dict[str, float] | str:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.write(writing, json.dumps(followed(grammar, masks, num_bytes, number)).encode())
        except BaseException as error:  # noqa: BLE001  a fork of ours never goes on
            os.write(writing, json.dumps(f"{type(error).__name__}: {error}"[:900]).encode())
        os._exit(0)
    os.close(writing)
    found = ended(child, _WALK_S + 10 * SECONDS)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    if found is None or found[0] != 0:
        return "hangs" if found is None else f"ended with {found[0]}"
    facts: dict[str, float] | str = json.loads(said)
    return facts


def main(
    num: Annotated[int, typer.Option(help="How many grammars.")] = 2000,
    first: Annotated[int, typer.Option(help="The number of the first.")] = 0,
    seconds: Annotated[float, typer.Option(help="The most time to take.")] = 600.0,
    is_published: Annotated[bool, typer.Option("--publish", help="Write the results.")] = False,
) -> None:
    """Try, compile and follow grammars."""
    trial, masks = GrammarTrial(), Masks(Vocabulary())
    masks.mask(Grammar("regex", "a"), 1)  # the vocabulary is read before any fork
    kinds: Counter[str] = Counter()
    most: dict[str, float] = {}
    failures, end_s, slowest_s, translated_s = [], perf_counter() + seconds, 0.0, 0.0
    for number in range(first, first + num):
        if perf_counter() > end_s:
            break
        begin_s = process_time()
        grammar = drawn(number)
        if grammar.kind == "lark":  # that was translated
            translated_s = max(translated_s, process_time() - begin_s)
        begin_s = perf_counter()
        try:
            num_bytes = trial(grammar, masks.words)
        except BadOption as error:
            kinds[_kind(str(error))] += 1
            slowest_s = max(slowest_s, perf_counter() - begin_s)
            continue
        slowest_s = max(slowest_s, perf_counter() - begin_s)
        found = _forked(grammar, masks, num_bytes, number)
        problem = found if isinstance(found, str) else problem_of(found)
        if isinstance(found, dict):
            most = {name: max(value, most.get(name, 0)) for name, value in found.items()}
            kinds["too complex later" if found["is_error"] else "followed"] += 1
        if problem:
            failures.append(f"{number}: {problem}")
            print(
                "FAILED",
                keep("grammar", number, problem, grammar.source[:2000]),
                problem,
                flush=True,
            )
    if translated_s > _MOST_TRANSLATED_S:
        failures.append(f"rules were translated in {translated_s:.1f} s")
    rounded = {name: round(value, 3) for name, value in most.items()}
    facts = {
        "num_grammars": sum(kinds.values()), "kinds": dict(kinds), "most": rounded,
        "slowest_trial_s": round(slowest_s, 2), "translated_s": round(translated_s, 2),
        "failures": failures,
    }  # fmt: skip
    print(json.dumps(facts, indent=1))
    if is_published:
        publish("grammars", facts)
    raise typer.Exit(bool(failures))


def _kind(refusal: str) -> str:
    for words in ("takes longer", "takes more", "too deeply", "too complex", "is the most"):
        if words in refusal:
            return words
    return "cannot be used"


if __name__ == "__main__":
    typer.run(main)
