"""List the families of models that people run, and the draft that is known for each."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Describe targets, by architecture and name, and the draft published for them."""

    name: str
    architectures: frozenset[str]  # as GGUF files and config.json name them
    pattern: str  # matches names in lower case, words joined by single dashes
    draft: str  # a reference
    num_params: float  # parameters of the draft
    use: str  # what is to be expected

    def holds(self, architecture: str, names: tuple[str, ...]) -> bool:
        """Return whether a model belongs here, by its architecture and any of its names."""
        return architecture in self.architectures and any(
            re.search(self.pattern, _plain(name)) for name in names
        )


_SAME = "same vocabulary"
_TEXT = "another vocabulary: its text is tokenised anew"


def _family(name: str, kinds: str, pattern: str, draft: str, params: float, use: str) -> Family:
    return Family(name, frozenset(kinds.split()), pattern, draft, params, use)


_QWEN3 = "hf:Qwen/Qwen3-0.6B-GGUF:q8_0"

# The first that holds counts, so narrower patterns come first.
FAMILIES = (
    _family(
        "Qwen2.5-Coder", "qwen2", r"qwen2\.?5-coder", "qwen2.5-coder-0.5b", 0.49e9,
        f"{_SAME}; 84% of first guesses right for the 1.5B",
    ),
    _family(
        "Qwen2.5", "qwen2 qwen2moe", r"qwen-?2|qwq|deepseek-r1-distill-qwen",
        "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m", 0.49e9, _SAME,
    ),
    _family(
        "Qwen3", "qwen3 qwen3moe qwen3_moe", r"qwen-?3(?![.\d])", _QWEN3, 0.6e9, _SAME,
    ),
    _family(
        "Qwen3.5 and later", "qwen35 qwen35moe qwen3next qwen3_5 qwen3_5_moe qwen3_next",
        r"qwen-?3", _QWEN3, 0.6e9,
        f"{_TEXT}; its own siblings are recurrent, and draft chains only",
    ),
    _family(
        "Llama 3", "llama", r"llama-?3|llama-v3|hermes-3",
        "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", 1.2e9, _SAME,
    ),
    _family(
        "SmolLM3", "smollm3", r"smollm-?3", "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        1.2e9, "Llama 3's vocabulary, some special tokens apart",
    ),
    _family(
        "SmolLM2", "llama", r"smollm-?2", "smollm2-draft", 0.05e9,
        f"{_SAME}; 45% of first guesses right for the 135M",
    ),
    _family(
        "Gemma 3", "gemma3 gemma3_text gemma3n", r"gemma-?3",
        "hf:ggml-org/gemma-3-270m-it-GGUF:Q8_0", 0.27e9, _SAME,
    ),
    _family(
        "Mistral, Tekken", "llama mistral mistral3",
        r"mistral-small|mistral-nemo|devstral|magistral|ministral",
        "hf:alamios/Mistral-Small-3.1-DRAFT-0.5B-GGUF:Q8_0", 0.5e9,
        f"{_SAME} for Small 3.1 and its fine-tunes, else its text is tokenised anew",
    ),
    _family("Mistral", "llama mistral mixtral", r"mistral|mixtral", _QWEN3, 0.6e9, _TEXT),
    _family("gpt-oss", "gpt-oss gpt_oss", r"gpt-oss", _QWEN3, 0.6e9, _TEXT),
    _family("Phi", "phi2 phi3 phimoe", r"phi", _QWEN3, 0.6e9, _TEXT),
)  # fmt: skip


def family_of(architecture: str, *names: str) -> Family | None:
    """Return the family of a model, by its architecture, its own name, and its file's."""
    return next((f for f in FAMILIES if f.holds(architecture, names)), None)


def _plain(name: str) -> str:
    """Return a name in lower case, its words joined by single dashes."""
    return re.sub(r"[\s_:/-]+", "-", name.lower())
