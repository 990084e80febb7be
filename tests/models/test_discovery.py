"""Drafts found in a home with the caches of four tools; what does not suit is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.gguf_files import write_model
from fakes.ollama_models import pulled

from duodec.cli.checks.payoff import Speed
from duodec.loading.config import EngineConfig
from duodec.loading.profile import Forward, Profile, Step
from duodec.loading.resolve import draft_for
from duodec.models import ALIASES
from duodec.models.discovery import best_for, candidates, hub_folder
from duodec.models.families import FAMILIES, family_of
from duodec.models.metadata import ModelMetadata
from duodec.models.references import parse_hub

TOKENS = [f"token{i}" for i in range(400)]
OTHERS = [f"other{i}" for i in range(400)]
HUB = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
TARGET, DRAFT = 4000, 400  # parameters


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of nobody's, with no caches yet."""
    for name in (*HUB, "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "ours"))
    best_for.cache_clear()
    return tmp_path


@pytest.fixture
def target(home: Path) -> Path:
    path = home / "work" / "big-8b.gguf"
    return write_model(path, tokens=TOKENS, num_params=TARGET, name="Big 8B")


def four_tools(home: Path, **model: object) -> dict[str, Path]:
    """The same kind of model in every tool's cache, each a little larger than the last."""
    hub = home / ".cache/huggingface/hub/models--who--small-GGUF/snapshots/abc/small.gguf"
    lm = home / ".lmstudio/models/who/small-GGUF/small.gguf"
    places = {
        "the hub's cache": hub,
        "llama.cpp's cache": home / ".cache/llama.cpp/who_small-GGUF_small.gguf",
        "LM Studio's models": lm,
    }
    for i, path in enumerate(places.values()):
        write_model(path, num_params=DRAFT + i, **model)  # type: ignore[arg-type]
    size = DRAFT + len(places)
    return places | {
        "Ollama's models": pulled(home / ".ollama/models", "small", num_params=size, **model)
    }


@pytest.mark.parametrize(
    ("first", "place"),
    [(0, "/cache"), (1, "/old"), (2, "/home/hub"), (3, "/xdg/huggingface/hub"),
     (4, "~/.cache/huggingface/hub")],
)  # fmt: skip
def test_the_hubs_cache_is_where_its_library_keeps_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, first: int, place: str
) -> None:
    """The variables in the library's order."""
    for name, value in list(zip(HUB, ("/cache", "/old", "/home", "/xdg"), strict=True))[first:]:
        monkeypatch.setenv(name, value)
    assert hub_folder() == Path(place).expanduser()


def test_every_tools_cache_is_searched(home: Path, target: Path) -> None:
    places = four_tools(home, tokens=TOKENS)
    beside = write_model(target.with_name("tiny.gguf"), tokens=TOKENS, num_params=DRAFT - 1)
    found = {one.path: one for one in candidates(target)}
    for place, path in {**places, "next to the target": beside}.items():
        assert found[path].place == place
        assert found[path].is_same
        assert not found[path].fault
    assert found[places["Ollama's models"]].name == "small:latest"
    assert candidates(target)[0].path == beside  # the smallest
    assert target not in found


def test_variables_move_the_caches(
    home: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = {"HF_HUB_CACHE": "a", "LLAMA_CACHE": "b", "OLLAMA_MODELS": "c"}
    for name, folder in moved.items():
        monkeypatch.setenv(name, str(home / folder))
    write_model(home / "a" / "x.gguf", tokens=TOKENS, num_params=DRAFT)
    write_model(home / "b" / "y.gguf", tokens=TOKENS, num_params=DRAFT)
    names = {one.name for one in candidates(target) if one.is_same}
    assert names == {"x", "y"}


def test_what_does_not_suit_is_named_and_skipped(home: Path, target: Path) -> None:
    folder = target.parent
    write_model(folder / "big-1b.gguf", tokens=OTHERS, num_params=DRAFT, name="Big 1B")
    whole = write_model(folder / "cut.gguf", tokens=TOKENS, num_params=DRAFT)
    whole.write_bytes(whole.read_bytes()[:-100])
    early = write_model(folder / "early.gguf", tokens=TOKENS, num_params=DRAFT)
    early.write_bytes(early.read_bytes()[:300])
    (folder / "words.gguf").write_text("no model at all")
    write_model(folder / "half.gguf", tokens=TOKENS, num_params=TARGET - 200)
    write_model(folder / "larger.gguf", tokens=TOKENS, num_params=2 * TARGET)
    write_model(folder / "big-embedding.gguf", tokens=TOKENS, num_params=DRAFT)
    write_model(folder / "clip.gguf", tokens=(), num_params=DRAFT, architecture="clip")
    found = {one.name: one for one in candidates(target)}
    assert not found["big-1b"].is_same  # the name says nothing
    assert not found["big-1b"].fault
    for name, words in {
        "cut": "truncated or damaged",
        "early": "truncated or damaged",
        "words": "not a GGUF file",
        "half": "too large",
        "larger": "larger than the target",
        "big-embedding": "embeds",
        "clip": "no vocabulary",
    }.items():
        assert words in found[name].fault, name
    assert best_for(target) is None


def test_a_few_unequal_tokens_and_padding_are_the_same_vocabulary(target: Path) -> None:
    renamed = ["<think>", *TOKENS[1:], *(f"[PAD{i}]" for i in range(64))]
    path = write_model(target.with_name("q.gguf"), tokens=renamed, num_params=DRAFT)
    assert ModelMetadata.of(path).has_vocabulary_of(ModelMetadata.of(target))
    assert not ModelMetadata.of(path).has_vocabulary_of(
        ModelMetadata("llama", "x", 1, 1, tuple(token.encode() for token in OTHERS))
    )


def test_auto_takes_the_smallest_of_the_vocabulary(home: Path, target: Path) -> None:
    four_tools(home, tokens=TOKENS)
    write_model(target.with_name("tiny.gguf"), tokens=OTHERS, num_params=DRAFT // 2)
    found = draft_for(EngineConfig(target=str(target)))
    assert found == str(home / ".cache/huggingface/hub/models--who--small-GGUF/snapshots/abc/"
                        "small.gguf")  # fmt: skip
    assert draft_for(EngineConfig(target=str(target), draft="none")) is None
    assert draft_for(EngineConfig(target="no/such:file")) is None


def test_a_folders_vocabulary_is_compared(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    vocab = {"model": {"vocab": {token: i for i, token in enumerate(TOKENS)}}}
    (folder / "tokenizer.json").write_text(json.dumps(vocab))
    (folder / "model.safetensors").write_bytes(bytes(2 * TARGET))
    beside = write_model(folder / "small.gguf", tokens=TOKENS, num_params=DRAFT)
    assert best_for(folder) == str(beside)


@pytest.mark.parametrize(
    ("architecture", "name", "family"),
    [
        ("qwen2", "Qwen2.5 Coder 7B Instruct", "Qwen2.5-Coder"),
        ("qwen2", "Qwen2.5-72B-Instruct", "Qwen2.5"),
        ("qwen3moe", "Qwen3 30B A3B", "Qwen3"),
        ("qwen35", "Qwen3.5-9B", "Qwen3.5 and later"),
        ("llama", "Meta Llama 3.1 8B Instruct", "Llama 3"),
        ("llama", "SmolLM2-1.7B-Instruct", "SmolLM2"),
        ("smollm3", "SmolLM3 3B", "SmolLM3"),
        ("gemma3", "gemma-3-27b-it", "Gemma 3"),
        ("llama", "Mistral-Small-3.1-24B-Instruct-2503", "Mistral, Tekken"),
        ("llama", "Mistral-7B-Instruct-v0.3", "Mistral"),
        ("gpt-oss", "gpt-oss-20b", "gpt-oss"),
        ("phi3", "Phi 4", "Phi"),
        ("llama", "TinyLlama 1.1B", None),
        ("bert", "Qwen2.5-Coder", None),
    ],
)
def test_families_are_known(architecture: str, name: str, family: str | None) -> None:
    found = family_of(architecture, "no name", name)
    assert (found.name if found else None) == family


def test_every_familys_draft_can_be_named() -> None:
    for family in FAMILIES:
        assert family.draft in ALIASES or parse_hub(family.draft) is not None


def test_the_expected_speed_grows_with_agreement_and_falls_with_the_step() -> None:
    speed = Speed(0.1, 0.12, 0.01, 0.02)
    speeds = [speed.expected(a, shares_cores=False) for a in (0.0, 0.3, 0.6, 0.9)]
    assert speeds[0] == 1.0
    assert speeds == sorted(speeds)
    assert speeds[-1] > 3
    steps = [replace(speed, draft_s=s) for s in (0.01, 0.05, 0.5)]
    slow = [one.expected(0.6, shares_cores=False) for one in steps]
    assert slow == sorted(slow, reverse=True)
    assert slow[-1] == 1.0
    assert steps[1].expected(0.6, shares_cores=True) < slow[1]


def test_doctor_and_profile_judge_drafts_by_the_same_figures() -> None:
    forwards = tuple(Forward(64, n, s, None) for n, s in ((0, 0.1), (7, 0.12), (15, 0.2)))
    steps = tuple(Step(64, n, s) for n, s in ((1, 0.01), (4, 0.02)))
    profile = Profile("key", "target", "draft", forwards, steps)
    assert Speed.of(profile) == Speed(0.1, 0.12, 0.01, 0.02)
