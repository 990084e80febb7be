"""Which file a model sees pictures with, where nobody names it."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from fakes.hub import FakeHub
from fakes.ollama_models import KIND, LIBRARY, pulled

from duodec.models import find_projector, ollama


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"GGUF")


@pytest.mark.parametrize(
    ("model", "beside", "found"),
    [
        ("SmolVLM-500M-Instruct-Q8_0.gguf", ["mmproj-SmolVLM-500M-Instruct-f16.gguf"], 0),
        ("SmolVLM-500M-Instruct-Q8_0.gguf", ["mmproj-SmolVLM-256M-Instruct-f16.gguf"], None),
        ("gemma-3-4b-it-Q4_K_M.gguf", ["mmproj-model-f16.gguf"], 0),
        ("model-Q4_K_M.gguf", ["mmproj-model-f16.gguf"], 0),
        ("any.gguf", ["mmproj.gguf"], 0),
        ("any.gguf", ["mmproj-F16.gguf"], 0),
        ("a-Q4_0.gguf", ["mmproj-a-F32.gguf", "mmproj-a-Q8_0.gguf", "mmproj-a-BF16.gguf"], 2),
        ("a-Q4_0.gguf", ["a-mmproj-f16.gguf", "b-mmproj-f16.gguf"], 0),
        ("a.gguf", ["b.gguf"], None),
    ],
)
def test_a_file_beside_a_model_bears_its_name(
    tmp_path: Path, model: str, beside: list[str], found: int | None
) -> None:
    files(tmp_path, model, *beside)
    path = tmp_path / model
    expected = None if found is None else tmp_path / beside[found]
    assert find_projector(str(path), path) == expected


def test_a_repository_has_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a-Q4_K_M.gguf", "mmproj-a-f32.gguf", "mmproj-a-f16.gguf"]
    hub = FakeHub(tmp_path / "snapshot", names)
    for name in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, getattr(hub, name))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    model = tmp_path / "snapshot" / names[0]
    assert find_projector("hf:owner/a-GGUF", model) == tmp_path / "snapshot" / names[2]
    assert hub.downloaded == [names[2]]
    assert find_projector("hf:owner/a-GGUF", model, offline=True) == hub.snapshot / names[2]
    hub.files = names[:1]
    (hub.snapshot / names[2]).unlink()
    assert find_projector("hf:owner/a-GGUF", model, offline=True) is None


def test_ollamas_models_have_a_layer_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    blob = pulled(tmp_path, "gemma3:4b", tokens=["a"], num_params=10)
    assert find_projector("gemma3:4b", blob) is None
    manifest = tmp_path / "manifests" / LIBRARY / "gemma3" / "4b"
    told = json.loads(manifest.read_text())
    told["layers"].append({"mediaType": f"{KIND}projector", "digest": "sha256:" + "7" * 64})
    manifest.write_text(json.dumps(told))
    assert find_projector("gemma3:4b", blob) is None, "it is not there yet"
    own = tmp_path / "blobs" / f"sha256-{'7' * 64}"
    own.write_bytes(b"GGUF")
    assert find_projector("gemma3:4b", blob) == own
    assert ollama.find("gemma3:4b")
