"""vLLM's side of the proposer hook, in a few lines: rows of a batch that come, move and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from fakes.decoding import FakeClock

from duodec.core.sampling.sampler import Context, Sampler
from duodec.testing import TableModel

CAPACITY = 4096
Propose = Callable[[list[list[int]], np.ndarray, np.ndarray], list[list[int]]]


@dataclass(eq=False)
class FakeRow:
    """A request: its prompt, how many tokens it wants, what it has."""

    prompt: list[int]
    num_tokens: int
    tokens: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    accepted: list[tuple[int, int]] = field(default_factory=list)  # (drafted, accepted) by step
    num_unread: int = 0  # of its prompt

    @property
    def text(self) -> list[int]:
        return self.prompt + self.tokens


class FakeEngine:
    """Greedy decoding of a table, in the batch and the order in which vLLM keeps it: the last row
    moves into the place of one that leaves."""

    def __init__(
        self,
        propose: Propose,
        model: TableModel,
        clock: FakeClock | None = None,
        seconds: Callable[[int, int], float] = lambda rows, drafted: 0.05,
        chunk: int = CAPACITY,
    ) -> None:
        self._propose, self._model = propose, model
        self._clock, self._seconds, self._chunk = clock, seconds, chunk
        self.rows: list[FakeRow] = []
        self.texts = np.zeros((64, CAPACITY), dtype=np.int32)
        self.lengths = np.zeros(64, dtype=np.int32)
        self.num_steps = 0

    def add(self, prompt: Sequence[int], num_tokens: int = 24) -> FakeRow:
        row = FakeRow(list(prompt), num_tokens, num_unread=len(prompt))
        self.rows.append(row)
        return row

    def remove(self, row: FakeRow) -> None:
        """It is finished, aborted or preempted."""
        place, last = self.rows.index(row), self.rows.pop()
        if last is not row:
            self.rows[place] = last
        row.draft = []

    def resume(self, row: FakeRow) -> None:
        """A preempted one is computed anew from its text."""
        row.num_unread = len(row.text)
        self.rows.append(row)

    def step(self) -> None:
        """One forward pass, its verdicts, and what is proposed for the next one."""
        num_drafted = sum(len(row.draft) for row in self.rows)
        if self._clock:
            self._clock.advance(self._seconds(len(self.rows), num_drafted))
        sampled = [self._sampled(row) for row in self.rows]
        for i, row in enumerate(self.rows):
            self.texts[i] = -1
            self.texts[i, : len(row.text)] = row.text
            self.lengths[i] = len(row.text)
        drafts = self._propose(sampled, self.lengths, self.texts)
        self.num_steps += 1
        assert len(drafts) == len(self.rows)
        for row, draft, new in zip(self.rows, drafts, sampled, strict=True):
            assert new or not draft, "a draft for a row that reads its prompt"
            row.draft = draft
        for row in [row for row in self.rows if len(row.tokens) >= row.num_tokens]:
            self.remove(row)

    def run(self, num_steps: int = 10_000) -> None:
        while self.rows and num_steps:
            self.step()
            num_steps -= 1

    def _sampled(self, row: FakeRow) -> list[int]:
        if row.num_unread:
            row.num_unread = max(0, row.num_unread - self._chunk)
            if row.num_unread:
                return []
        new = [self._next(row.text)]
        for token in row.draft:
            if token != new[-1]:
                break
            new.append(self._next(row.text + new))
        if row.tokens:
            row.accepted.append((len(row.draft), len(new) - 1))
        row.tokens += new
        return new

    def _next(self, text: list[int]) -> int:
        context = Context(np.array(text, dtype=np.int32))
        return Sampler().draw(self._model.logits(context), context).token
