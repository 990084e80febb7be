"""What is trained: copies that can be written back, losses by hand, and the order of samples."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.tiny_models import write_dense

pytest.importorskip("torch", reason="torch is missing: make test-torch runs these")
pytest.importorskip("transformers", reason="transformers is missing: make test-torch runs these")

import torch

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.drafts.head import frequency
from duodec.backends.llamacpp.drafts.parallel import parallel
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.core.targets import Query
from duodec.core.traits import Parallel
from duodec_lab.distill.files import Folder
from duodec_lab.distill.recording import NONE, Recording, Sample
from duodec_lab.distill.settings import FORMATS, NUM_TOPS, DistillSettings
from duodec_lab.distill.source import SourceFile
from duodec_lab.distill.training import batches, loop
from duodec_lab.distill.training.batches import (
    MAX_LENGTH,
    PART_TOKENS,
    Batch,
    parts_of,
    step_of,
    steps_per_epoch,
)
from duodec_lab.distill.training.logits import FrequentHead, WholeHead
from duodec_lab.distill.training.loop import Training
from duodec_lab.distill.training.losses import LOSSES, Known, acceptance, agreement, kl
from duodec_lab.distill.training.rounding import as_stored, rounded
from duodec_lab.distill.training.student import as_array, hidden, open_student, transplant
from duodec_lab.distill.writing import write_gguf

TEXT = [1, 40, 300, 41, 42, 43, 700, 9]


def greedy(causal_lm: Any, tokens: list[int], count: int) -> list[int]:
    """The likeliest continuation, by the model in torch."""
    text = list(tokens)
    with torch.inference_mode():
        for _ in range(count):
            states = hidden(causal_lm, torch.tensor([text], device=causal_lm.device))
            text.append(int(causal_lm.lm_head(states[0, -1]).argmax()))
    return text[len(tokens) :]


def by_llama(path: Path, count: int) -> list[int]:
    """The greedy continuation by llama.cpp."""
    model = LlamaModel(path, num_gpu_layers=0)
    target = LlamaTarget(model, num_context=64, num_threads=1, is_width_exact=True)
    text = list(TEXT)
    for _ in range(count):
        (scores,) = target.score([Query(0, np.array(text, dtype=np.int32))])
        text.append(scores.draw(0).token)
    target.close()
    model.close()
    return text[len(TEXT) :]


@pytest.mark.parametrize("kind", FORMATS)
def test_it_is_trained_in_the_numbers_that_the_file_holds(tmp_path: Path, kind: str) -> None:
    source = SourceFile(write_dense(tmp_path / "own.gguf", width=64, scale=6.0))
    student = open_student(source, (0, 1), "cpu").eval()
    with torch.no_grad():
        for weight in student.parameters():
            weight.add_(torch.randn_like(weight) * 0.1 * weight.std().nan_to_num())
        student.model.embed_tokens.weight[3] = 0.0  # blocks without a scale
        row = student.model.embed_tokens.weight[4]
        row.zero_()  # a tie, for which the width of sums decides
        row[0], row[1] = 0.08663731068372726, 0.016244499012827873
    exact = {name: weight.clone() for name, weight in student.state_dict().items()}
    again = tmp_path / "again.gguf"
    write_gguf(student, source, again, layers=(0, 1), name="again", kind=kind)
    stored = open_student(SourceFile(again), (0, 1), "cpu").state_dict()
    with rounded(student, kind):
        within = {name: weight.clone() for name, weight in student.state_dict().items()}
        assert any(not torch.equal(within[name], exact[name]) for name in exact)
    for name, weight in student.state_dict().items():
        assert torch.equal(within[name], stored[name]), name
        assert torch.equal(weight, exact[name]), name


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_rounded_is_not_rounded_again(kind: str) -> None:
    """So a kept matrix is written as it was computed with."""
    matrix = torch.randn(500, 64, generator=torch.Generator().manual_seed(3))
    once = as_stored(matrix, kind)
    assert not torch.equal(once, matrix)
    assert torch.equal(as_stored(once, kind), once)


def test_gradients_pass_through_the_rounding(tmp_path: Path) -> None:
    """Those of the rounded weights move the exact ones."""
    source = SourceFile(write_dense(tmp_path / "own.gguf", width=64, scale=6.0))

    def gradient(student: torch.nn.Module) -> torch.Tensor:
        student.zero_grad()
        student(input_ids=torch.tensor([TEXT])).logits.logsumexp(-1).sum().backward()
        found = student.model.layers[0].mlp.up_proj.weight.grad
        return found.clone()

    student = open_student(source, (0, 1), "cpu").eval()
    with rounded(student, "q4_0"):
        through = gradient(student)
    plain = gradient(student)
    for weight in student.parameters():
        if weight.ndim > 1:
            weight.data = as_stored(weight.data, "q4_0")
    assert torch.equal(through, gradient(student))
    assert not torch.equal(through, plain)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_what_is_read_is_written_back(tmp_path: Path, architecture: str) -> None:
    path = write_dense(tmp_path / "own.gguf", architecture=architecture, scale=6.0)
    source = SourceFile(path)
    student = open_student(source, (0, 1), "cpu").eval()
    again = tmp_path / "again.gguf"
    write_gguf(student, source, again, layers=(0, 1), name="again", kind="f16")
    written = SourceFile(again)
    assert written.shapes == source.shapes
    ours = {tensor.name: tensor.data.tobytes() for tensor in source.reader.tensors}
    assert {tensor.name: tensor.data.tobytes() for tensor in written.reader.tensors} == ours
    kept = {k for k in source.reader.fields if k.startswith(("tokenizer.", f"{architecture}."))}
    assert all(written.field(key) == source.field(key) for key in kept)
    assert written.field("general.name") == "again"
    assert by_llama(again, 6) == by_llama(path, 6) == greedy(student, TEXT, 6)


def test_the_file_says_which_tokens_its_texts_are_made_of(tmp_path: Path) -> None:
    source = SourceFile(write_dense(tmp_path / "own.gguf"))
    student = open_student(source, (0, 1), "cpu")
    samples = [
        Sample(np.array(tokens, np.int32), 1, np.zeros((0, 0), np.int32), np.zeros((0, 0)))
        for tokens in ([900, 700, 900], [700, 900, 800])
    ]
    frequent = Recording((), tuple(samples), 0.0, 2).frequent_tokens().tolist()
    assert frequent == [900, 700, 800]
    path = tmp_path / "said.gguf"
    write_gguf(student, source, path, layers=(0, 1), name="", kind="f16", frequent=frequent)
    found = [frequency(library.load(), path, most) for most in (2, 4)]
    assert [np.flatnonzero(one.is_frequent)[17:].tolist() for one in found if one] == [
        [700, 900],
        [17, 700, 800, 900],  # what is not counted comes by its number
    ]


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_layers_are_left_out_and_weights_quantised(tmp_path: Path, kind: str) -> None:
    source = SourceFile(write_dense(tmp_path / "own.gguf", num_layers=3, scale=6.0))
    student = open_student(source, (0, 2), "cpu")
    path = tmp_path / "less.gguf"
    write_gguf(student, source, path, layers=(0, 2), name="less", kind=kind)
    written = SourceFile(path)
    assert written.num_layers == 2
    kinds = {tensor.name: tensor.tensor_type.name for tensor in written.reader.tensors}
    assert kinds["blk.1.ffn_up.weight"] == kind.upper()
    assert kinds["blk.1.ffn_norm.weight"] == "F32"
    last = open_student(source, (2,), "cpu").model.layers[0].mlp.up_proj.weight
    back = open_student(written, (1,), "cpu").model.layers[0].mlp.up_proj.weight
    error = (back - last).abs().max() / last.abs().max()
    assert error < (0.01 if kind == "q8_0" else 0.15)
    assert written.num_params((0, 1)) == source.num_params((0, 2))


def test_a_transplant_keeps_rows_of_equal_bytes(tmp_path: Path) -> None:
    own = LlamaModel(
        write_dense(tmp_path / "own.gguf", num_vocab=700), vocabulary_only=True, num_gpu_layers=0
    )
    target = LlamaModel(
        write_dense(tmp_path / "other.gguf", num_vocab=900), vocabulary_only=True, num_gpu_layers=0
    )
    source = SourceFile(tmp_path / "own.gguf")
    student = open_student(source, (0, 1), "cpu")
    before = as_array(student.get_input_embeddings().weight).copy()
    head = as_array(student.lm_head.weight).copy()
    num_shared = transplant(student, own, target)
    after = as_array(student.get_input_embeddings().weight)
    assert after.shape == (900, before.shape[1])
    assert num_shared >= 690
    assert (after[:700] == before).all()
    assert (as_array(student.lm_head.weight)[:700] == head).all()
    token = next(
        t for t in range(700, 900) if len(own.tokenize(said(target, t), is_templated=False)) > 1
    )
    pieces = own.tokenize(said(target, token), is_templated=False)
    assert np.allclose(after[token], before[pieces].mean(0), atol=1e-6)
    path = tmp_path / "new.gguf"
    other = SourceFile(tmp_path / "other.gguf")
    write_gguf(student, source, path, layers=(0, 1), vocabulary=other, name="new", kind="f16")
    assert len(SourceFile(path).field("tokenizer.ggml.tokens")) == 900
    assert by_llama(path, 4) == greedy(student.eval(), TEXT, 4)
    own.close()
    target.close()


def said(vocabulary: LlamaModel, token: int) -> str:
    return vocabulary.piece(token).decode("utf-8", "ignore")


def known(*probs: float) -> Known:
    """Tokens 0, 1, ... with these probabilities, at one position."""
    return Known(torch.arange(len(probs))[None], torch.tensor([probs]))


def test_losses_by_hand() -> None:
    p, q = known(0.5, 0.3), torch.tensor([[0.25, 0.5, 0.15, 0.1]])
    log_q = q.log()
    expected = 0.5 * np.log(0.5 / 0.25) + 0.3 * np.log(0.3 / 0.5) + 0.2 * np.log(0.2 / 0.25)
    assert float(kl(log_q, p)) == pytest.approx(expected, abs=1e-5)
    assert float(acceptance(log_q, p)) == pytest.approx(0.25 + 0.3)
    assert float(LOSSES["acceptance"](log_q, p)) == pytest.approx(-np.log(0.55), abs=1e-5)
    weight = np.exp(-3 * 0.55)
    assert float(LOSSES["lk"](log_q, p)) == pytest.approx(
        weight * expected + (1 - weight) * 0.45, abs=1e-5
    )
    assert int(agreement(log_q, p, 1)) == 0
    assert int(agreement(log_q, p, 2)) == 1


def test_a_head_of_frequent_tokens_has_their_logits_alone(tmp_path: Path) -> None:
    source = SourceFile(write_dense(tmp_path / "own.gguf", width=64))
    student = open_student(source, (0,), "cpu")
    whole = as_stored(student.lm_head.weight.detach().clone(), "q4_0")
    is_frequent = np.zeros(len(whole), bool)
    is_frequent[[3, 7, 40]] = True
    head = FrequentHead(student, "q4_0", is_frequent)
    states = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    exact = (states @ whole.T)[:, [3, 7, 40]]
    assert torch.allclose(head.to_measure()(states), exact, atol=1e-5)
    logits = head.to_train(np.random.default_rng(0))(states)
    assert torch.allclose(logits[:, :3], exact, atol=1e-5)
    assert logits.shape == (5, len(whole)), "of so few tokens, all others are in the sample"
    assert logits.logsumexp(-1).allclose((states @ whole.T).logsumexp(-1), rtol=1e-4)
    p = head.columns(Known(torch.tensor([[7, 8, 3]]), torch.tensor([[0.5, 0.3, 0.1]])))
    assert p.tokens[0, [0, 2]].tolist() == [1, 0]
    assert p.probs.tolist() == [[0.5, 0.0, pytest.approx(0.1)]]
    outside = head.columns(Known(torch.tensor([[8, 7]]), torch.tensor([[0.6, 0.4]])))
    assert not int(agreement(torch.eye(3)[:1], outside, 3)), "it is never drafted"
    assert not any(
        w.requires_grad for w in (student.lm_head.weight, student.model.embed_tokens.weight)
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_falls_to_nothing_where_both_agree(name: str) -> None:
    logits = torch.zeros(1, 6, requires_grad=True)
    p = known(0.9, 0.1)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        loss = LOSSES[name](torch.log_softmax(logits, -1), p).sum()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.03
    assert float(torch.softmax(logits.detach(), -1)[0, 0]) == pytest.approx(0.9, abs=0.05)


def test_a_temperature_sharpens_what_is_known() -> None:
    logprobs = torch.full((1, NUM_TOPS), NONE)
    logprobs[0, :2] = torch.tensor([0.8, 0.2]).log()
    sharp = Known.of(torch.zeros(1, NUM_TOPS, dtype=torch.int64), logprobs, 0.5).probs
    assert float(sharp[0, 0]) == pytest.approx(0.64 / 0.68, abs=1e-5)
    plain = Known.of(torch.zeros(1, NUM_TOPS, dtype=torch.int64), logprobs, 0.0).probs
    assert float(plain[0, 0]) == pytest.approx(0.8, abs=1e-5)


def sample(length: int, num_prompt: int) -> Sample:
    tokens = np.arange(length, dtype=np.int32)
    tops = np.repeat(tokens[num_prompt:, None], NUM_TOPS, 1)
    return Sample(tokens, num_prompt, tops, np.full(tops.shape, NONE, dtype=np.float32))


def test_every_state_is_compared_with_the_token_that_follows_it() -> None:
    batch = Batch.of([sample(7, 3), sample(2000, 1500)], "cpu", 0.0)
    assert batch.tokens.shape == (2, 1024)
    seen = batch.tokens.flatten()[batch.places]
    assert (seen + 1 == batch.known.tokens[:, 0]).all()
    assert len(seen) == 4 + 500


def test_a_mask_token_sees_its_text_and_its_chain_alone(tmp_path: Path) -> None:
    """Each state is that of its text with its chain after it, and is compared with what follows."""
    student = open_student(SourceFile(write_dense(tmp_path / "own.gguf")), (0, 1), "cpu").eval()
    batch = Batch.of([sample(19, 14), sample(9, 3)], "cpu", 0.0, Parallel(16, 4))
    assert torch.bincount(batch.depths).tolist() == [11, 9, 7, 5]
    length = batch.tokens.shape[1]
    with torch.inference_mode():
        states = hidden(student, batch.tokens, batch.positions, batch.sees).flatten(0, 1)
        for place, depth, known in zip(
            batch.places.tolist(), batch.depths.tolist(), batch.known.tokens[:, 0].tolist(),
            strict=True,
        ):  # fmt: skip
            row, column = divmod(place, length)
            end = int(batch.positions[row, column])
            text = [*batch.tokens[row, : end - depth + 1].tolist(), *[16] * depth]
            alone = hidden(student, torch.tensor([text]))[0, -1]
            assert torch.allclose(states[place], alone, atol=1e-4)
            assert known == end + 1


def test_fewer_and_fewer_chains_go_on() -> None:
    dice = np.random.default_rng(0)
    batch = Batch.of([sample(1000, 100)], "cpu", 0.0, Parallel(16, 8), dice)
    counts = torch.bincount(batch.depths).tolist()
    assert counts[0] == 900
    for number, count in enumerate(counts[1:], 1):
        assert abs(count - 900 * max(0.7**number, 0.2)) < 5
    assert (batch.tokens[0, 1000:] == 16).all()


def test_the_mask_is_a_token_that_no_text_has(tmp_path: Path) -> None:
    path = write_dense(tmp_path / "own.gguf")
    source = SourceFile(path)
    assert source.field("tokenizer.ggml.token_type")[source.mask_token] == 3
    student, again = open_student(source, (0, 1), "cpu"), tmp_path / "again.gguf"
    how = Parallel(source.mask_token, 4)
    write_gguf(student, source, again, layers=(0, 1), name="", kind="f16", parallel=how)
    assert parallel(library.load(), again, None) == how
    write_gguf(student, SourceFile(again), path, layers=(0, 1), name="", kind="f16")
    assert parallel(library.load(), path, None) is None, "this one was not trained so"


@pytest.mark.parametrize(
    ("lengths", "num_parts"),
    [([7], 1), ([600] * 8, 3), ([2000, 3000], 1), ([9, 300, 900, 1024, 5000], 3)],
)
def test_the_parts_of_a_step_are_whole_and_fit_in_memory(
    lengths: list[int], num_parts: int
) -> None:
    samples = [sample(length, 3) for length in lengths]
    parts = list(parts_of(samples))
    assert [one for part in parts for one in part] == samples
    for part in parts:
        assert part
        longest = max(min(len(one.tokens), MAX_LENGTH) for one in part)
        assert len(part) == 1 or len(part) * longest <= PART_TOKENS
    assert len(parts) == num_parts


def test_a_step_in_parts_has_the_gradients_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [sample(8 + 2 * i, 3 + i) for i in range(6)]
    for one in samples:
        one.logprobs[:, 0] = np.log(0.9)
    monkeypatch.setattr(loop, "has_bfloat16", lambda kind: False)
    path = write_dense(tmp_path / "own.gguf")
    found = []
    for num_tokens in (PART_TOKENS, 40):
        monkeypatch.setattr(batches, "PART_TOKENS", num_tokens)
        student = open_student(SourceFile(path), (0, 1), "cpu")
        training = Training(
            student, Recording((), (), 0.0, 0), DistillSettings(quantize="f16"), 0, 0.0, 1,
            Folder(tmp_path), WholeHead(student), parallel=Parallel(16, 3),
        )  # fmt: skip
        dice = np.random.default_rng(1)
        parts = training._parts(samples, dice)
        assert (len(parts) > 1) == (num_tokens < PART_TOKENS)
        loss = training._backward(parts, dice)
        found.append((loss, [weight.grad for weight in student.parameters()]))
    (loss, grads), (other_loss, other_grads) = found
    assert other_loss == pytest.approx(loss, rel=1e-4)
    for grad, other in zip(grads, other_grads, strict=True):
        assert grad.abs().max() > 0
        assert torch.allclose(grad, other, rtol=1e-3, atol=1e-4 * float(grad.abs().max()))


def test_steps_are_planned_by_whole_ones_that_train_nothing(tmp_path: Path) -> None:
    """A clock that ticks at each look: of a step (two looks), of the measurement before."""
    samples = tuple(sample(12, 5) for _ in range(8))
    path = write_dense(tmp_path / "own.gguf")
    seconds = itertools.count()

    def trained(*, is_planned: bool) -> list[Any]:
        student = open_student(SourceFile(path), (0, 1), "cpu")
        training = Training(
            student, Recording(samples, samples[:2], 0.0, 0), DistillSettings(quantize="f16"), 0,
            0.0, 2, Folder(tmp_path), WholeHead(student), clock=lambda: float(next(seconds)),
        )  # fmt: skip
        if is_planned:
            assert training.steps_in(104.0) == 100, "four measurements of a second are held back"
        training.run(lambda now, loss: None)
        assert [one.step for one in training.history] == [0, 1, 2]
        return [*student.parameters(), training.history[-1].loss]

    *weights, loss = trained(is_planned=False)
    *others, other_loss = trained(is_planned=True)
    assert other_loss == loss
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)


def test_an_epoch_has_every_sample_once() -> None:
    samples = [sample(5 + i % 9, 3) for i in range(50)]
    per_epoch = steps_per_epoch(samples, 8)
    epochs = [
        [id(s) for step in range(first, first + per_epoch) for s in step_of(samples, 8, step, 1)]
        for first in (0, per_epoch)
    ]
    for order in epochs:
        assert sorted(order) == sorted(map(id, samples))
    assert epochs[0] != epochs[1]
