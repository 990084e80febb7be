"""What a draft of another vocabulary is worth, and that it changes no text.

First every method that takes a draft model decodes prompts of Unicode, code, emoji, special tokens
and grammars, with the drafter in its process: each text must be plain decoding's, at temperatures 0
and 0.8. Then the pairs are simulated (`duodec bench --simulate-ms`): speed over plain decoding and
tokens a forward pass, beside a draft of the target's own vocabulary and beside none.

    python -m benchmarks vocabularies --data FOLDER --limit 3
    python -m benchmarks vocabularies --prompts 2 --max-tokens 16 --limit 0  # identity
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import Figures, Refuted
from duodec.bench.plan import BenchPlan
from duodec.bench.run import simulate
from duodec.bench.tasks import read_prompts
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import SamplingParams
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.methods.registry import METHODS
from tests.models.weights import weights

TEMPERATURES = (0.0, 0.8)
DRAFTED = [name for name, kind in METHODS.items() if kind().takes_draft_model]
_SCHEMA = Grammar(
    "json_schema",
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},'
    ' "required": ["name", "age"], "additionalProperties": false}',
)
_PROMPTS: tuple[tuple[str, Grammar | None], ...] = (
    ("Write a haiku about the sea.", None),
    ("Write a Python function that reverses a linked list.", None),
    ("Reply with ten emoji about food and no words.", None),
    ("Write 你好世界 and explain each character.", None),
    ("Invent a person and describe them.", _SCHEMA),
    ("What does the token <|im_end|> mean in a chat?", None),
    ("Übersetze ins Deutsche: The naïve café owner's résumé.", None),
    ("Give me a date.", Grammar("regex", r"[0-9]{4}-[0-9]{2}-[0-9]{2}")),
    ("Repeat exactly: 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪", None),
    ("Print a table of the squares from 1 to 12 in Markdown.", None),
    ("Напиши короткое стихотворение о зиме.", None),  # noqa: RUF001
    ("Fix this: for(int i=0;i<=n;i++){sum+=a[i];}", None),
    ("Yes or no: is 97 prime?", Grammar("regex", "(yes|no), because [a-z ]{1,40}")),
    ("اكتب جملة عن القمر.", None),
    ("Count from 1 to 30, separated by commas.", None),
    ("Write a bash one-liner that counts the lines of all *.py files.", None),
    ("List three synonyms of 'internationalization'.", None),
    ("def quicksort(items):\n    ", None),
    ("한국의 수도는 어디입니까?", None),
    ("A JSON object with keys 'a' to 'e' and their ASCII codes.", _SCHEMA),
)

# cost tables of draft steps on one core of a Zen 5 server, milliseconds by tokens
TABLES = {
    "smollm2-draft": "1:1.3,2:2.5,4:2.5,8:4.9",
    "smollm2": "1:4.6,2:8.5,4:11,8:15",
    "qwen2.5-coder-0.5b": "1:15,2:36,4:49,8:65",
}
PAIRS = (
    ("qwen2.5-coder-1.5b", "smollm2-draft"),
    ("qwen2.5-coder-1.5b", "smollm2"),
    ("smollm2", "qwen2.5-coder-0.5b"),
)
OWN = {"qwen2.5-coder-1.5b": "qwen2.5-coder-0.5b", "smollm2": "smollm2-draft"}


@dataclass
class Identity:
    """Texts of one method at one temperature."""

    completions: int = 0
    tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    divergences: list[str] = field(default_factory=list)


def identity(
    pair: tuple[str, str], num_prompts: int, max_tokens: int, threads: int | None, pace: float
) -> dict[str, Identity]:
    """Every method's texts beside plain decoding's."""
    found: dict[str, Identity] = defaultdict(Identity)
    target, draft = pair
    config = EngineConfig(
        target=str(weights(target)), draft=str(weights(draft)), exact=True, threads=threads,
        draft_threads=threads, context=2048, pace=pace,
    )  # fmt: skip
    with load(config) as engine:
        for text, grammar in _PROMPTS[:num_prompts]:
            for temperature in TEMPERATURES:
                params = SamplingParams(
                    temperature=temperature, top_p=0.95 if temperature else 1.0, seed=7,
                    max_tokens=max_tokens, grammar=grammar,
                )  # fmt: skip
                plain = _complete(engine, text, params, "ar")
                for method in DRAFTED:
                    if method == "sps-rejection" and temperature:
                        continue  # exact in distribution only
                    one = _complete(engine, text, params, method)
                    count = found[f"{method} T={temperature:g}"]
                    count.completions += 1
                    count.tokens += len(one.tokens)
                    count.draft_tokens += one.stats.num_draft_tokens
                    count.accepted_tokens += one.stats.num_accepted_tokens
                    if one.tokens != plain.tokens:
                        count.divergences.append(text)
    return dict(found)


def _complete(engine: LLM, text: str, params: SamplingParams, method: str) -> Any:
    return engine.chat([{"role": "user", "content": text}], params, method=method)


def speeds(plan: BenchPlan, draft: str | None) -> dict[str, dict[str, float]]:
    """Speed over plain decoding's and tokens a forward pass, by method."""
    prompts = read_prompts(plan.data, plan.tasks, plan.limit)
    reference = str(weights(draft)) if draft else "none"
    own = replace(plan, drafts=(reference,), draft_ms=TABLES[draft] if draft else None)
    results = simulate(own, prompts, lambda *done: None)
    seconds: dict[str, float] = defaultdict(float)
    tokens: dict[str, int] = defaultdict(int)
    forwards: dict[str, int] = defaultdict(int)
    for generation in results.generations:
        assert generation.error is None, generation.error
        seconds[generation.method] += generation.decode_s or 0.0
        tokens[generation.method] += generation.new_tokens or 0
        forwards[generation.method] += generation.rounds or 0
    base = tokens["ar"] / seconds["ar"]
    return {
        name: {
            "speedup": tokens[name] / seconds[name] / base,
            "tokens_per_forward": tokens[name] / forwards[name],
        }
        for name in seconds
    }


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts whose texts are compared.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a completion.")] = 64,
    limit: Annotated[int, typer.Option(help="Simulated prompts a task; 0: none.")] = 3,
    tasks: Annotated[str, typer.Option(help="Simulated tasks.")] = "mt_bench,humaneval,qa",
    methods: Annotated[str, typer.Option(help="Simulated methods.")] = "ar,sps:2,duo,stream,auto",
    latencies: Annotated[str, typer.Option(help="Milliseconds, by commas.")] = "50,100",
    threads: Annotated[int | None, typer.Option(help="Of target and draft.")] = None,
    pace: Annotated[float, typer.Option(help="Seconds of a forward pass: time to draft.")] = 0.2,
    only: Annotated[str | None, typer.Option(help="TARGET/DRAFT alone.")] = None,
) -> Figures:
    """Compare texts, then simulate."""
    console = Console()
    chosen = [pair for pair in PAIRS if only in (None, "/".join(pair))]
    record: dict[str, Any] = {"identity": {}, "speed": {}}
    for pair in chosen if prompts else ():
        found = identity(pair, prompts, max_tokens, threads, pace)
        record["identity"]["/".join(pair)] = {key: asdict(one) for key, one in found.items()}
        for label, one in found.items():
            console.print(
                f"{'/'.join(pair)} {label}: {one.completions} texts, {one.tokens} tokens, "
                f"{one.accepted_tokens} of {one.draft_tokens} accepted, "
                f"{len(one.divergences)} divergences {one.divergences or ''}", soft_wrap=True,
            )  # fmt: skip
    targets = dict.fromkeys(target for target, _ in chosen) if limit else ()
    for target in targets:
        drafts = [None, OWN[target], *(draft for own, draft in chosen if own == target)]
        for latency in latencies.split(","):
            plan = BenchPlan(
                methods=tuple(methods.split(",")), targets=(str(weights(target)),), data=data,
                limit=limit, tasks=tuple(tasks.split(",")), max_tokens=max_tokens,
                simulate_ms=float(latency),
                config=EngineConfig(threads=threads, draft_threads=threads),
            )  # fmt: skip
            for draft in drafts:
                names = tuple(m for m in plan.methods if draft or not _needs_model(m))
                figures = speeds(replace(plan, methods=names), draft)
                record["speed"][f"{target}/{draft}/{latency}"] = figures
                cells = (
                    f"{method} {one['speedup']:.2f}x ({one['tokens_per_forward']:.2f})"
                    for method, one in figures.items()
                )
                console.print(f"{target} {draft} {latency} ms: {'  '.join(cells)}", soft_wrap=True)
    if any(one["divergences"] for found in record["identity"].values() for one in found.values()):
        raise Refuted("a draft has changed a text", record)
    return record


def _needs_model(name: str) -> bool:
    return METHODS[name.partition(":")[0]]().needs_draft_model
