"""Define what every method has: a name, requirements, and rounds over a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from duodec.methods.request import Loop, Request


class Method(ABC):
    """Define a way to decode. The fields are the settings of its paper; an instance keeps what it
    learns from one request for the next."""

    name: ClassVar[str]
    needs_draft_model: ClassVar[bool] = False
    uses_draft_model: ClassVar[bool] = False
    """It drafts with a model if there is one, and works without."""
    needs_datastore: ClassVar[bool] = False
    needs_heads: ClassVar[str] = ""
    """The kind of the target's own heads that it drafts with; "" for none."""
    is_overlapped: ClassVar[bool] = False
    """The drafter computes in parallel with the target."""
    reads_off_path: ClassVar[bool] = False
    """It reads distributions or rows off the text, which a replayed text does not have."""
    learns: ClassVar[bool] = False
    """Later requests are drafted with what earlier ones taught. What depends on a text is used only
    for requests of the same ``owner`` (`duodec.drafting.owners`)."""

    @property
    def takes_draft_model(self) -> bool:
        return self.needs_draft_model or self.uses_draft_model

    @abstractmethod
    def decode(self, request: Request) -> Loop:
        """Decode until the request ends."""
