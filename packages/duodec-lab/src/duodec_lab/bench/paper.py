"""Set up a benchmark as the DuoDecoding paper's released scripts do (arXiv 2503.00784).

`duodec bench --paper vicuna-7b` measures the scripts' methods on their models and prompts, in their
prompt formats; the files come from the released repository, pinned by their hashes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as WebRequest
from urllib.request import urlopen

from duodec.errors import BadOption, CacheUnwritable, ChecksumMismatch, DownloadFailed
from duodec.machine.cores import available_cores
from duodec.machine.files import cache_folder, replacing
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.recording import Render, Turns
from duodec_lab.bench.tasks import SHORT_TASKS, TASKS, Prompt

SPEC_BENCH = "spec-bench"  # as --data: the released prompts, fetched
DRAFT = "vicuna-68m.Q5_K_M.gguf"
COMMIT = "154f0a1f66d28775b90ab7bc0bb8e597118b014c"
_REPOSITORY = "github.com/KaiLv69/DuoDecoding"
_FILES = f"https://raw.githubusercontent.com/KaiLv69/DuoDecoding/{COMMIT}/data/"
_THREADS = 16
_MAX_TOKENS = 128
_WARM_UPS = {**dict.fromkeys(TASKS, 10), "mt_bench": 9}  # its script counts one less
_TIMEOUT_S = 30
PROMPTS = {  # SHA-256; 80 questions a task, 164 functions
    "humaneval": "4a74508c994b8b52830e5e32ac59792f5ff398950633a4784cb8a26594760eeb",
    "math_reasoning": "30c994252af44141d6fbc97f242168a002ca8317e754d988a25cda64d82a2bb3",
    "mt_bench": "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    "qa": "5c358e3f32724c2130cf10a1ba35ffb4212c8dcf06d1bf75c6c9e152e5c5522c",
    "rag": "9fd0911904199085e5cdd5f5decb69c48f5216596c93a15fe62e4d2d890cdf59",
    "summarization": "640c3a2d223f4d6a2369548164098c51d656fc9dcc1659d68f3c5a2456273302",
    "translation": "9193bafa84613d55e40c627766bd79f89f38f0fcb5c552de2280dca2d21bd464",
}
DRAFT_BLOB = "a2d999450c8f312793799d982578d8bfc8e5c21b"  # as git names its content
_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
_TRANSLATE = "Translate German to English: "


def vicuna(prompt: Prompt, turns: Turns, question: str) -> str:
    """Vicuna's conversation, for every task; of humaneval the function alone."""
    if prompt.task == "mt_bench":
        return f"{_conversation(turns, question)} "
    text = prompt.code.prompt if prompt.code else question
    return _conversation(turns, text.strip())


def llama(prompt: Prompt, turns: Turns, question: str) -> str:
    """The scripts' formats for Llama 2, a base model: Vicuna's conversation for mt_bench and qa,
    texts to continue for the others."""
    if prompt.code:
        return prompt.code.prompt.strip()
    if prompt.task == "summarization":
        return f"{question.strip()} TL;DR: "
    if prompt.task == "translation":
        german = question.removeprefix(_TRANSLATE)
        return f"Translate German to English. German: {german} English: "
    if prompt.task == "math_reasoning":
        return f"{question} Let's think step by step.\nStep 1:"
    return question if prompt.task == "rag" else vicuna(prompt, turns, question)


def _conversation(turns: Turns, question: str) -> str:
    """Vicuna's template. The scripts decode a completion together with its prompt, so that an
    earlier completion begins with all that came before it."""
    text = f"{_SYSTEM} "
    for asked, answer in turns:
        so_far = f"{text}USER: {asked} ASSISTANT: "
        text = f"{so_far}{(so_far + answer).strip()}</s>"
    return f"{text}USER: {question} ASSISTANT:"


@dataclass(frozen=True)
class Paper:
    """One of the paper's pairs, with what its scripts set for it alone."""

    target: str
    render: Render
    budget: int  # DuoDecoding's draft tokens
    short_tasks: tuple[str, ...]  # whose completions have 32 tokens at most

    @property
    def methods(self) -> tuple[str, ...]:
        """The scripts' methods, then DuoDecoding with a measured budget, and ours."""
        scripted = ("ar", "sps:5", "lookup", "lookahead", "rest", f"duo:{self.budget}")
        return (*scripted, "duo", "auto")


PAPERS: Mapping[str, Paper] = {
    "llama-2-7b": Paper("hf:meta-llama/Llama-2-7b-hf", llama, 24, SHORT_TASKS),
    "vicuna-7b": Paper("hf:lmsys/vicuna-7b-v1.5", vicuna, 16, ()),
}


def paper_named(name: str) -> Paper:
    """Raises BadOption, which lists the names."""
    if name not in PAPERS:
        raise BadOption(f"paper is {name or 'empty'}; choose from: {', '.join(PAPERS)}")
    return PAPERS[name]


def paper_plan(name: str, given: BenchPlan, chosen: frozenset[str]) -> BenchPlan:
    """The paper's settings for all fields but those ``chosen`` by the user. Fetches the draft.
    Raises BadOption, and what is wrong with the draft."""
    paper, config = paper_named(name), given.config
    values: dict[str, Any] = {
        "methods": paper.methods,
        "targets": (paper.target,),
        "limit": None,
        "max_tokens": _MAX_TOKENS,
    }
    if "drafts" not in chosen:
        values["drafts"] = (str(draft_file(given.data, offline=config.offline)),)
    own: dict[str, Any] = {
        "draft_threads": min(_THREADS, len(available_cores())),
        "draft_device": "cpu",
    }
    if "targets" not in chosen:
        own |= {"target_backend": "torch", "dtype": "bfloat16", "device": "cuda"}
    config = replace(config, **{k: v for k, v in own.items() if k not in chosen})
    kept = {field: value for field, value in values.items() if field not in chosen}
    kept |= {"short_tasks": paper.short_tasks, "warm_ups": _WARM_UPS}
    return replace(given, paper=name, config=config, **kept)


# --- files of the released repository


def spec_bench(*, offline: bool) -> Path:
    """The folder of the released prompts, fetched if needed. Raises DownloadFailed,
    ChecksumMismatch and CacheUnwritable."""
    folder = cache_folder() / "data" / SPEC_BENCH
    remedy = f"clone {_REPOSITORY} and name its folder with --data DuoDecoding/data"
    for task, digest in PROMPTS.items():

        def is_right(content: bytes, digest: str = digest) -> bool:
            return hashlib.sha256(content).hexdigest() == digest

        _kept(folder / f"{task}.jsonl", is_right, offline=offline, remedy=remedy)
    return folder


def draft_file(data: Path | None, *, offline: bool) -> Path:
    """The released draft: beside the prompts, as in a clone of the repository, or fetched. Raises
    what `spec_bench` raises."""
    if data is not None and (data / DRAFT).is_file():
        return data / DRAFT
    remedy = f"put {DRAFT} of {_REPOSITORY} into the folder of --data, or name it with --draft"
    path = cache_folder() / "models" / DRAFT
    return _kept(path, _is_draft, offline=offline, remedy=remedy)


def _is_draft(content: bytes) -> bool:
    blob = b"blob %d\0" % len(content) + content
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest() == DRAFT_BLOB


def _kept(path: Path, is_right: Callable[[bytes], bool], *, offline: bool, remedy: str) -> Path:
    """A file of the repository, from the disk or else the network, whose content is checked."""
    if path.is_file():
        return path
    if offline or os.environ.get("HF_HUB_OFFLINE"):
        raise DownloadFailed(f"{path.name} is not on this machine and the network is off; {remedy}")
    try:
        with urlopen(WebRequest(_FILES + path.name), timeout=_TIMEOUT_S) as answer:  # noqa: S310
            content: bytes = answer.read()
    except HTTPError as error:
        raise DownloadFailed(
            f"{path.name} cannot be fetched (HTTP status {error.code}); {remedy}"
        ) from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DownloadFailed(f"{path.name} cannot be fetched ({reason[:120]}); {remedy}") from error
    if not is_right(content):
        raise ChecksumMismatch(f"{path.name} is not the released file; {remedy}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise CacheUnwritable(
            f"cannot write {path} ({error.strerror}); set DUODEC_CACHE to a folder of your own"
        ) from error
    return path
