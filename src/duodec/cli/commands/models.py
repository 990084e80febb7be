"""Run `duodec list`, `show`, `pull`, `rm` and `drafts`: what models are here, and fetch others."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated

import typer

from duodec.cli.options import Json, Options, derived
from duodec.cli.output import put, put_table, say_dim, size
from duodec.loading.config import EngineConfig

if TYPE_CHECKING:
    from duodec.models import CachedModel, ModelFile

EPILOG = {
    "list": "Examples:\nduodec list\nduodec list --json",
    "pull": """
Examples:
duodec pull qwen2.5-coder-1.5b
duodec pull hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:q8_0
""",
    "show": "Examples:\nduodec show smollm2\nduodec show MODEL.gguf --json",
    "rm": "Examples:\nduodec rm qwen2.5-coder-1.5b",
    "drafts": """
Examples:
duodec drafts smollm2
duodec drafts ./Llama-3.1-8B-Instruct-Q4_K_M.gguf
""",
}

_SCHEMA_VERSION = 1


def list_models(*, json: Json = False) -> None:
    """List known models, Ollama's, and the GGUF files in the hub's cache."""
    from duodec.models import cached_models

    found = cached_models()
    if json:
        listed = [
            {
                "name": model.name,
                "is_present": model.is_present,
                "path": str(model.path) if model.path else None,
                "num_bytes": model.num_bytes,
                "license": model.license,
                "source": model.source,
            }
            for model in found
        ]
        record = {"schema_version": _SCHEMA_VERSION, "models": listed}
        put(f"{json_format.dumps(record, ensure_ascii=False)}\n")
        return
    put_table(
        ("NAME", "SIZE", "LICENCE", "HERE"),
        [
            (
                model.name,
                size(model.num_bytes),
                model.license or "?",
                _where(model),
            )
            for model in found
        ],
    )


def _where(model: CachedModel) -> str:
    if model.path is None:
        return f"no: duodec pull {model.name}"
    return "yes, Ollama's" if model.source == "Ollama" else "yes"


@derived
def pull(
    *,
    name: Annotated[
        str, typer.Argument(help="An alias, or hf:owner/repo[/file.gguf][:quant][@rev].")
    ],
    config: Annotated[EngineConfig, Options(only=("offline",))],
) -> None:
    """Fetch a model, unless it is on the disk; its path to stdout."""
    from duodec.models import format_of, resolve, resolve_folder

    is_folder = format_of(name, offline=config.offline) == "safetensors"
    file = (resolve_folder if is_folder else resolve)(name, offline=config.offline)
    say_dim(f"{file.source}, licence {file.license or 'unknown'}")
    put(f"{file.path}\n")


@derived
def show(
    *,
    name: Annotated[
        str, typer.Argument(help="An alias, a name of Ollama's, hf:owner/repo, a file or a folder.")
    ],
    json: Json = False,
) -> None:
    """Show what a model is: size, format, vocabulary, licence, file."""
    from duodec.models.metadata import ModelMetadata

    file = _on_disk(name)
    found = ModelMetadata.of(file.path)
    record = {
        "name": found.name,
        "architecture": found.architecture,
        "num_params": found.num_params or None,
        "quantisation": found.quantisation or None,
        "num_bytes": found.num_bytes,
        "num_context": found.num_context or None,
        "num_vocab": len(found.tokens),
        "license": file.license,
        "source": file.source,
        "path": str(file.path),
    }
    if json:
        put(f"{json_format.dumps({'schema_version': _SCHEMA_VERSION, **record})}\n")
        return
    shown = {
        "model": found.name,
        "architecture": found.architecture,
        "parameters": f"{found.num_params / 1e6:.0f} M" if found.num_params else "?",
        "quantisation": found.quantisation or "?",
        "size": size(found.num_bytes),
        "context": f"{found.num_context} tokens" if found.num_context else "?",
        "vocabulary": f"{len(found.tokens)} tokens",
        "licence": file.license or "?",
        "source": file.source,
        "file": str(file.path),
    }
    for word, value in shown.items():
        put(f"{word:<12}  {value}\n")


def remove(
    *, name: Annotated[str, typer.Argument(help="An alias, or hf:owner/repo[:quant].")]
) -> None:
    """Remove a fetched model from this machine."""
    from duodec.models.resolving import remove as delete

    file = _on_disk(name)
    say_dim(f"removed {file.path}, {size(delete(file))} freed")


def _on_disk(name: str) -> ModelFile:
    """Return a model that is on this machine; otherwise raise ModelNotFound and DownloadFailed."""
    from duodec.models import format_of, resolve, resolve_folder

    is_folder = format_of(name, offline=True) == "safetensors"
    return (resolve_folder if is_folder else resolve)(name, offline=True)


@derived
def drafts(
    *,
    target: Annotated[str, typer.Argument(help="A file, a folder, an alias or hf:owner/repo.")],
    json: Json = False,
    config: Annotated[EngineConfig, Options(only=("offline",))],
) -> None:
    """List what can draft for a target.

    Files on this machine, and what its family publishes.
    """
    from dataclasses import asdict, replace

    from duodec.loading.resolve import resolve_target
    from duodec.models.discovery import candidates
    from duodec.models.families import family_of
    from duodec.models.metadata import ModelMetadata

    path = resolve_target(replace(config, target=target)).file.path
    summary = ModelMetadata.of(path)
    family = family_of(summary.architecture, summary.name, path.name, target)
    found = candidates(path)
    if json:
        listed = [{**asdict(one), "path": str(one.path)} for one in found]
        record = {
            "schema_version": _SCHEMA_VERSION,
            "target": target,
            "family": family and {"name": family.name, "draft": family.draft, "use": family.use},
            "candidates": listed,
        }
        put(f"{json_format.dumps(record, ensure_ascii=False)}\n")
        return
    put_table(
        ("DRAFT", "PARAMETERS", "SIZE", "PLACE", "USE"),
        [
            (
                one.reference,
                f"{one.num_params / 1e6:.0f} M" if one.num_params else "?",
                size(one.num_bytes),
                one.place,
                (one.fault and f"skipped: {one.fault}")
                or ("same vocabulary" if one.is_same else "another vocabulary"),
            )
            for one in found
        ],
    )
    if family:
        say_dim(f"published for {family.name}: {family.draft} ({family.use})")
        say_dim(f"duodec pull {family.draft}", is_copied=True)
    best = next((one for one in found if not one.fault), None)
    if best:
        say_dim(f"measure: duodec doctor --target {target} --draft auto", is_copied=True)
