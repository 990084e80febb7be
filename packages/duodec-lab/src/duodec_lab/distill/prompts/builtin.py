"""Write prompts of our own: subjects put into questions, sums, code and translations.

None of them is in the benchmark's prompts (a test compares). Long prompts come of second turns,
which see the target's own first answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, cycle, islice, product, zip_longest

Turns = tuple[str, ...]

_SUBJECTS = (
    "the water cycle", "photosynthesis", "volcanoes", "the printing press", "glaciers", "bees",
    "the human heart", "lighthouses", "steam engines", "coral reefs", "the compass", "vaccines",
    "the Roman roads", "chess", "bicycles", "the moon's phases", "bread baking", "tides",
    "earthquakes", "the Silk Road", "owls", "bridges", "the immune system", "rainbows", "deserts",
    "the telegraph", "tea", "magnets", "the orchestra", "penguins", "windmills", "paper making",
    "the stock market", "radio waves", "maple trees", "submarines", "the calendar", "yoga",
    "fermentation", "libraries", "solar panels", "the Vikings", "sleep", "kites", "pottery",
    "gravity", "maps", "elephants", "the alphabet", "rivers", "pendulum clocks", "gardening",
)  # fmt: skip
_QUESTIONS = (
    "Explain {} to a curious ten-year-old.",
    "What are three surprising facts about {}?",
    "Write a short paragraph on the history of {}.",
    "Give five tips for someone who wants to learn about {}.",
    "Compare {} with something from everyday life.",
    "Why does {} matter today? Answer in a few sentences.",
    "Write a dialogue between a teacher and a student about {}.",
    "List the main parts or stages of {} and describe each in one line.",
    "Write a poem of eight lines about {}.",
    "What do people often get wrong about {}?",
    "Write an outline for a talk on {}, with headings and bullet points.",
    "Describe {} in the style of a travel guide.",
    "Make a table with two columns, term and meaning, for five words used when talking about {}.",
    "Write a JSON object with the keys title, summary and keywords for an article about {}.",
    "Write an email that invites colleagues to an evening about {}.",
    "Tell a short story in which {} play a part.",
)
_AFTERWARDS = (
    "Summarize your answer in two sentences.",
    "Now say the same in simpler words.",
    "Turn that into a list of questions and answers.",
    "Translate your answer into German.",
    "Which part of that is most important, and why?",
    "Translate the first sentence of your answer into French and Spanish.",
    "Rewrite it as a formal letter.",
    "What would a sceptical reader object to?",
)
_TASKS_OF_CODE = (
    "reverses the words of a sentence", "counts the vowels in a string",
    "returns the second largest number of a list", "checks whether a number is prime",
    "merges two sorted lists", "finds the longest common prefix of a list of strings",
    "converts Roman numerals to integers", "removes duplicates and keeps the order",
    "groups a list of words by their first letter", "computes a moving average",
    "reads a CSV file and sums a column", "flattens a nested list", "rotates a matrix",
    "validates an email address with a simple rule", "implements a stack with push and pop",
    "finds all pairs that add up to a given sum", "generates the first n square numbers",
    "converts seconds into hours, minutes and seconds", "counts how often each word occurs",
    "does a binary search", "computes the greatest common divisor", "transposes a table",
    "checks whether brackets are balanced", "caches the results of another function",
)  # fmt: skip
_LANGUAGES_OF_CODE = ("Python", "JavaScript", "Python", "C", "Python", "SQL or Python")
_SENTENCES = (
    "The train to the coast leaves at half past seven.", "I have never seen such a bright star.",
    "Could you tell me where the nearest pharmacy is?", "The children built a castle of sand.",
    "Our meeting has been moved to Thursday morning.", "She learned to play the violin last year.",
    "Please close the window before you leave.", "The soup needs a little more salt.",
    "He forgot his umbrella on the bus again.", "The museum is free on the first Sunday.",
    "We are looking for a flat with two rooms.", "The old bridge was repaired in spring.",
    "My grandmother grows tomatoes behind her house.", "The film was longer than I expected.",
    "This road leads through a quiet forest.", "You can pay by card or in cash.",
    "The doctor asked how well I sleep.", "They painted the door dark green.",
)  # fmt: skip
_LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")
_SUMS = (
    "A shop sells {a} boxes a day with {b} pencils in each. How many pencils are sold in {c} days?",
    "{name} has {a} coins, gives {b} away and gets {b} from each of {c} friends. How many now?",
    "A tank holds {d} litres. Each hour {a} flow out and {b} in. What is left after {c} hours?",
    "Tickets cost adults {a} dollars, children {b}. What do {c} adults and {a} children pay?",
    "{name} reads {a} pages a day and {b} more on Sundays. How many pages is that in {c} weeks?",
)
_NAMES = ("Mara", "Tom", "Aisha", "Leo", "Ines", "Pavel", "Noor", "Kim")


def conversations() -> Iterator[Turns]:
    """What a user says in each conversation, kinds of prompts in turn."""
    kinds = (_asked(), _code(), _translated(), _sums())
    return (one for one in chain.from_iterable(zip_longest(*kinds)) if one is not None)


def _asked() -> Iterator[Turns]:
    """Each subject with four of the questions, half of them with a second turn."""
    questions, later = cycle(_QUESTIONS), cycle((None, *_AFTERWARDS[:4], None, *_AFTERWARDS[4:]))
    for subject in _SUBJECTS * 4:
        question = next(questions).format(subject)
        second = next(later)
        yield (question, second) if second else (question,)


def _code() -> Iterator[Turns]:
    for i, task in enumerate(_TASKS_OF_CODE):
        language = _LANGUAGES_OF_CODE[i % len(_LANGUAGES_OF_CODE)]
        asked = f"Write a {language} function that {task}."
        yield (asked, "Add a docstring or comments, and an example of a call.")
        yield (f"Explain step by step how to write a program that {task}.",)


def _translated() -> Iterator[Turns]:
    pairs = product(_SENTENCES, _LANGUAGES)
    for sentence, language in islice(pairs, 0, None, 2):
        yield (f"Translate into {language}: {sentence}",)


def _sums() -> Iterator[Turns]:
    for i in range(60):
        a, b, c = 3 + i % 11, 2 + i % 7, 2 + i % 5
        values = {"a": a, "b": b, "c": c, "d": 20 + a * c, "name": _NAMES[i % len(_NAMES)]}
        yield (_SUMS[i % len(_SUMS)].format(**values) + " Show your work.",)
