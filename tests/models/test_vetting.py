"""Model files that are not pinned: their faults are one line, and end no process of ours.

They are made of the shipped draft by changing a few bytes of it.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.decoding import FakeTokenizer

from duodec import LLM
from duodec.backends.llamacpp.checks import self_test
from duodec.backends.llamacpp.gguf.checks import check_header
from duodec.cli.app import run
from duodec.core.rows import check_finite
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.errors import ComputeFailed, ModelUnreadable
from duodec.loading import vetting
from duodec.loading.backends import TargetFiles, named
from duodec.loading.config import LLAMA_CPP, EngineConfig
from duodec.loading.resolve import ResolvedTarget
from duodec.loading.vetting import vetted
from duodec.machine import busy
from duodec.machine.processes import NO_GPU
from duodec.models import ALIASES, ModelFile, resolve
from duodec.testing import TableModel, TableTarget

DRAFT, TARGET = resolve("smollm2-draft").path, resolve("smollm2").path
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))


def given(path: Path) -> ModelFile:
    return resolve(str(path))


def changed(folder: Path, *changes: tuple[str, str, Any]) -> Path:
    """The draft with other values of its fields: (key, struct's format, value)."""
    data = bytearray(DRAFT.read_bytes())
    for key, form, value in changes:
        name = len(key).to_bytes(8, "little") + key.encode()
        at = data.index(name) + len(name) + 4  # after the type
        struct.pack_into("<" + form, data, at, value)
    path = folder / "changed.gguf"
    path.write_bytes(data)
    return path


LAST_TENSOR = 576 * 1536 // 32 * 18  # bytes of the last block's ffn_up, in Q4_0


def damaged(folder: Path) -> Path:
    """The draft with a tensor whose numbers are none: scales of NaN."""
    data = DRAFT.read_bytes()
    path = folder / "damaged.gguf"
    path.write_bytes(data[:-LAST_TENSOR] + b"\xff" * LAST_TENSOR)
    return path


# The header


@pytest.mark.parametrize("path", [DRAFT, TARGET])
def test_sound_headers_pass(path: Path) -> None:
    check_header(path)


@pytest.mark.parametrize(
    ("key", "form", "value", "shown"),
    [
        ("llama.block_count", "I", 0, "0"),
        ("llama.block_count", "I", 1 << 31, "2147483648"),
        ("llama.context_length", "I", (1 << 32) - 1, "4294967295"),
        ("llama.context_length", "I", 0, "0"),
        ("llama.embedding_length", "I", 0, "0"),
        ("llama.attention.head_count", "I", 1 << 30, "1073741824"),
        ("llama.attention.layer_norm_rms_epsilon", "f", NAN, "nan"),
        ("llama.attention.layer_norm_rms_epsilon", "f", -1.0, "-1.0"),
        ("llama.rope.freq_base", "f", INF, "inf"),
        ("llama.rope.freq_base", "f", 0.0, "0.0"),
    ],
)
def test_a_field_out_of_its_range_is_named(
    tmp_path: Path, key: str, form: str, value: Any, shown: str
) -> None:
    path = changed(tmp_path, (key, form, value))
    with pytest.raises(ModelUnreadable) as caught:
        vetted(given(path))
    words = str(caught.value)
    assert key in words
    assert f"is {shown}, which should be" in words
    assert str(path) in words
    assert "\n" not in words


def test_positions_in_sections_of_nothing_are_refused(tmp_path: Path) -> None:
    """llama.cpp would compute for ever."""

    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    uint32, string, array = 4, 8, 9
    entries = [
        text("general.architecture") + struct.pack("<I", string) + text("qwen35"),
        text("qwen35.rope.dimension_count") + struct.pack("<II", uint32, 0),
        text("qwen35.rope.dimension_sections")
        + struct.pack("<IIQIIII", array, uint32, 4, 11, 11, 10, 0),
    ]
    path = tmp_path / "sections.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    with pytest.raises(ModelUnreadable, match=r"rope\.dimension_count is 0"):
        check_header(path)
    entries[1] = entries[1][:-4] + struct.pack("<I", 32)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    check_header(path)


@pytest.mark.parametrize(
    ("key", "size", "words"),
    [
        ("tokenizer.ggml.tokens", (1 << 64) - 1, "truncated"),
        ("tokenizer.ggml.tokens", 49_000, "damaged"),
        ("tokenizer.ggml.token_type", 3, "damaged"),
        ("tokenizer.ggml.token_type", 1 << 40, "truncated"),
        ("tokenizer.ggml.merges", 1 << 61, "truncated"),
    ],
)
def test_an_array_of_another_length_is_refused(
    tmp_path: Path, key: str, size: int, words: str
) -> None:
    data = bytearray(DRAFT.read_bytes())
    at = data.index(key.encode()) + len(key) + 8  # after both types
    struct.pack_into("<Q", data, at, size)
    path = tmp_path / "array.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelUnreadable, match=words):
        check_header(path)


@pytest.mark.parametrize("size", [4, 5, 8, 24, 30, 1000, 400_000])
def test_a_header_that_ends_early_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(DRAFT.read_bytes()[:size])
    with pytest.raises(ModelUnreadable, match="truncated or damaged"):
        check_header(path)


# The trial


def test_a_sound_file_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(tmp_path)
    tried: list[Path] = []
    honest = vetting.try_file

    def counted(path: Path, *more: Any) -> None:
        tried.append(path)
        honest(path, *more)

    monkeypatch.setattr(vetting, "try_file", counted)
    for _ in range(3):
        assert vetted(given(path)).path == path
    assert tried == [path]
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    vetted(given(path))
    assert tried == [path] * 2, "size and time of modification vouch for nothing"


def test_a_trial_sees_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seen: list[dict[str, str]] = []

    def recorded(*_: Any, env: dict[str, str], **__: Any) -> Any:
        seen.append(env)
        return subprocess.CompletedProcess([], 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", recorded)
    vetted(given(changed(tmp_path)))
    with pytest.raises(ValueError, match="Expecting value"):  # it says nothing
        self_test.examine({})
    assert len(seen) == 2
    assert all(env.items() >= NO_GPU.items() for env in seen)


def test_what_is_pinned_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vetting, "try_file", lambda *_: pytest.fail("a trial"))
    file = resolve("smollm2-draft")
    assert file.sha256 == ALIASES["smollm2-draft"].sha256
    assert vetted(file) == file


def test_a_refusal_says_what_the_library_says(tmp_path: Path) -> None:
    path = changed(tmp_path, ("llama.block_count", "I", 29))
    with pytest.raises(ModelUnreadable, match=r"cannot be loaded by llama\.cpp \(\w.*\): "):
        vetted(given(path))


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("import os; os.abort()", r"crashed on .* \(SIGABRT\)"),
        ("import os; os.write(2, b'x.c:1: GGML_ASSERT(a > b) failed\\n'); os.abort()",
         r"GGML_ASSERT\(a > b\) failed"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import time; time.sleep(60)", "not loaded within 1 s"),
    ],
)  # fmt: skip
def test_how_a_trial_ends_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, words: str
) -> None:
    monkeypatch.setattr(vetting, "BOOT", ending)
    monkeypatch.setattr(vetting, "LEAST_S", 1.0)
    monkeypatch.setattr(vetting, "BYTES_PER_S", 1e12)
    with pytest.raises(ModelUnreadable, match=words) as caught:
        vetted(given(changed(tmp_path)))
    assert "; " in str(caught.value), "a remedy"


# Numbers that are none


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(0.8),
        SamplingParams(0.8, top_k=5, top_p=0.9),
        SamplingParams(0.8, top_p=0.9),
        SamplingParams(0.8, min_p=0.1),
        SamplingParams(0.8, presence_penalty=0.5),
        SamplingParams(logit_bias={7: 1.0}),
    ],
)
def test_nothing_is_drawn_of_logits_that_are_no_numbers(
    value: float, params: SamplingParams
) -> None:
    row = np.zeros(5000, dtype=np.float32)
    row[4321] = value
    context = Context(np.array([1], dtype=np.int32))
    for draw in (Sampler(params).draw, Sampler(params).distribution):
        with pytest.raises(ComputeFailed, match="no numbers"):
            draw(row, context)


def test_tokens_that_are_banned_by_the_model_are_no_fault() -> None:
    row = np.full(10, -INF, dtype=np.float32)
    row[3] = 1.0
    check_finite(row)
    assert Sampler().draw(row, Context(np.array([1], dtype=np.int32))).token == 3


@dataclass(frozen=True)
class Broken(TableModel):
    """Computes what is no number."""

    def logits(self, context: Context) -> np.ndarray[Any, Any]:
        return np.full(self.num_vocab, NAN, dtype=np.float32)


def test_an_answer_of_logits_that_are_no_numbers_ends_with_an_error() -> None:
    engine = LLM(TableTarget(Broken()), FakeTokenizer(), 100)
    with pytest.raises(ComputeFailed, match="no numbers"):
        engine.generate([[1, 2, 3]], SamplingParams(max_tokens=4))


def test_the_server_finds_them_before_it_has_clients() -> None:
    service = pytest.importorskip("duodec.server.service")
    settings = pytest.importorskip("duodec.server.settings")
    engine = LLM(TableTarget(Broken()), FakeTokenizer(), 100)
    served = service.Service(settings.Settings("broken", port=0))
    with pytest.raises(ComputeFailed, match="no numbers"):
        served.start(engine)
    assert not served.is_ready


def duodec(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "duodec", *arguments],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        env={**os.environ, "DUODEC_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip


@pytest.mark.slow
def test_doctor_and_generate_tell_of_damaged_tensors(tmp_path: Path) -> None:
    path = str(damaged(tmp_path))
    done = duodec(tmp_path, "doctor", "-m", path, "--draft", "none", "--json")
    assert done.returncode == 3, done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert [c for c in checks if c["verdict"] == "fail" and "no numbers" in c["words"]]
    done = duodec(tmp_path, "generate", "-m", path, "-n", "4", "hi")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "no numbers" in done.stderr


def test_doctor_tells_of_damaged_tensors_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(busy, "wait_until_idle", lambda wait: "other programs keep 1.2 cores busy")
    path = str(damaged(tmp_path))
    assert run(["doctor", "-m", path, "--draft", "none", "-c", "256", "--json"]) == 3
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [c for c in checks if c["verdict"] == "fail" and "no numbers" in c["words"]]


@pytest.mark.slow
def test_doctor_tries_the_template(tmp_path: Path) -> None:
    data = DRAFT.read_bytes()
    begin = data.index(b"{% for message in messages %}")
    end = data.index(b"{% if add_generation_prompt %}")
    loop = b"{{ 7 ** (10 ** 10) }}"
    path = tmp_path / "template.gguf"
    path.write_bytes(data[:begin] + loop.ljust(end - begin) + data[end:])
    done = duodec(tmp_path, "doctor", "-m", str(path), "--draft", "none", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["chat template"]["verdict"] == "warn"
    assert "takes longer than 5 s" in checks["chat template"]["words"]
    assert "--raw" in checks["chat template"]["remedy"]


@pytest.mark.slow
def test_doctor_and_generate_survive_a_damaged_header(tmp_path: Path) -> None:
    path = str(changed(tmp_path, ("llama.block_count", "I", 0)))
    for command in (["doctor", "--draft", "none"], ["generate", "hi"]):
        done = duodec(tmp_path, *command, "-m", path)
        assert done.returncode in (2, 3)
        assert "llama.block_count is 0" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("backend", "reads_no_weights"), [("torch", True), (LLAMA_CPP, False)])
def test_weights_are_tried_by_the_library_that_computes_them(
    backend: str, reads_no_weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []

    def noted(file: ModelFile, *, vocabulary_only: bool) -> ModelFile:
        tried.append(vocabulary_only)
        return file

    monkeypatch.setattr(vetting, "vetted", noted)
    found = TargetFiles(resolve("smollm2-draft"))
    target = ResolvedTarget(EngineConfig(), named(backend), found)
    assert vetting.vetted_files(target) is found
    assert tried == [reads_no_weights]


@pytest.mark.parametrize("mmproj", ["auto", "pictures.gguf"])
def test_only_a_bad_projector_that_nobody_named_is_left_out(
    mmproj: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, pictures, tried = Path("heads.gguf"), Path("pictures.gguf"), list[Path]()

    def refused(path: Path, target: ModelFile) -> Path:
        raise ModelUnreadable(f"{path} is of another target")

    monkeypatch.setattr(vetting, "vetted_head", lambda path, target: tried.append(path))
    monkeypatch.setattr(vetting, "vetted_projector", refused)
    found = TargetFiles(resolve("smollm2-draft"), heads, pictures)
    target = ResolvedTarget(EngineConfig(mmproj=mmproj), named(LLAMA_CPP), found)
    if mmproj == "auto":
        left = vetting.vetted_files(target)
        assert (left.file, left.heads, left.mmproj) == (found.file, heads, None)
        assert "is of another target" in str(left.no_pictures)
    else:
        with pytest.raises(ModelUnreadable, match=r"^pictures\.gguf is of another target$"):
            vetting.vetted_files(target)
    assert tried == [heads]
