"""Ollama's models by the names that its users know; a digest is nobody's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.gguf_files import write_model
from fakes.ollama_models import pulled, tagged

from duodec.cli.commands.serve import served_name
from duodec.errors import ModelNotFound, ModelUnreadable
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import resolve_pair
from duodec.models import check_reference, format_of, ollama, resolve
from duodec.models.discovery import best_for
from duodec.models.ollama import name_of

TOKENS = [f"token{i}" for i in range(300)]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Ollama keeps its models, in a home with nothing else."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr(ollama, "FOLDERS", ("~/.ollama/models",))
    best_for.cache_clear()
    return tmp_path / ".ollama" / "models"


def coder(models: Path, tag: str = "1.5b", num_params: int = 4000, **more: object) -> Path:
    """A model that its library has."""
    name = f"qwen2.5-coder:{tag}"
    return pulled(models, name, tokens=TOKENS, num_params=num_params, **more)


def test_a_name_is_a_file(models: Path) -> None:
    blob = coder(models)
    latest = pulled(models, "mistral", tokens=TOKENS, num_params=50)
    mine = pulled(models, "tuned:v2", where="registry.ollama.ai/me", tokens=TOKENS, num_params=60)
    hub = pulled(models, "x-GGUF:Q4_K_M", where="hf.co/owner", tokens=TOKENS, num_params=70)
    for name, path in {
        "qwen2.5-coder:1.5b": blob,
        "Qwen2.5-Coder:1.5B": blob,
        "mistral": latest,
        "mistral:latest": latest,
        "library/mistral": latest,
        "registry.ollama.ai/library/mistral:latest": latest,
        "me/tuned:v2": mine,
        "hf.co/owner/x-GGUF:Q4_K_M": hub,
    }.items():
        found = resolve(name, offline=True)
        assert (found.path, found.source) == (path, "Ollama"), name
        assert format_of(name, offline=True) == "gguf"
        check_reference(name)
    listed = [model.name for model in ollama.installed()]
    assert listed == ["hf.co/owner/x-GGUF:Q4_K_M", "me/tuned:v2", "mistral:latest",
                      "qwen2.5-coder:1.5b"]  # fmt: skip


def test_other_names_mean_what_they_meant(models: Path, tmp_path: Path) -> None:
    pulled(models, "smollm2:latest", tokens=TOKENS, num_params=50)
    assert resolve("smollm2-draft", offline=True).source == "bundled"
    assert ollama.find("smollm2-draft") is None
    for reference in (".", "..", "", "a b", "/", "./qwen", "../../etc:passwd", "x" * 5000):
        assert ollama.find(reference) is None
    coder(models)
    with pytest.raises(ModelNotFound, match=r"did you mean qwen2\.5-coder:1\.5b"):
        resolve("qwen2.5-coder:1.5", offline=True)


def test_the_folder_moves_with_its_variable(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = coder(tmp_path / "elsewhere")
    assert ollama.find("qwen2.5-coder:1.5b") is None
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "elsewhere"))
    assert resolve("qwen2.5-coder:1.5b").path == blob


def test_what_cannot_be_read_says_the_remedy(models: Path) -> None:
    coder(models, "lora", adapter=True)
    coder(models, "gone", 900).unlink()
    (models / "manifests/registry.ollama.ai/library/qwen2.5-coder/broken").write_text("{")
    cloud = models / "manifests/registry.ollama.ai/library/glm/cloud"
    cloud.parent.mkdir(parents=True)
    cloud.write_text(json.dumps({"layers": []}))
    for name, words in {
        "qwen2.5-coder:lora": "applies an adapter",
        "qwen2.5-coder:gone": "run: ollama pull qwen2.5-coder:gone",
        "glm:cloud": "no GGUF file",
    }.items():
        with pytest.raises(ModelUnreadable, match=words):
            resolve(name)
    with pytest.raises(ModelNotFound):
        resolve("qwen2.5-coder:broken", offline=True)


def test_a_folder_that_may_not_be_read_is_named(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coder(models)
    monkeypatch.setattr("os.access", lambda path, mode: path != models)
    with pytest.raises(ModelNotFound, match=f"allow yourself to read {models}"):
        resolve("llama3.3:70b")


def test_the_draft_is_found_likewise_and_has_a_name(models: Path) -> None:
    coder(models)
    small = coder(models, "0.5b", 400)
    pair = resolve_pair(EngineConfig("qwen2.5-coder:1.5b", offline=True))
    assert pair.draft
    assert pair.draft.path == small
    assert (pair.name, pair.draft_name) == ("qwen2.5-coder:1.5b", "qwen2.5-coder:0.5b")


def test_a_digest_is_no_name(models: Path, tmp_path: Path) -> None:
    blob = coder(models)
    assert name_of(str(blob)) == served_name(str(blob)) == "qwen2.5-coder:1.5b"
    path = tmp_path / "hub" / "blobs" / ("a" * 64)
    write_model(path, tokens=TOKENS, num_params=50, name="Qwen2.5 Coder 7B")
    assert name_of(str(path)) == served_name(str(path)) == "Qwen2.5 Coder 7B"
    nameless = write_model(path.with_name("b" * 64), tokens=TOKENS, num_params=50)
    for kept in (str(nameless), "smollm2", "./my.gguf", f"/nowhere/{'c' * 64}"):
        assert name_of(kept) == kept
    pair = resolve_pair(EngineConfig(str(blob), draft="none"))
    assert pair.name == "qwen2.5-coder:1.5b"
    assert served_name("/models/my.gguf") == "/models/my.gguf"


def test_two_tags_of_one_file(models: Path) -> None:
    blob = coder(models)
    tagged(models, "mine:latest", blob)
    assert resolve("mine").path == resolve("qwen2.5-coder:1.5b").path
    assert [model.name for model in ollama.installed()] == ["mine:latest", "qwen2.5-coder:1.5b"]
