"""Offer torch as the backend of targets in safetensors, and of GGUF files where it is named.

Neither torch nor transformers is imported before a method needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from duodec.backends.loaded import LoadedTarget, OpenVocabulary
from duodec.errors import BackendUnavailable
from duodec.loading.backends import Backend, State, TargetFiles
from duodec.loading.config import EngineConfig
from duodec.loading.llamacpp import gguf_vocabulary
from duodec.machine.install import needs_command
from duodec.models import Format, ModelFile, format_of, resolve, resolve_folder, resolve_heads


class TorchBackend(Backend):
    """transformers' models, computed by our own forward pass."""

    format = "safetensors"
    reads_heads = True
    llama_reads = "vocabulary"

    def format_of(self, config: EngineConfig) -> Format:
        return format_of(config.target, prefer="safetensors", offline=config.offline)

    def find(self, config: EngineConfig, format_: Format) -> TargetFiles:
        """A folder is refused before its weights are downloaded, if it cannot be loaded here."""
        offline = config.offline
        heads = None if config.heads is None else resolve_heads(config.heads, offline=offline)
        if format_ == "gguf":
            return TargetFiles(resolve(config.target, offline=offline), heads)
        from duodec_torch.load import blueprint

        def check(folder: Path) -> None:
            blueprint(folder, config, heads)

        return TargetFiles(resolve_folder(config.target, offline=offline, check=check), heads)

    def open_vocabulary(self, file: ModelFile) -> OpenVocabulary:
        if not file.path.is_dir():
            return gguf_vocabulary(file)
        from duodec_torch.checkpoint.model import vocabulary_of

        return vocabulary_of(file.path)

    def load(
        self,
        files: TargetFiles,
        config: EngineConfig,
        on_warning: Callable[[str], None],
        *,
        taken_bytes: int = 0,
    ) -> LoadedTarget:
        from duodec_torch.load import load

        return load(files.file.path, config, on_warning, heads=files.heads)

    def fits(
        self, file: ModelFile, config: EngineConfig, *, taken_bytes: int, draft_bytes: int
    ) -> bool:
        from duodec_torch.load import free_bytes

        return file.num_bytes <= free_bytes(config) - taken_bytes

    def state(self, *, is_used: bool, has_gpu: bool) -> State:
        try:
            words = f"torch {version('torch')}, transformers {version('transformers')}"
        except PackageNotFoundError:
            lacks = "not installed; targets in safetensors need it"
            return "ok", lacks, needs_command("duodec-torch")
        if not is_used and not has_gpu:  # loading it would take seconds
            return "ok", f"{words}; not needed for this target", ""
        try:
            from duodec_torch.checkpoint.placing import gpu_words
        except BackendUnavailable as error:
            return "warn", words, str(error)
        if (found := gpu_words()) is None:
            remedy = "see docs/torch.md on builds of torch with CUDA" if has_gpu else ""
            return (
                "warn" if has_gpu else "ok",
                f"{words}, without a GPU that it can use",
                remedy,
            )
        return "ok", f"{words}, {found}", ""
