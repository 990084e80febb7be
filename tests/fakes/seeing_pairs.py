"""Load tiny models that see pictures, with drafts for them, and ask about pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.vision_models import Files, picture_file, write_seeing

from duodec import LLM, SamplingParams
from duodec.backends.llamacpp.vision.sight import LlamaSight
from duodec.chat.pictures import ImageFile

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
NUM_TOKENS, NUM_SLOTS = 30, 3
BRANCHED = ("lookahead", "recycling")  # methods that need trees


@dataclass(frozen=True)
class Pair:
    """Models of a family, loaded."""

    family: str
    files: Files
    llm: LLM
    options: dict[str, Any]

    @property
    def sight(self) -> LlamaSight:
        sight = getattr(self.llm.loaded.tokenizer, "sight", None)
        assert isinstance(sight, LlamaSight)
        return sight

    @property
    def num_encoded(self) -> int:
        return self.sight.projector.num_encoded

    def has(self, method: str) -> bool:
        return method not in BRANCHED or self.llm.loaded.target.traits.has_branches


@contextmanager
def load_pair(folder: Path, family: str, *, num_heads: int = 0, **more: Any) -> Iterator[Pair]:
    """A pair of this family, written into a folder; with ``num_heads``, the target has layers of
    multi-token prediction. ``more``: options of `LLM.load`."""
    files = write_seeing(folder, family, num_heads=num_heads)
    template = folder / "template.jinja"
    template.write_text(CHATML)
    options: dict[str, Any] = {
        "draft": str(files.draft), "context": 512, "threads": 1, "draft_threads": 1,
        "chat_template": str(template), **more,
    }  # fmt: skip
    with LLM.load(str(files.target), num_slots=NUM_SLOTS, **options) as llm:
        yield Pair(family, files, llm, options)


def image(number: int = 0, size: tuple[int, int] = (48, 32)) -> dict[str, Any]:
    return {"type": "image", "image": ImageFile(picture_file(number, size))}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def asked(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


ABOUT = asked(words("one two three one two"), image(), words("one two three one two"))
TWO = asked(image(1), words("one two"), image(2, (40, 64)), words("one two one two"))


def params(llm: LLM, temperature: float, seed: int = 7) -> SamplingParams:
    """Without the tokens that end a text."""
    bias = dict.fromkeys(llm.end_tokens, -100.0)
    return SamplingParams(
        max_tokens=NUM_TOKENS, temperature=temperature, seed=seed, logit_bias=bias
    )


def tokens(llm: LLM, prompt: Any, own: SamplingParams, method: str = "ar") -> tuple[int, ...]:
    (done,) = llm.generate([prompt], own, method=method)
    return tuple(done.tokens)
