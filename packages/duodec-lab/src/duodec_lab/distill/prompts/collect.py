"""Collect the prompts that a target is to answer: our own, or those in the user's files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duodec.chat.template import Message
from duodec.errors import BadOption
from duodec_lab.datastores.documents import Chat, Text, documents, sources
from duodec_lab.distill.prompts.builtin import conversations as built_in

_HELD_OUT = 0.06  # of all prompts, that no training sees
_LEAST_HELD_OUT = 2
_MOST_CHARACTERS = 6000  # of a prompt of plain text
_BETWEEN = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Conversation:
    """Messages in which every user's message is answered by the target, unless the next message is
    an answer already."""

    messages: tuple[Message, ...]

    @property
    def turns(self) -> tuple[str, ...]:
        """What the user says."""
        return tuple(str(m["content"]) for m in self.messages if m["role"] == "user")


@dataclass(frozen=True)
class Prompts:
    """Conversations in the order in which they are recorded; the first ``num_held_out`` measure,
    the others train."""

    conversations: tuple[Conversation, ...]
    num_held_out: int

    @classmethod
    def of(cls, found: Iterable[Conversation], limit: int | None, seed: int) -> Prompts:
        """Each once, in an order by ``seed``, and at most ``limit`` of them."""
        each = list({conversation.turns: conversation for conversation in found}.values())
        order = np.random.default_rng(seed).permutation(len(each))[:limit]
        num_held_out = max(_LEAST_HELD_OUT, round(_HELD_OUT * len(order)))
        return cls(tuple(each[i] for i in order), num_held_out)

    @property
    def digest(self) -> str:
        """Of every message, in order."""
        words = json.dumps([c.messages for c in self.conversations], ensure_ascii=False)
        return hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()


def collect(files: Sequence[Path], limit: int | None, seed: int) -> Prompts:
    """The prompts of files (our own if there are none), each once, in an order by ``seed``. Raises
    BadOption for files that hold no text, and for too few prompts."""
    every = _of_files(files) if files else (asked(*turns) for turns in built_in())
    prompts = Prompts.of(every, limit, seed)
    num_found = len(prompts.conversations)
    if num_found < 2 * _LEAST_HELD_OUT:
        where = ", ".join(map(str, files))
        raise BadOption(
            f"{where} holds {num_found} prompts, and {2 * _LEAST_HELD_OUT} are the least: some "
            "measure, the others train; add prompts, or leave --prompts out for our own"
        )
    return prompts


def _of_files(files: Sequence[Path]) -> Iterator[Conversation]:
    """Raises BadOption for a file without a prompt."""
    found, _ = sources(files)
    for source in found:
        prompts = list(_of_file(source.path))
        if not prompts and source.is_named:
            raise BadOption(
                f"{source.path} holds no prompt; write one a paragraph, or chats in a .jsonl file"
            )
        yield from prompts
    if not found:
        raise BadOption(f"no text in {', '.join(map(str, files))}; name files of prompts")


def _of_file(path: Path) -> Iterator[Conversation]:
    for document in documents(path):
        if isinstance(document, Chat):
            yield from _of_chat(document.messages)
        else:
            yield from _of_text(document)


def _of_text(document: Text) -> Iterator[Conversation]:
    """A prompt a paragraph."""
    for paragraph in _BETWEEN.split("".join(document.pieces)):
        if paragraph.strip():
            yield asked(paragraph.strip()[:_MOST_CHARACTERS])


def _of_chat(messages: Iterable[Message]) -> Iterator[Conversation]:
    """A chat up to its last question."""
    kept = [dict(message) for message in messages if str(message.get("content", "")).strip()]
    while kept and kept[-1]["role"] != "user":
        kept.pop()
    if kept:
        yield Conversation(tuple(kept))


def asked(*turns: str) -> Conversation:
    """What a user says, turn by turn."""
    return Conversation(tuple({"role": "user", "content": turn} for turn in turns))
