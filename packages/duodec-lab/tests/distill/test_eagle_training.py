"""An EAGLE-3 head for tiny random targets: recorded, trained, written, judged and decoded with."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is missing: make test-torch runs these")

import torch
from fakes.tiny_models import WIDTH, write_dense

from duodec.backends.llamacpp.gguf.header import GgufFile
from duodec.backends.llamacpp.heads.files import TARGET_SHA256
from duodec.backends.llamacpp.heads.layers import Eagle3Head, State
from duodec.backends.llamacpp.library import load as load_llama
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.core.draft import Draft
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.targets import Query
from duodec.drafting.heads import Likeliest
from duodec.errors import BadOption, ModelUnreadable
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec_lab.distill.eagle.layer import EagleLayer, Shape, rows
from duodec_lab.distill.eagle.recipe import LayerDistillation, layers_of
from duodec_lab.distill.eagle.states import StateReader
from duodec_lab.distill.eagle.writing import HeadTarget, write_head
from duodec_lab.distill.recipe import Result
from duodec_lab.distill.settings import DistillSettings
from duodec_lab.distill.source import SourceFile

SETTINGS = DistillSettings(
    heads="eagle3", steps=30, num_prompts=28, max_tokens=16, learning_rate=5e-3, quantize="f16",
    parallel=4, batch=4,
)  # fmt: skip
LAYERS = 4
CHAIN = Likeliest(num_leaves=1, num_candidates=1, depth=3)
SIZES: Any = {"num_slots": 1, "num_context": 256, "num_threads": 1}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_dense(folder / "target.gguf", scale=6.0, num_layers=LAYERS)


def work(
    target: Path,
    output: Path,
    settings: DistillSettings = SETTINGS,
    on_progress: Callable[[str, int, int], None] = lambda words, done, total: None,
) -> LayerDistillation:
    done = LayerDistillation(
        config=EngineConfig(target=str(target), threads=1),
        output=output,
        settings=settings,
        params=SamplingParams(seed=0),
        on_progress=on_progress,
    )
    done.check()
    return done


@pytest.fixture(scope="module")
def made(
    target: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LayerDistillation, Result]:
    done = work(target, tmp_path_factory.mktemp("made") / "head.gguf")
    return done, done.run()


class Seen(Eagle3Head):
    """Keeps the logits of every step."""

    seen: list[State]

    def _last(self, num_rows: int) -> tuple[State, State]:
        row, state = super()._last(num_rows)
        self.seen.append(row.copy())
        return row, state


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_llama_cpp_computes_what_torch_trains(tmp_path: Path, architecture: str) -> None:
    """Of a text with the target's states, and of two of the head's own tokens after it."""
    path = write_dense(
        tmp_path / "target.gguf", scale=6.0, num_layers=LAYERS, architecture=architecture
    )
    source = SourceFile(path)
    text = np.random.default_rng(3).integers(3, 1000, 40).astype(np.int32)
    torch.manual_seed(5)
    with closing(LlamaModel(path, num_gpu_layers=0)) as model:
        layers = layers_of(LAYERS)
        with closing(StateReader(model, layers, 64, 1)) as reader:
            states = torch.from_numpy(reader.of(text).astype(np.float32))
        layer = EagleLayer(Shape.of(source), states.shape[1])
        layer.begin(source, states[1:])
        with torch.no_grad():
            for weight in layer.parameters():
                weight += 0.05 * torch.randn_like(weight)
                weight.copy_(weight.half().float())
        tokens = np.random.default_rng(4).permutation(1024)[:300]
        matrix = rows(source, "output.weight", tokens)
        wanted = HeadTarget(path, model.num_vocab, 1024, layers)
        write_head(layer, matrix, tokens, wanted, tmp_path / "head.gguf", "f16")
        opened: list[Seen] = []

        def open_head(context: object) -> Seen:
            opened.append(Seen(model, context, tmp_path / "head.gguf", **SIZES))
            opened[-1].seen = []
            return opened[-1]

        with closing(LlamaTarget(model, **SIZES, open_head=open_head)) as decoding:
            (scores,) = decoding.score([Query(0, text, Draft(), heads=CHAIN)])
            drafted = scores.proposed().tree.tokens
            found = opened[0].seen
            first = scores.draw(0).token
    whole = np.concatenate([text, [first], drafted[:2]]).astype(np.int64)
    embedded = torch.from_numpy(rows(source, "token_embd.weight", whole[1:]))
    given = torch.cat([states, torch.zeros(2, states.shape[1])])
    with torch.no_grad():
        every = layer.unrolled(embedded, given, 30, 3)
    assert len(found) == 3
    for depth, row in enumerate(found):
        own = every[depth][len(text) - 1 - 30] @ torch.from_numpy(matrix).T
        assert np.isneginf(np.delete(row, tokens)).all()
        assert np.abs(row[tokens] - own.numpy()).max() < 0.03 * float(own.std()), depth
        assert row.argmax() == drafted[depth]


def test_a_head_learns_what_its_target_says(made: tuple[LayerDistillation, Result]) -> None:
    _, result = made
    first, last = result.measures[0], result.measures[-1]
    assert (first.step, last.step) == (0, 30)
    assert last.loss < 0.8 * first.loss
    assert len(last.ahead) == 2
    assert result.after.chain >= 1.0
    assert result.before.chain == 1.0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_one_text_with_and_without_a_trained_head(
    made: tuple[LayerDistillation, Result], target: Path, temperature: float
) -> None:
    _, result = made
    config = partial(
        EngineConfig, target=str(target), draft="none", context=256, threads=1, num_slots=2
    )
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=3)
    prompts = ["one two three four one two three", "two three"]
    with load(config()) as llm:
        expected = [one.tokens for one in llm.generate(prompts, params, method="ar")]
    with load(config(heads=str(result.path))) as llm:
        for method in ("ar", "eagle3", "eagle3:5", "auto", "lookup"):
            done = llm.generate(prompts, params, method=method)
            assert [one.tokens for one in done] == expected, method
        (alone,) = llm.generate(prompts[:1], params, method="eagle3")
        assert alone.tokens == expected[0]
        assert alone.stats.num_draft_tokens > 20


def test_interrupted_three_times_it_ends_with_the_same_weights(
    made: tuple[LayerDistillation, Result], target: Path, tmp_path: Path
) -> None:
    """While recording tokens, while reading states, and by Ctrl-C between two steps."""

    def stop(at: str, number: int) -> Callable[[str, int, int], None]:
        def look(words: str, done: int, total: int) -> None:
            if words.startswith(at) and done == number:
                raise KeyboardInterrupt

        return look

    def press(words: str, done: int, total: int) -> None:
        if words.startswith("training") and done == 9:
            os.kill(os.getpid(), signal.SIGINT)

    output = tmp_path / "head.gguf"
    for look in (stop("recording", 2), stop("reading", 1), press):
        again = work(target, output, on_progress=look)
        with pytest.raises(KeyboardInterrupt):
            again.run()
    assert again.folder.states(0).exists()
    assert torch.load(again.folder.checkpoint, weights_only=True)["step"] == 9
    result = work(target, output).run()
    whole, expected = made
    weights = [
        torch.load(one.folder.checkpoint, weights_only=True)["trained"] for one in (again, whole)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert result.measures == expected.measures


# --- what is refused, and what is said


def test_the_file_names_its_target(
    made: tuple[LayerDistillation, Result], target: Path, tmp_path: Path
) -> None:
    _, result = made
    with GgufFile(load_llama(), result.path) as file:
        assert len(file.text(TARGET_SHA256)) == 64
    said: list[str] = []
    config = EngineConfig(target=str(target), draft="none", threads=1, heads=str(result.path))
    load(config, on_warning=said.append).close()
    assert not [words for words in said if "trained for" in words]
    other = write_dense(tmp_path / "other.gguf", scale=6.0, num_layers=LAYERS, kind="Q8_0")
    load(replace(config, target=str(other)), on_warning=said.append).close()
    assert [words for words in said if "trained for target.gguf" in words]


def test_a_head_of_another_width_is_refused(
    made: tuple[LayerDistillation, Result], tmp_path: Path
) -> None:
    _, result = made
    other = write_dense(tmp_path / "wide.gguf", width=2 * WIDTH, num_layers=LAYERS)
    config = EngineConfig(target=str(other), draft="none", threads=1, heads=str(result.path))
    with pytest.raises(BadOption, match=f"of width {WIDTH}, not {2 * WIDTH}"):
        load(config)


@pytest.mark.parametrize("part", [3, 100, 5000])
def test_a_damaged_head_is_one_line(
    made: tuple[LayerDistillation, Result], target: Path, tmp_path: Path, part: int
) -> None:
    _, result = made
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(result.path.read_bytes()[:part])
    config = EngineConfig(target=str(target), draft="none", threads=1, heads=str(damaged))
    with pytest.raises(ModelUnreadable, match=r"damaged\.gguf") as found:
        load(config)
    assert "\n" not in str(found.value)


def test_damaged_states_are_one_line(
    made: tuple[LayerDistillation, Result], target: Path, tmp_path: Path
) -> None:
    again = work(target, tmp_path / "head.gguf")
    for path in (*made[0].folder.path.glob("shard-*"), *made[0].folder.path.glob("states-*")):
        (again.folder.path / path.name).write_bytes(path.read_bytes())
    data = again.folder.states(1).read_bytes()
    for wrong in (b"nothing", data[: len(data) // 2]):
        again.folder.states(1).write_bytes(wrong)
        with pytest.raises(BadOption, match=r"states-00001\.npy is damaged .* delete it"):
            again.run()


def test_another_distillation_is_not_mixed_with_this_one(
    made: tuple[LayerDistillation, Result], target: Path
) -> None:
    with pytest.raises(BadOption, match="another learning_rate"):
        work(target, made[0].output, replace(SETTINGS, learning_rate=0.01))
