"""Have a target write prompts of the kind that it was trained to answer (Magpie, arXiv 2406.08464).

All that it sees is its chat template up to the place where a user speaks: what it samples there is
a user's message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from time import perf_counter

from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec_lab.distill.files import Folder, read_json, write_json
from duodec_lab.distill.recording import OnProgress, with_seeds

_TEMPERATURE, _TOP_P = 1.0, 0.9
_MOST_TOKENS = 160  # a longer message is left out, as it has no end
_LEAST_CHARACTERS = 8
_MOST_TRIES = 4  # messages that are sampled, for each that is wanted
_AT_ONCE = 4  # messages of a batch, for each slot, so that few slots stand idle at its end
_PLACES = ("Xylophones", "7")  # messages whose tokens differ from the first to the last


@dataclass
class Written:
    """The messages that a target wrote, of how many it began, in how many seconds."""

    messages: list[str] = field(default_factory=list)
    num_sampled: int = 0
    seconds: float = 0.0

    @classmethod
    def read(cls, folder: Folder) -> Written:
        """What an interrupted run left. Raises BadOption if it is damaged."""
        record = read_json(folder.written_prompts)
        try:
            return cls(**record) if record else cls()
        except TypeError as error:
            raise BadOption(
                f"{folder.written_prompts} is damaged; delete it to have prompts written again"
            ) from error

    def write(self, folder: Folder) -> None:
        """Raises OSError if the disk is full."""
        write_json(folder.written_prompts, asdict(self))


def write_prompts(
    llm: LLM,
    number: int,
    seed: int,
    folder: Folder,
    *,
    most_s: float,
    on_progress: OnProgress,
    clock: Callable[[], float] = perf_counter,
) -> Written:
    """So many different messages, or as many as ``most_s`` seconds give; fewer where the target
    ends few of them, or repeats itself. Raises BadOption for a chat template that begins with the
    message, OSError if the disk is full, and what the target raises: whole batches stay."""
    before, after = around_a_message(llm)
    params = SamplingParams(
        temperature=_TEMPERATURE,
        top_p=_TOP_P,
        max_tokens=_MOST_TOKENS,
        seed=seed,
        stop_token_ids=after[:1],
    )
    written, most = Written.read(folder), _MOST_TRIES * number
    while (
        len(written.messages) < number and written.num_sampled < most and written.seconds < most_s
    ):
        begin_s, first = clock(), written.num_sampled
        count = min(_AT_ONCE * llm.loaded.num_slots, most - first)
        every = with_seeds(params, range(first, first + count))
        done = llm.generate([before] * count, every, method="ar")
        ended = [c.text.strip() for c in done if c.finish_reason == "stop"]
        found = [*written.messages, *(text for text in ended if len(text) >= _LEAST_CHARACTERS)]
        written = Written(
            list(dict.fromkeys(found))[:number], first + count, written.seconds + clock() - begin_s
        )
        written.write(folder)
        on_progress("writing prompts", len(written.messages), number)
    return written


def around_a_message(llm: LLM) -> tuple[list[int], list[int]]:
    """The tokens of the chat template before and after a user's message. Raises BadOption if there
    are none before it."""
    one, other = (llm.tokens_of([{"role": "user", "content": text}]) for text in _PLACES)
    before, after = _common(one, other), _common(one[::-1], other[::-1])[::-1]
    if not before:
        raise BadOption(
            "the chat template puts nothing before a user's message, so the target cannot be led "
            "to write one; leave --write-prompts out"
        )
    return before, after


def _common(one: list[int], other: list[int]) -> list[int]:
    """What both begin with."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [token for token, _ in pairs]
