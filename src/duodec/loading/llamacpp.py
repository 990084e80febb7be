"""Offer llama.cpp as the backend of targets in GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.loaded import LoadedTarget, OpenVocabulary
from duodec.errors import BadOption
from duodec.loading.backends import Backend, TargetFiles
from duodec.loading.config import EngineConfig
from duodec.loading.vetting import vetted
from duodec.models import Format, ModelFile, find_projector, resolve


class LlamaBackend(Backend):
    """Serve GGUF files with llama.cpp."""

    format = "gguf"
    embeds = True
    llama_reads = "model"

    def check(self, config: EngineConfig) -> None:
        """Accept all options; loading reports what a file or a build cannot do."""

    def find(self, config: EngineConfig, format_: Format) -> TargetFiles:
        heads = self._heads(config)
        file = resolve(config.target, offline=config.offline)
        return TargetFiles(file, heads, self._projector(config, file))

    def _heads(self, config: EngineConfig) -> Path | None:
        if config.heads is None:
            return None
        if Path(config.heads).is_dir():
            raise BadOption(
                f"heads is {config.heads}, a folder, which only targets on torch read; with "
                "llama.cpp name the GGUF file of a head, or set target_backend=torch"
            )
        return resolve(config.heads, offline=config.offline).path

    def _projector(self, config: EngineConfig, file: ModelFile) -> Path | None:
        """Return the projector for pictures. Raises an error if something is wrong with a file that
        is named."""
        if config.mmproj in (None, "none"):
            return None
        if config.mmproj != "auto":
            return resolve(str(config.mmproj), offline=config.offline).path
        return find_projector(config.target, file.path, offline=config.offline)

    def open_vocabulary(self, file: ModelFile) -> OpenVocabulary:
        return gguf_vocabulary(file)

    def load(
        self,
        files: TargetFiles,
        config: EngineConfig,
        on_warning: Callable[[str], None],
        *,
        taken_bytes: int = 0,
    ) -> LoadedTarget:
        from duodec.backends.llamacpp.load import load

        if files.no_pictures:
            on_warning(f"no pictures: {files.no_pictures}")
        return load(
            files.file.path, config, on_warning, taken_bytes=taken_bytes,
            heads_path=files.heads, mmproj=files.mmproj,
        )  # fmt: skip

    def fits(
        self, file: ModelFile, config: EngineConfig, *, taken_bytes: int, draft_bytes: int
    ) -> bool:
        from duodec.backends.llamacpp import load

        return load.fits(file.path, config, taken_bytes + draft_bytes)


def gguf_vocabulary(file: ModelFile) -> LlamaModel:
    """Return the vocabulary of a GGUF file; the caller closes it. Raises ModelUnreadable."""
    path = vetted(file, vocabulary_only=True).path
    return LlamaModel(path, vocabulary_only=True, num_gpu_layers=0)
