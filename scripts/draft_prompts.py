"""Write the prompts that the shipped draft learned from, and show that no benchmark holds them.

    python -m scripts.draft_prompts write prompts.jsonl --wheel homeassistant.whl
    duodec distill smollm2 --prompts prompts.jsonl --minutes 150 --output draft.gguf
    python -m scripts.draft_prompts check prompts.jsonl --data FOLDER

Sources, all of them Apache-2.0 or our own: the prompts of `duodec distill`; questions, sums and
tasks written here; German sentences and their English ones of home-assistant/core (the wheel
homeassistant 2025.4.4: `pip download --no-deps homeassistant==2025.4.4 --python-version 3.13
--only-binary :all:`); functions and prose of the installed transformers; and articles that
Qwen2.5-Coder-1.5B-Instruct writes about subjects named here.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import track
from tests.models.weights import weights

from duodec import SamplingParams
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec_lab.bench.tasks import TASKS, read_prompts
from duodec_lab.distill.prompts.builtin import conversations

SEED = 0
_WORDS_SHARED = 10  # so many words in a row that a benchmark has, too, are a prompt of it

_TOPICS = (
    "a storm that closed a harbour", "a village that opened its own library",
    "a company that builds electric ferries", "a court ruling about fishing rights",
    "a young pianist who won a prize", "a wildfire near a national park",
    "the return of otters to a river", "a football club that was saved by its fans",
    "a new tram line and the protests against it", "a hospital that treats patients at home",
    "an election in a small coastal town", "the discovery of an ancient shipwreck",
    "a school that teaches outdoors", "a strike of airport workers", "a rare eclipse",
    "a bakery that gives bread away", "an actor who became a farmer", "a flood and its helpers",
    "a robbery in a museum", "a satellite that studies the oceans", "a chess tournament",
    "the trial of a businessman accused of fraud", "a marathon run in the desert",
    "a bridge that had to be closed", "twins who met after forty years",
    "a singer's farewell tour", "a zoo that lost a penguin", "a heat wave in the capital",
    "a new law on plastic packaging", "a mountain rescue at night", "a railway built long ago",
    "the history of a castle on an island", "an old theatre and its ghosts",
    "the life of a botanist who travelled to South America", "how a lighthouse was moved inland",
    "the origin of a folk song", "a television series about a family of doctors",
    "a mineral used in ceramics", "the migration of storks", "the invention of the zip fastener",
    "a saint's day and how it is celebrated", "a river and the towns along it",
    "a battle over a mountain pass", "the rules of an old ball game", "a comet and who found it",
    "a city's underground railway", "a queen who reformed the schools", "how vinegar is made",
    "a species of deep-sea fish", "the architecture of wooden churches",
    "a band that recorded one album", "a film about a lost expedition", "the currency of an island",
    "a university founded by merchants", "a disease of potatoes", "a canal and its locks",
)  # fmt: skip
_SUBJECTS = (
    "the abacus", "almonds", "ants", "aqueducts", "avalanches", "ballet", "bamboo", "barometers",
    "beavers", "black holes", "blood pressure", "board games", "butter", "camels", "canals",
    "candles", "caves", "cheese", "chimneys", "clouds", "coffee", "comets", "copper", "cork",
    "dams", "democracy", "diamonds", "dolphins", "dreams", "drums", "electric cars", "elevators",
    "encryption", "evolution", "eyeglasses", "falcons", "flags", "flutes", "fog", "fossils",
    "geysers", "ginger", "glass", "gold rushes", "hiccups", "honey", "hurricanes", "ice cream",
    "inflation", "insurance", "iron", "jazz", "jigsaw puzzles", "juggling", "kangaroos", "lasers",
    "leap years", "lemons", "lighting a fire", "marathons", "meteorites", "microscopes", "mirrors",
    "mosaics", "moss", "mushrooms", "nuclear power", "oak trees", "octopuses", "opera", "origami",
    "passports", "pencils", "pepper", "pianos", "pigeons", "pirates", "planets", "podcasts",
    "postal services", "pumpkins", "pyramids", "quartz", "rain forests", "recycling", "rice",
    "robots", "roller coasters", "rope", "rubber", "rust", "sailing", "salt", "satellites",
    "saturn's rings", "seahorses", "seeds", "shadows", "shipwrecks", "silk", "skyscrapers",
    "snow", "soap", "spices", "spiders", "sundials", "surnames", "swimming", "taxes", "theatre",
    "thunder", "tigers", "time zones", "toothpaste", "trade winds", "traffic lights", "tulips",
    "tunnels", "typewriters", "umbrellas", "violins", "volleyball", "voting", "waterfalls",
    "weather forecasts", "whales", "wheat", "wolves", "wool", "zoos",
)  # fmt: skip
_REQUESTS = (
    "Write a blog post about {} that makes people curious.",
    "Imagine you are an expert on {}. What would you tell a beginner first?",
    "Write a persuasive speech about {}.",
    "How do {} work, and what has changed about them over time?",
    "What would the world be like without {}? Think step by step.",
    "Write a product description, a slogan and three hashtags about {}.",
    "Give arguments for and against spending more public money on {}.",
    "Write a scene for a play in which two friends argue about {}.",
    "Classify these as related to {} or not, with a reason each: a hammer, a river, a song, a law.",
    "Draft a short, polite message that cancels a visit to an exhibition on {}.",
    "Who is best known in connection with {}, and why?",
    "When and where did {} first play a role in history?",
    "Write a Python class that models {} with three attributes and two methods.",
    "Plan a day for a family that is interested in {}.",
    "Correct the grammar: 'me and him was always talk about {} because they is interesting.'",
    "Write an opening paragraph of a mystery novel that begins with {}.",
    "What is the difference between a fact and an opinion? Use {} as the example.",
    "Extract the nouns: 'Nobody in the village had seen {} before the old teacher came.'",
)
_LATER = (
    "Make it half as long.", "Rewrite it without any word of more than three syllables.",
    "Start every sentence with the same letter.", "Give me two more examples.",
    "What assumptions did you make?", "Put the main points into a numbered list.",
    "Now answer as a pirate would.", "Is there anything in your answer that may be wrong?",
)  # fmt: skip
_SHORT = (
    "Who invented {}?", "What is the meaning of {}?", "Where do {} come from?",
    "When were {} first used?", "What are {} made of?", "How many kinds of {} are there?",
    "What is another name for {}?", "Which country is famous for {}?",
)  # fmt: skip
_OF_ARTICLES = (
    "Summarize: {}", "Summarize: {}", "{}\nWhat is this text about, and what happened?",
    "{}\nWho or what is described here?", "Read the text and list its main points.\n\n{}",
    "{}\nWhy is this important?",
)  # fmt: skip
_SUMS = (
    "{n} buys {a} notebooks at {b} dollars each and pays with a {d} dollar note. How much change?",
    "A farmer has {d} sheep. He sells {a} of them and then buys {b} times {c}. How many now?",
    "{n} runs {a} miles on each of {b} days and twice as far on {c} days. How many miles in all?",
    "There are {d} seats in a hall. {a} rows of {b} are taken. What percentage is free?",
    "{n} earns {b} dollars an hour, works {a} hours a day and spends {c} dollars a day on food. "
    "How much is left after 5 days?",
    "A recipe for {c} people needs {a} eggs. How many eggs are needed for {e} people?",
    "{n} is {a} years older than Sam. In {b} years Sam will be {d}. How old is {n} now?",
    "A bag has {a} red, {b} blue and {c} green marbles. {n} takes out half of the red ones. How "
    "many marbles are left?",
    "A train travels {d} miles in {b} hours. How far does it travel in {c} hours at that speed?",
    "{n} saves {a} dollars in the first week and {b} dollars more each week than the week before. "
    "How much after {c} weeks?",
    "A box holds {a} layers of {b} chocolates. {n} eats {c} a day. How many days does it last?",
    "{n} had {d} stamps, gave a third of them to a friend and lost {c}. How many are left?",
)
_OF_CODE = (
    "{}", "Complete this function:\n\n```python\n{}```",
    "Write the body of this Python function; show all of it in a code block.\n\n```python\n{}```",
)  # fmt: skip
_NAMES = ("Jana", "Omar", "Lucy", "Felix", "Priya", "Ben", "Carla", "Yuki", "Ivan", "Grace")

app = typer.Typer(add_completion=False, help=inspect.cleandoc(__doc__ or ""))
Turns = tuple[str, ...]


@app.command()
def write(output: Path, wheel: Annotated[Path, typer.Option()], articles: int = 48) -> None:
    """Write every conversation as a line of a .jsonl file."""
    dice = np.random.default_rng(SEED)
    every = [*conversations(), *_asked(dice), *_sums(dice), *_german(wheel, dice), *_code(dice)]
    every += _about_texts([*_prose(dice), *_articles(articles)], dice)
    with output.open("w", encoding="utf-8") as file:
        for turns in dict.fromkeys(every):
            file.write(json.dumps({"turns": turns}, ensure_ascii=False) + "\n")
    print(f"{len(set(every))} conversations", file=sys.stderr)


@app.command()
def check(prompts: Path, data: Annotated[Path, typer.Option()]) -> None:
    """Exit with 1 if a prompt shares ten words in a row with a prompt of the benchmark."""
    theirs = {
        gram
        for prompt in read_prompts(data, TASKS, None)
        for turn in prompt.turns
        for gram in _grams(turn)
    }
    ours = [json.loads(line)["turns"] for line in prompts.read_text("utf-8").splitlines()]
    shared = [turn for turns in ours for turn in turns if theirs.intersection(_grams(turn))]
    for turn in shared:
        print(turn[:200])
    print(f"{len(shared)} of {len(ours)} conversations share {_WORDS_SHARED} words in a row")
    raise typer.Exit(bool(shared))


def _grams(text: str) -> Iterator[Turns]:
    words = re.findall(r"\w+", text.lower())
    for i in range(len(words) - _WORDS_SHARED + 1):
        yield tuple(words[i : i + _WORDS_SHARED])


# --- kinds of conversations


def _asked(dice: np.random.Generator) -> Iterator[Turns]:
    for i, subject in enumerate(_SUBJECTS):
        for j in range(4):
            asked = _REQUESTS[(5 * i + j) % len(_REQUESTS)].format(subject)
            yield (asked, str(dice.choice(_LATER))) if j == 0 else (asked,)
        for j in range(2):
            yield (_SHORT[(3 * i + j) % len(_SHORT)].format(subject),)


def _sums(dice: np.random.Generator) -> Iterator[Turns]:
    for i in range(240):
        a, b, c = (int(dice.integers(2, high)) for high in (19, 12, 9))
        values = {"a": a, "b": b, "c": c, "d": a * b + 6 * c, "e": 3 * c, "n": dice.choice(_NAMES)}
        yield (_SUMS[i % len(_SUMS)].format(**values),)


def _german(wheel: Path, dice: np.random.Generator) -> Iterator[Turns]:
    """Sentences of a program's German translation."""
    found: dict[str, None] = {}
    with zipfile.ZipFile(wheel) as files:
        names = sorted(name for name in files.namelist() if name.endswith("translations/de.json"))
        for name in names:
            found.update(dict.fromkeys(_strings(json.loads(files.read(name)))))
    sentences = [
        text
        for text in found
        if 60 <= len(text) <= 320 and not re.search(r"[{}\[\]<>*`\n]|http", text)
    ]
    for i in dice.choice(len(sentences), 260, replace=False):
        yield (f"Translate German to English: {sentences[i]}",)


def _strings(tree: object) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _strings(value)


def _functions() -> Iterator[tuple[str, str]]:
    """Signature and docstring of the functions of transformers, in the order of their files."""
    spec = find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        raise typer.BadParameter("transformers is not installed; run make setup-torch")
    for path in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
        source = path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if isinstance(node, ast.FunctionDef) and text and len(text) > 80:
                head = source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]
                yield inspect.cleandoc("\n".join(head)), text


def _code(dice: np.random.Generator) -> Iterator[Turns]:
    """Functions to be completed: a signature and what it is to do."""
    found = list({text: head for head, text in _functions() if len(head) + len(text) < 900}.items())
    for i in dice.choice(len(found), 160, replace=False):
        text, head = found[i]
        lines = "\n".join(f"    {line}".rstrip() for line in f'"""{text}\n"""'.splitlines())
        yield (_OF_CODE[i % len(_OF_CODE)].format(f"{head}\n{lines}\n"),)


def _prose(dice: np.random.Generator) -> list[str]:
    """Passages of documentation."""
    every = {text for _, text in _functions() if 900 < len(text) < 3600}
    found = sorted(text for text in every if ">>>" not in text)
    return [found[i] for i in dice.choice(len(found), 60, replace=False)]


def _articles(number: int) -> list[str]:
    """News and encyclopedia articles, written by a larger model."""
    asked = [
        "Write a detailed "
        + ("news report" if i < len(_TOPICS) // 2 else "encyclopedia article")
        + f" of six paragraphs about {topic}, with invented names, places, dates and figures. Use "
        "plain prose without headings."
        for i, topic in enumerate(_TOPICS)
    ]
    step = len(asked) / max(1, number)
    chosen = [asked[int(i * step)] for i in range(number)]
    params = [
        SamplingParams(temperature=0.7, top_p=0.95, max_tokens=620, seed=SEED + i)
        for i in range(number)
    ]
    texts = []
    with load(EngineConfig(str(weights("qwen2.5-coder-1.5b")), num_slots=8)) as llm:
        prompts = [llm.tokens_of([{"role": "user", "content": text}]) for text in chosen]
        for i in track(range(0, number, 16), "articles"):
            done = llm.generate(prompts[i : i + 16], params[i : i + 16], method="ar")
            texts += [completion.text.strip() for completion in done]
    return texts


def _about_texts(texts: Iterable[str], dice: np.random.Generator) -> Iterator[Turns]:
    """Summaries, and questions after one text or several."""
    every = list(texts)
    for i, text in enumerate(every):
        for j in range(3):
            yield (_OF_ARTICLES[(i + 2 * j) % len(_OF_ARTICLES)].format(text),)
        others = [every[k] for k in dice.choice(len(every), 4, replace=False)]
        shown = "\n\n".join([*(one[:700] for one in others), text[:900]])
        first = re.split(r"(?<=[.!?])\s", text)[0]
        yield (f"{shown}\nWhat do the texts say about this: {first[:120]}",)


if __name__ == "__main__":
    app()
