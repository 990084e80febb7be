"""Heads on a torch target: trained on a tiny random model's own texts, they change speed alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")

import torch
from fakes.decoding import FixedBudget, Session, decode_rounds
from fakes.torch_models import NUM_VOCAB, build, random_text

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec.core.verify import verify
from duodec.drafting.heads import Likeliest
from duodec.errors import ModelUnreadable
from duodec.methods.registry import METHODS, method
from duodec.methods.request import Request
from duodec.scheduler.outputs import Failed
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec_lab.distill.recording import Sample
from duodec_lab.distill.settings import DistillSettings
from duodec_lab.distill.training.heads import HeadTraining
from duodec_torch.forward.network import Network, num_params
from duodec_torch.heads.eagle import Eagle, EagleModule
from duodec_torch.heads.files import HeadFiles
from duodec_torch.load import load_heads
from duodec_torch.target import TorchTarget

KIND = "llama"
PROMPT = tuple(random_text(40, 9))
NUM_HEADS = 3
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, seed=3)
OF_HEADS = [name for name, kind in METHODS.items() if kind.needs_heads]


def text_of(target: TorchTarget, name: str, params: SamplingParams, prompt=PROMPT, num=24):
    """Tokens and rounds."""
    session = Session(
        target=target,
        prompt=prompt,
        capacity=len(prompt) + num,
        sampler=Sampler(params, 0, len(prompt)),
        costs=FixedBudget(5),
    )
    rounds = list(decode_rounds(method(name), session))
    return session.text[len(prompt) :].tolist(), rounds


def target_with(heads: Path | None, **options: Any) -> TorchTarget:
    network = Network(build(KIND))
    widths = Widths.only(16)
    settings = {"num_context": 400, "widths": widths, "num_chunk": 32, "num_slots": 3, **options}
    return TorchTarget(network, heads=load_heads(heads, network) if heads else None, **settings)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """What is tiny is computed faster so, above all on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """What the model says after some prompts, by transformers itself."""
    prompts = torch.tensor([PROMPT, *(random_text(len(PROMPT), seed) for seed in range(5))])
    torch.manual_seed(0)
    return build(KIND).generate(prompts, max_new_tokens=60, do_sample=False).tolist()


def trained_eagle(texts: list[list[int]], path: Path) -> Path:
    """A folder as EAGLE publishes it, whose layer was trained on the texts."""
    config = {
        "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    module = EagleModule(HeadFiles(path, config), has_bias=True, has_qkv_bias=False)
    model, tokens = build(KIND), torch.tensor(texts)
    with torch.no_grad():
        states = model.model(tokens).last_hidden_state[:, :-1]
        embedded = model.get_input_embeddings()(tokens)[:, 1:]
    length = states.shape[1]
    places, sees = torch.arange(length), torch.ones(length, length, dtype=torch.bool).tril()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(50):
        found = torch.stack([
            module(s, e, places, None, sees)[0] for s, e in zip(states, embedded, strict=True)
        ])  # fmt: skip
        logits = model.lm_head(found[:, :-1]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 2:].flatten())
        loss = loss + torch.nn.functional.smooth_l1_loss(found[:, :-1], states[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = {**module.state_dict(), "embed_tokens.weight": torch.zeros(NUM_VOCAB, 32)}
    torch.save(weights, path / "pytorch_model.bin")
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module", params=["medusa", "hydra", "eagle"])
def folder(request, texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of each kind, trained on those texts."""
    if request.param == "eagle":
        return trained_eagle(texts, tmp_path_factory.mktemp("eagle"))
    settings = DistillSettings(steps=200, batch=3, learning_rate=0.02, heads=request.param)
    training = HeadTraining(build(KIND), request.param, NUM_HEADS, settings)
    samples = [
        Sample(np.array(text, np.int32), len(PROMPT), np.zeros((0, 1)), np.zeros((0, 1)))
        for text in texts
    ]
    known = training.positions(samples)
    before = training.accuracy(known)
    training.run(known)
    after = training.accuracy(known)
    assert min(after) > max(0.25, 2 * max(before)), (before, after)
    path: Path = tmp_path_factory.mktemp(request.param)
    training.save(path, "tiny")
    return path


@pytest.fixture(scope="module")
def target(folder: Path) -> Iterator[TorchTarget]:
    made = target_with(folder)
    yield made
    made.close()


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_heads_draft_what_is_accepted_and_leave_the_text(target, folder, params) -> None:
    name = folder.name.rstrip("0123456789")
    plain = text_of(target_with(None), "ar", params)[0]
    for own in (name, "auto"):
        found, rounds = text_of(target, own, params)
        assert found == plain, own
        if own == name:
            assert sum(done.num_from_model for done in rounds) > 2
            assert len(rounds) < 24


def test_trained_heads_are_right_more_often_than_random_ones(target, folder) -> None:
    rounds = text_of(target, folder.name.rstrip("0123456789"), GREEDY)[1]
    assert sum(done.num_accepted for done in rounds) > len(rounds)


def test_three_requests_draft_with_heads_at_once(target, folder) -> None:
    plain = target_with(None)
    prompts = [tuple(random_text(20 + 7 * i, i)) for i in range(3)]
    alone = [text_of(plain, "ar", WARM, prompt, 12)[0] for prompt in prompts]
    outputs: list[Any] = []
    scheduler = Scheduler(target, num_slots=3)
    name = folder.name.rstrip("0123456789")
    requests = [
        Request(prompt, len(prompt) + 12, sampler=Sampler(WARM, 0, len(prompt)))
        for prompt in prompts
    ]
    scheduler.submit([ScheduledRequest(one, method(name), outputs.append) for one in requests])
    while scheduler.step():
        pass
    scheduler.close()
    assert not [one for one in outputs if isinstance(one, Failed)]
    for request, prompt, wanted in zip(requests, prompts, alone, strict=True):
        assert request.text[len(prompt) :].tolist() == wanted
    assert any(done.num_accepted for request in requests for done in request.rounds)


def test_heads_see_the_state_that_the_text_ends_with(target, folder) -> None:
    """Whichever path of a draft was accepted, and wherever in the cache it lies."""
    text = np.array(PROMPT, np.int32)
    sampler = Sampler(GREEDY, 0, len(PROMPT))
    plan = Likeliest(12, 2, 4)
    expected = text_of(target, "ar", GREEDY)[0]
    branches = Draft.sequences([[1, 2], expected[:2], [3]])
    (scores,) = target.score([Query(0, text, branches, sampler, heads=plan)])
    assert verify(branches, scores).tokens == tuple(expected[:3])
    drafted = scores.proposed().tree
    longer = np.array([*PROMPT, *expected[:2]], np.int32)
    (scores,) = target.score([Query(1, longer, Draft(), sampler, heads=plan)])
    assert verify(Draft(), scores).tokens == (expected[2],)
    plain = scores.proposed().tree
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    assert drafted.parents.tolist() == plain.parents.tolist()
    assert np.allclose(drafted.confidences, plain.confidences, rtol=1e-3)


def test_heads_rest_unless_they_are_asked(target) -> None:
    text = np.array(PROMPT, np.int32)
    (scores,) = target.score([Query(2, text, sampler=Sampler(GREEDY, 0, len(PROMPT)))])
    assert not len(scores.proposed().tree)


def test_heads_of_another_target_are_refused_in_one_line(folder: Path) -> None:
    network = Network(build(KIND, hidden_size=64))
    with pytest.raises(ModelUnreadable, match="no heads for this target") as caught:
        load_heads(folder, network)
    assert "\n" not in str(caught.value)
    network.close()


def test_the_weights_of_heads_are_counted_without_being_read(folder: Path) -> None:
    network = Network(build(KIND))
    heads = load_heads(folder, network)
    is_layer = isinstance(heads, Eagle)  # which is read several times for a tree
    read = num_params(heads.module) if is_layer else heads.num_params
    assert HeadFiles.of(folder).num_params == read > 1000
    network.close()


def test_published_names_and_pickled_tensors_are_read(tmp_path: Path) -> None:
    """As `medusa_lm_head.pt`: a layer is listed by its number in a sequence."""
    weights = {}
    for i in range(2):
        weights[f"{i}.0.linear.weight"] = torch.randn(32, 32)
        weights[f"{i}.0.linear.bias"] = torch.randn(32)
        weights[f"{i}.1.weight"] = torch.randn(NUM_VOCAB, 32)
    torch.save(weights, tmp_path / "medusa_lm_head.pt")
    config = {"medusa_num_heads": 5, "medusa_num_layers": 1}  # more than the file has, as in v1.3
    (tmp_path / "config.json").write_text(json.dumps(config))
    network = Network(build(KIND))
    assert load_heads(tmp_path, network).num_heads == 2
    network.close()


@pytest.mark.parametrize("fault", ["no config", "not JSON", "another kind", "no weights", "code"])
def test_a_damaged_folder_is_refused_in_one_line(tmp_path: Path, fault: str) -> None:
    config = '{"medusa_num_heads": 2}'
    if fault == "not JSON":
        config = "{"
    if fault == "another kind":
        config = '{"hidden_size": 32}'
    if fault != "no config":
        (tmp_path / "config.json").write_text(config)
    if fault == "code":
        torch.save({"0.1.weight": print}, tmp_path / "medusa_lm_head.pt")
    network = Network(build(KIND))
    with pytest.raises(ModelUnreadable) as caught:
        load_heads(tmp_path, network)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    network.close()


def test_eagles_tree_is_that_of_each_path_computed_alone(texts, tmp_path: Path) -> None:
    """Without a cache, or other branches: the target's states, then its own."""
    target = target_with(trained_eagle(texts, tmp_path))
    for text in (texts[1][:50], [*texts[1][:47], 5, 9, 9, 2]):  # the second leaves the first
        query = Query(
            0, np.array(text, np.int32), sampler=Sampler(GREEDY, 0, 40), heads=Likeliest(30, 3, 4)
        )
        (scores,) = target.score([query])
        tree = scores.proposed().tree
        whole = [*text, *verify(query.draft, scores).tokens]
        model, eagle = build(KIND), load_heads(tmp_path, network := Network(build(KIND)))
        assert len(tree) == 30
        with torch.no_grad():
            states = model.model(torch.tensor([whole[:-1]])).last_hidden_state[0]
            for node in range(len(tree)):
                above, own = tree.path_tokens(node)[:-1], states
                tokens = torch.tensor([*whole, *above])
                for _ in range(len(above) + 1):
                    num = len(own)
                    embedded = model.get_input_embeddings()(tokens[1 : num + 1])
                    sees = torch.ones(num, num, dtype=torch.bool).tril()
                    found, _ = eagle.module(own, embedded, torch.arange(num), None, sees)
                    own = torch.cat([own, found[-1:]])
                wanted = torch.softmax(model.lm_head(own[-1]), -1)[tree.tokens[node]]
                assert tree.confidences[node] == pytest.approx(float(wanted), rel=1e-3)
        network.close()
