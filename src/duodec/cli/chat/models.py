"""Open the models of a chat, and exchange them while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from duodec.cli import opening
from duodec.errors import BadOption, DuodecError
from duodec.loading.config import EngineConfig
from duodec.models.ollama import name_of

if TYPE_CHECKING:
    from duodec.llm import LLM
    from duodec.loading.resolve import ResolvedPair


@dataclass
class ChatModels:
    """Hold one target and its draft at a time; the options of the command line hold for each."""

    config: EngineConfig
    method: str | None
    on_warning: Callable[[str], None]
    is_quiet: bool = False
    is_raw: bool = False  # text is continued as it is, so no chat template is needed
    target: str = ""
    draft: str | None = None
    _llm: LLM | None = field(default=None, init=False)

    @property
    def llm(self) -> LLM:
        """Return the loaded target."""
        assert self._llm is not None, "open one first"
        return self._llm

    @property
    def name(self) -> str:
        """Return the target's name, for people."""
        return name_of(self.target)

    def open(self, target: str) -> None:
        """Load a target and its draft. Raises what loading raises, and BadOption for a base model
        in a chat that needs turns."""
        self._load(self._resolved(target))

    def _resolved(self, target: str) -> ResolvedPair:
        # The draft that was named suits the target that was named.
        draft = self.config.draft if target == self.config.target else "auto"
        # The draft is loaded even if it may not pay: decoding finds out, or another method needs
        # it.
        return opening.resolve_for(replace(self.config, target=target, draft=draft), self.method)

    def _load(self, pair: ResolvedPair) -> None:
        target = pair.config.target
        llm = opening.open_llm(pair, on_warning=self.on_warning, is_quiet=self.is_quiet)
        if not self.is_quiet:
            opening.say_memory(llm)
        if llm.loaded.tokenizer.chat_template is None and not self.is_raw:
            llm.close()
            raise BadOption(
                f"{pair.name} has no chat template: it is a base model, which continues text; "
                "start with --raw for that, or choose a model tuned for chats"
            )
        drafting = pair.draft_name if llm.loaded.drafter else None  # it may have been left out
        self._llm, self.target, self.draft = llm, target, drafting

    def switch(self, target: str) -> None:
        """Exchange the models. The old one is freed first, as both may not fit. If the new one
        cannot be loaded, the old one is loaded again. Raises BadOption."""
        before = self.target
        try:
            pair = self._resolved(target)
            self.close()
            self._load(pair)
        except DuodecError as error:
            if self._llm is None:
                self.open(before)
            raise BadOption(f"{error}; {name_of(before)} stays") from error

    def close(self) -> None:
        """Free the models. It can be called twice."""
        if self._llm is not None:
            self._llm.close()
            self._llm = None

    def __enter__(self) -> ChatModels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
