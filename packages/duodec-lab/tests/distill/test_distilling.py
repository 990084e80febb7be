"""A draft for a target, end to end on random models: recorded, trained, written and judged."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is missing: make test-torch runs these")
pytest.importorskip("transformers", reason="transformers is missing: make test-torch runs these")

import torch

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.drafts.parallel import parallel
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.targets import Query
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec_lab.bench.beds import prices
from duodec_lab.bench.beds.virtual import StepTable
from duodec_lab.distill import recipe, recording
from duodec_lab.distill.files import Folder
from duodec_lab.distill.judging import judged
from duodec_lab.distill.prompts.magpie import Written
from duodec_lab.distill.recipe import Distillation, Result
from duodec_lab.distill.settings import NUM_TOPS, DistillSettings
from duodec_lab.distill.source import SourceFile
from duodec_lab.distill.training.student import hidden, open_student

SETTINGS = DistillSettings(  # fewer held-out prompts would be judged by chance
    steps=100, num_prompts=100, max_tokens=24, learning_rate=3e-3, quantize="f16", parallel=4
)


def work(
    models: dict[str, Path],
    output: Path,
    settings: DistillSettings = SETTINGS,
    params: SamplingParams = SamplingParams(),  # noqa: B008  frozen
    on_progress: Callable[[str, int, int], None] = lambda words, done, total: None,
) -> Distillation:
    config = EngineConfig(target=str(models["target"]), threads=1)
    done = Distillation(
        config=config,
        origin=str(models["draft"]),
        output=output,
        settings=settings,
        params=params,
        on_progress=on_progress,
    )
    done.check()
    return done


@pytest.fixture(scope="module")
def made(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Distillation, Result]:
    done = work(models, tmp_path_factory.mktemp("made") / "new.gguf")
    return done, done.run()


def weights(folder: Folder) -> dict[str, bytes]:
    state = torch.load(folder.checkpoint, weights_only=True)["trained"]
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def test_the_draft_learns_what_the_target_says(made: tuple[Distillation, Result]) -> None:
    _, result = made
    first, last = result.measures[0], result.measures[-1]
    assert (first.step, last.step) == (0, 100)
    assert last.loss < 0.8 * first.loss
    assert last.top1 > first.top1
    assert last.top1 + last.top4 > first.top1 + first.top4
    assert result.after.chain > result.before.chain


def test_the_better_file_is_kept_and_the_result_is_written(
    made: tuple[Distillation, Result],
) -> None:
    done, result = made
    assert result.is_better == result.after.beats(result.before)
    assert result.path.is_file()
    assert done.output.exists() == result.is_better
    record = json.loads(done.folder.result.read_text())
    assert record["after"]["default"] == result.after.default
    assert record["num_steps"] == 100
    assert not list(done.folder.path.glob("*.part"))


def test_llama_cpp_reads_the_file_as_torch_does(made: tuple[Distillation, Result]) -> None:
    done, result = made
    prompt = [1, 40, 41, 42, 43, 300]
    source = SourceFile(result.path)
    model = LlamaModel(result.path, num_gpu_layers=0)
    target = LlamaTarget(model, num_context=64, num_threads=1, is_width_exact=True)
    text = list(prompt)
    for _ in range(12):
        (scores,) = target.score([Query(0, np.array(text, dtype=np.int32))])
        text.append(scores.draw(0).token)
    assert model.chat_template
    target.close()
    model.close()
    student = open_student(source, (0,), "cpu").eval()
    with torch.inference_mode():
        logits = student.lm_head(hidden(student, torch.tensor([text[:-1]]))[0, len(prompt) - 1 :])
    chosen = logits[range(12), text[len(prompt) :]]
    short = logits.max(dim=1).values - chosen
    assert short.max() < 0.01 * logits.std()  # of two that are as likely, either may be chosen
    assert done.source.field("tokenizer.ggml.tokens") == source.field("tokenizer.ggml.tokens")


def test_a_recording_holds_what_the_target_draws_from(made: tuple[Distillation, Result]) -> None:
    done, _ = made
    found = recording.read(done.folder, done.prompts)
    assert found.held_out
    assert found.num_conversations == 100
    for sample in (*found.held_out, *found.training):
        completion = sample.tokens[sample.num_prompt :]
        assert 1 <= len(completion) <= 24
        assert sample.tops.shape == (len(completion), NUM_TOPS)
        assert (sample.tops[:, 0] == completion).all(), "greedy: the likeliest token is drawn"
        assert (np.diff(sample.logprobs, axis=1) <= 0).all(), "best first"
        assert (np.exp(sample.logprobs).sum(1) < 1.01).all()


@pytest.mark.slow
def test_interrupted_three_times_it_ends_with_the_same_weights(
    made: tuple[Distillation, Result], models: dict[str, Path], tmp_path: Path
) -> None:
    """Once while recording, once by a crash in a step, once by Ctrl-C between two."""

    class Crash(Exception):
        pass

    def stop_recording(words: str, done: int, total: int) -> None:
        if words.startswith("recording") and done == 2:
            raise KeyboardInterrupt

    def press(words: str, done: int, total: int) -> None:
        if words.startswith("training") and done == 7:
            os.kill(os.getpid(), signal.SIGINT)

    def crash(words: str, done: int, total: int) -> None:
        if words.startswith("training") and done == 19:
            raise Crash

    output = tmp_path / "new.gguf"
    for stop, error in ((stop_recording, KeyboardInterrupt), (press, KeyboardInterrupt),
                        (crash, Crash)):  # fmt: skip
        again = work(models, output, on_progress=stop)
        with pytest.raises(error):
            again.run()
    assert torch.load(again.folder.checkpoint, weights_only=True)["step"] == 7
    steps: list[int] = []
    last = work(models, output, on_progress=lambda words, done, total: steps.append(done))
    result = last.run()
    whole, expected = made
    assert weights(last.folder) == weights(whole.folder)
    assert result.measures == expected.measures
    assert result.after.chain == expected.after.chain
    for number in range(5):
        ours, theirs = (
            recording.Shard.read(folder, number) for folder in (last.folder, whole.folder)
        )
        assert (ours is None) == (theirs is None)
        if ours and theirs:
            pairs = zip(ours.samples, theirs.samples, strict=True)
            assert all((a.tokens == b.tokens).all() for a, b in pairs)


def test_chains_show_the_draft_alone_however_long_its_steps_seemed_to_take(
    made: tuple[Distillation, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a step of two tokens may seem to take a thousand times as long as one."""
    done, result = made
    slow = StepTable.parse("1:0.1,2:100")
    monkeypatch.setattr(prices, "of_steps", lambda drafter, model: slow)
    held_out = done.prompts.conversations[: done.prompts.num_held_out]
    (verdict,) = judged(
        done.config, [result.path], held_out, done.params,
        forward_ms=done.settings.judge_ms, on_progress=done.on_progress,
    )  # fmt: skip
    assert verdict.chain == result.after.chain
    assert verdict.default < result.after.default


@pytest.mark.usefixtures("few_judged")
def test_a_draft_learns_to_draft_several_tokens_at_once(
    made: tuple[Distillation, Result], models: dict[str, Path], tmp_path: Path
) -> None:
    settings = replace(SETTINGS, draft_parallel=3)
    again = work(models, tmp_path / "new.gguf", settings)
    for shard in made[0].folder.path.glob("shard-*"):
        (again.folder.path / shard.name).write_bytes(shard.read_bytes())
    result = again.run()
    first, last = result.measures[0], result.measures[-1]
    assert len(last.ahead) == 2
    assert sum(last.ahead) > sum(first.ahead)
    assert last.top1 > first.top1
    assert parallel(library.load(), result.path, None) == again.parallel


@pytest.mark.usefixtures("few_judged")
def test_a_large_vocabulary_stays_as_it_was(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers alone learn, against logits of frequent tokens."""
    monkeypatch.setattr(recipe, "MANY_TOKENS", 300)
    monkeypatch.setattr(recipe, "NUM_FREQUENT", 400)
    done = work(models, tmp_path / "new.gguf")
    result = done.run()
    first, last = result.measures[0], result.measures[-1]
    assert last.loss < 0.9 * first.loss
    assert last.top1 + last.top4 > first.top1 + first.top4
    assert all(name.startswith("model.layers.") or "norm" in name for name in weights(done.folder))
    before, after = (
        {tensor.name: tensor.data for tensor in SourceFile(path).reader.tensors}
        for path in (models["draft"], result.path)
    )
    for name in before:
        is_kept = name in ("token_embd.weight", "output.weight")
        same = np.array_equal(before[name].astype(np.float16), after[name].astype(np.float16))
        assert same == is_kept, name


@pytest.mark.usefixtures("few_judged")
def test_prompts_of_the_targets_own_are_answered_as_well(
    models: dict[str, Path], tmp_path: Path
) -> None:
    settings = replace(SETTINGS, steps=2, num_prompts=40, written_prompts=16)
    done = work(models, tmp_path / "new.gguf", settings)
    result = done.run()
    given, every = ({c.turns for c in p.conversations} for p in (done.given, done.prompts))
    assert len(given) == len(every) == result.num_conversations == 40
    assert every - given, "the target wrote none"
    for name in ("written_prompts", "num_prompts"):
        with pytest.raises(BadOption, match=f"another {name}"):
            work(models, done.output, replace(settings, **{name: 44}))


@pytest.mark.usefixtures("few_judged")
def test_no_prompt_is_written_once_some_are_recorded(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """As when an interrupted run goes on with more --minutes: each shard keeps its prompts."""

    def stop(words: str, done: int, total: int) -> None:
        if words.startswith("recording"):
            raise KeyboardInterrupt

    settings = replace(SETTINGS, steps=2, num_prompts=28, written_prompts=16)
    output = tmp_path / "new.gguf"
    again = work(models, output, settings, on_progress=stop)
    with pytest.raises(KeyboardInterrupt):
        again.run()
    Written(["A message.", "Another message."], 4, 0.0).write(again.folder)
    work(models, output, settings).run()
    assert Written.read(again.folder).num_sampled == 4


def test_a_folder_of_another_distillation_is_not_mixed_with_this_one(
    made: tuple[Distillation, Result], models: dict[str, Path]
) -> None:
    done, _ = made
    with pytest.raises(BadOption, match="another learning_rate"):
        work(models, done.output, replace(SETTINGS, learning_rate=0.01))
    with pytest.raises(BadOption, match="another temperature"):
        work(models, done.output, params=SamplingParams(temperature=0.8))


def test_a_damaged_checkpoint_is_one_line(
    made: tuple[Distillation, Result], models: dict[str, Path], tmp_path: Path
) -> None:
    output = tmp_path / "new.gguf"
    again = work(models, output)
    for shard in made[0].folder.path.glob("shard-*"):
        (again.folder.path / shard.name).write_bytes(shard.read_bytes())
    again.folder.checkpoint.write_bytes(b"nothing")
    with pytest.raises(BadOption, match=r"checkpoint\.pt is damaged .* delete it"):
        again.run()
    again.folder.shard(1).write_bytes(b"nothing")
    with pytest.raises(BadOption, match=r"shard-00001\.npz is damaged .* delete it"):
        work(models, output).run()
