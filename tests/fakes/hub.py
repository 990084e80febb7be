"""A Hugging Face hub over a folder, and GGUF files that have no weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from huggingface_hub import errors as hub_errors

from duodec.models.downloads.hub import forget

CONTENT = b"GGUF" + bytes(range(256)) * 40


def write_gguf(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class FakeHub:
    """The three calls of the hub library that we make, over a folder instead of a network."""

    def __init__(self, snapshot: Path, files: list[str]) -> None:
        self.snapshot = snapshot
        self.files = files
        self.fault: Exception | None = None  # what the network does
        self.downloaded: list[str] = []
        self.num_asked = 0
        forget()

    def model_info(self, repo: str, revision: str | None = None, timeout: float = 0) -> Any:
        self.num_asked += 1
        if self.fault:
            raise self.fault
        siblings = [SimpleNamespace(rfilename=name) for name in self.files]
        return SimpleNamespace(siblings=siblings, card_data={"license": "mit"})

    def hf_hub_download(
        self, repo: str, name: str, revision: str | None = None, local_files_only: bool = False
    ) -> str:
        path = self.snapshot / name
        if not path.is_file():
            if local_files_only:
                raise hub_errors.LocalEntryNotFoundError("not in the cache")
            self.downloaded.append(name)
            write_gguf(path)
        return str(path)

    def snapshot_download(
        self, repo: str, revision: str | None = None, local_files_only: bool = False
    ) -> str:
        if not self.snapshot.is_dir():
            raise hub_errors.LocalEntryNotFoundError("not in the cache")
        return str(self.snapshot)
