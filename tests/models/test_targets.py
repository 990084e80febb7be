"""Which library computes a target, from which files, on which cores: all without torch."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from fakes.hub import FakeHub

from duodec.errors import BadOption, DownloadFailed, ModelNotFound, ModelUnreadable
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import draft_for, resolve_pair, resolve_target
from duodec.models import check_folder, format_of, resolve, resolve_folder
from duodec.models.downloads.hub import HubFile, forget

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def safetensors(num_values: int = 4) -> bytes:
    end = 4 * num_values
    header = {"w": {"dtype": "F32", "shape": [num_values], "data_offsets": [0, end]}}
    text = json.dumps({"__metadata__": {}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model as far as one can tell without torch."""
    found = tmp_path / "model"
    found.mkdir()
    (found / "config.json").write_text('{"model_type": "llama"}')
    (found / WEIGHTS).write_bytes(safetensors())
    return found


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A repository of safetensors, and many other files."""
    names = [
        "README.md", "config.json", "generation_config.json", "tokenizer.json", WEIGHTS,
        "model.bin", "consolidated.safetensors", "original/model.safetensors", "onnx/config.json",
    ]  # fmt: skip
    fake = FakeHub(tmp_path / "hub" / "snapshots" / "c0ffee", names)

    def download(repo: str, name: str, *, local_files_only: bool = False, **_: object) -> str:
        path = fake.snapshot / name
        if not path.is_file() and not local_files_only:
            fake.downloaded.append(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(safetensors() if name.endswith(".safetensors") else b"{}")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


# Files


@pytest.mark.slow
def test_files_decide_about_the_backend(folder: Path) -> None:
    gguf = str(resolve("smollm2-draft").path)
    for fields, backend in (
        ({"target": "smollm2"}, "llama.cpp"),
        ({"target": gguf}, "llama.cpp"),
        ({"target": gguf, "target_backend": "torch"}, "torch"),
    ):
        assert resolve_target(EngineConfig(**fields)).backend.name == backend
    found = resolve_target(EngineConfig(target=gguf, target_backend="torch"))
    assert found.file.path == Path(gguf)
    if find_spec("torch"):
        assert resolve_target(EngineConfig(target=str(folder))).backend.name == "torch"


@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed: make setup-torch")
def test_a_folder_is_found_as_it_is(folder: Path) -> None:
    assert resolve_target(EngineConfig(target=str(folder))).file.path == folder


def test_a_folder_has_no_draft_of_its_own(folder: Path) -> None:
    assert draft_for(EngineConfig(target=str(folder))) is None
    assert draft_for(EngineConfig(target=str(folder), draft="smollm2-draft")) == "smollm2-draft"


def test_a_folder_of_gguf_files_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelUnreadable, match=r"is a folder; name a file in it, such as .*m\.gguf"):
        resolve_target(EngineConfig(target=str(tmp_path)))


def _break(folder: Path, **files: object) -> None:
    for name, content in files.items():
        path = folder / {"config": "config.json", "weights": WEIGHTS, "index": INDEX}[name]
        if content is None:
            path.unlink()
        else:
            path.write_bytes(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )


@pytest.mark.parametrize(
    ("files", "others", "words"),
    [
        ({"config": b"{"}, [], "config.json (it is not JSON); fetch it again"),
        ({"config": []}, [], "config.json holds no JSON object"),
        ({"config": None}, [], "holds no config.json"),
        ({"weights": safetensors()[:-5]}, [], "bytes of"),
        ({"weights": b"PK"}, [], "is not a safetensors file"),
        ({"weights": b"\0" * 64}, [], "is not a safetensors file"),
        ({"weights": b"\xff" * 64}, [], "is not a safetensors file"),
        (
            {"weights": None},
            ["pytorch_model.bin"],
            "holds pickled weights only (pytorch_model.bin)",
        ),
        ({"weights": None}, ["adapter_model.safetensors"], "an adapter"),
        ({"weights": None}, [], "holds no safetensors"),
        (
            {"index": {"weight_map": {"a": "model-1.safetensors"}}},
            [],
            "lacks 1 of 1 files, such as",
        ),
        ({"index": {}}, [], "lacks all weights"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(
    folder: Path, files: dict[str, object], others: list[str], words: str
) -> None:
    _break(folder, **files)
    for name in others:
        (folder / name).write_bytes(b"")
    with pytest.raises(ModelUnreadable) as caught:
        check_folder(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# The hub


def test_a_repository_of_safetensors_is_fetched_without_pickles(hub: FakeHub) -> None:
    assert format_of("o/r") == "safetensors"
    assert not hub.downloaded
    found = resolve_folder("hf:o/r@main")
    assert found.path == hub.snapshot
    assert (found.source, found.license) == ("hub o/r@c0ffee", "mit")
    assert sorted(hub.downloaded) == [
        "config.json", "generation_config.json", WEIGHTS, "tokenizer.json"
    ]  # fmt: skip


def test_a_repository_with_both_follows_the_backend(hub: FakeHub) -> None:
    hub.files.append("m-q4_k_m.gguf")
    assert format_of("o/r") == "gguf"
    assert format_of("o/r", prefer="safetensors") == "safetensors"
    assert format_of("o/r:q4_k_m", prefer="safetensors") == "gguf"
    assert format_of("hf:o/r/m-q4_k_m.gguf", prefer="safetensors") == "gguf"


def test_the_cache_is_enough_when_the_network_is_off_or_down(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve_folder("o/r").path
    forget()
    hub.fault = OSError("no network")
    assert resolve_folder("o/r").path == path
    hub.fault = RuntimeError("the network must not be asked")
    assert resolve_folder("o/r", offline=True).path == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert format_of("o/r") == "safetensors"
    assert resolve_folder("o/r").path == path


def test_half_a_download_is_no_model(hub: FakeHub) -> None:
    path = resolve_folder("o/r").path
    (path / WEIGHTS).unlink()
    with pytest.raises(DownloadFailed, match="incomplete in the cache and the network is off"):
        resolve_folder("o/r", offline=True)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["config.json", "model.bin"], r"o/r holds pickled weights only \(model\.bin\)"),
        ([WEIGHTS], r"o/r holds no config\.json"),
        (["config.json"], "o/r holds no safetensors"),
    ],
)
def test_a_repository_without_a_model_says_what_it_lacks(
    hub: FakeHub, names: list[str], words: str
) -> None:
    hub.files = names
    with pytest.raises(ModelNotFound, match=words):
        resolve_folder("o/r")


def test_every_file_of_a_split_model_is_fetched(hub: FakeHub) -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    hub.files = ["config.json", INDEX, *shards]
    (hub.snapshot).mkdir(parents=True)
    (hub.snapshot / INDEX).write_text(
        json.dumps({"weight_map": dict(zip("ab", shards, strict=True))})
    )
    assert resolve_folder("o/r").path == hub.snapshot
    assert sorted(hub.downloaded) == sorted(["config.json", *shards])


def test_a_typed_repository_without_files_is_still_one_line(hub: FakeHub) -> None:
    hub.files = ["README.md"]
    assert HubFile("o/r").names(offline=False) == ["README.md"]
    with pytest.raises(ModelNotFound, match="holds no GGUF file"):
        resolve_target(EngineConfig(target="hf:o/r"))


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
from duodec.cli.app import main
main()
"""


def test_without_torch_a_folder_is_refused_before_anything_is_fetched(folder: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, "generate", "hello", "--target", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "-m pip install" in done.stderr
    assert done.stderr.count("\n") == 1


# Settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_backend": "jax"}, "unknown target backend 'jax'"),
        ({"dtype": "int4"}, "unknown dtype 'int4'"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
    ],
)
def test_unknown_names_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        EngineConfig(**options)  # type: ignore[arg-type]


def test_a_profile_belongs_to_backend_dtype_and_device() -> None:
    gguf = str(resolve("smollm2-draft").path)
    base = {"target": gguf, "draft": None}
    keys = [
        resolve_pair(EngineConfig(**base, **options)).profile_key  # type: ignore[arg-type]
        for options in (
            {}, {"target_backend": "torch"}, {"target_backend": "torch", "dtype": "float32"},
            {"target_backend": "torch", "device": "cpu"},
        )
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    short = resolve_pair(EngineConfig(**base, target_backend="torch", dtype="fp32")).profile_key  # type: ignore[arg-type]
    assert short == keys[2]


@pytest.mark.parametrize("options", [{"draft_weights": "file"}, {"draft_head": 2000}])
def test_a_profile_belongs_to_how_the_draft_is_computed(options: dict[str, Any]) -> None:
    pair = {"target": str(resolve("smollm2-draft").path), "draft": "smollm2-draft"}
    keys = {resolve_pair(EngineConfig(**pair, **one)).profile_key for one in ({}, options)}
    assert len(keys) == 2
