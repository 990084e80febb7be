"""What every method is: a name, what it needs, and rounds over a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from duodec.methods.request import Loop, Request


class Method(ABC):
    """A way to decode. Its fields are the settings of its paper; an object of it keeps what it
    learned from one answer for the next."""

    name: ClassVar[str]
    needs_draft_model: ClassVar[bool] = False
    uses_draft_model: ClassVar[bool] = False
    """It drafts with a model where there is one, and does without where there is none."""
    needs_datastore: ClassVar[bool] = False
    is_overlapped: ClassVar[bool] = False
    """The drafter computes while the target does."""
    reads_off_path: ClassVar[bool] = False
    """Distributions or rows beside the text are read, which a replayed text cannot answer."""
    learns: ClassVar[bool] = False
    """Later answers are drafted with what earlier ones taught."""

    @property
    def takes_draft_model(self) -> bool:
        return self.needs_draft_model or self.uses_draft_model

    @abstractmethod
    def decode(self, request: Request) -> Loop:
        """Decode until the request's text is full."""
