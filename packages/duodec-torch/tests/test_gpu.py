"""What only a GPU can show: captured graphs, compiled kernels, the bits of cuBLAS, draws there."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import torch
from fakes.torch_models import LARGE, NUM_VOCAB, build, logits, query_of, random_text, random_tree

from duodec.core.draft import ROOT, Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query
from duodec_torch.forward.graphs import Queue
from duodec_torch.forward.network import Network
from duodec_torch.forward.spreading import blocks
from duodec_torch.sampling.draws import draw
from duodec_torch.sampling.summaries import Drawers, drawers
from duodec_torch.target import TorchTarget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]


def target_on_gpu(**options: object) -> tuple[TorchTarget, list[str]]:
    warnings: list[str] = []
    model = build("llama", hidden_size=256, intermediate_size=512).to("cuda", torch.bfloat16)
    settings = {"num_context": 1200, "on_warning": warnings.append, **options}
    return TorchTarget(Network(model, warnings.append), **settings), warnings


def test_graphs_and_kernels_are_used() -> None:
    target, warnings = target_on_gpu()
    assert warnings == []
    assert target._forwards._graphs._graphs


@pytest.mark.parametrize("length", [30, 334, 1000])
def test_a_row_has_the_bits_of_plain_decoding(length: int) -> None:
    target, _ = target_on_gpu()
    rng, text = np.random.default_rng(length), random_text(length)
    draft = random_tree(rng, 20, 6)
    (rows,) = logits(target, query_of(text, draft, num_prompt=length - 1))
    for node in {ROOT, *rng.integers(len(draft), size=6).tolist()}:
        branch = [*text, *draft.path_tokens(node)]
        for end in range(length, len(branch) + 1):
            (alone,) = logits(target, query_of(branch[:end], num_prompt=length - 1))
        assert torch.equal(alone[0], rows[node + 1])


@pytest.mark.parametrize("is_exact", [True, False])
def test_graphs_compute_what_single_launches_do(is_exact: bool) -> None:
    captured, _ = target_on_gpu(is_width_exact=is_exact)
    eager, _ = target_on_gpu(is_width_exact=is_exact)
    eager._forwards._graphs._can_capture = False
    rng = np.random.default_rng(0)
    text = random_text(300)
    for num_paths in (0, 1, 7, 30, 3, 0):  # replayed in another order than captured
        draft = random_tree(rng, num_paths, 5)
        query = query_of(text, draft, num_prompt=299)
        assert torch.equal(logits(captured, query)[0], logits(eager, query)[0])
        text = [*text, *draft.path_tokens(len(draft) - 1), 7]


@pytest.mark.parametrize("is_exact", [True, False])
def test_one_graph_serves_all_slots(is_exact: bool) -> None:
    captured, _ = target_on_gpu(is_width_exact=is_exact, num_slots=3)
    eager, _ = target_on_gpu(is_width_exact=is_exact, num_slots=3)
    eager._forwards._graphs._can_capture = False
    num_graphs = len(captured._forwards._graphs._graphs)
    rng = np.random.default_rng(0)
    for slots in ((0, 1), (2, 0), (1,), (0, 1, 2)):
        queries = [
            query_of(random_text(100 * slot + 90), random_tree(rng, 4, 2), num_prompt=80, slot=slot)
            for slot in slots
        ]
        for ours, theirs in zip(logits(captured, *queries), logits(eager, *queries), strict=True):
            assert torch.equal(ours, theirs)
    if is_exact:
        assert len(captured._forwards._graphs._graphs) == num_graphs, "none was captured later"


@pytest.mark.parametrize("sampling", LARGE, ids=range(len(LARGE)))
def test_draws_are_numpys(sampling: object) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(-2, 2.2, (5, 151_936)).astype(np.float32)
    rows[:, :40] += rng.exponential(5, (5, 40)).astype(np.float32)
    rows[1:] = rows[1:].astype(np.float16)
    sampler = Sampler(sampling)  # type: ignore[arg-type]
    query = Query(0, np.array([5, 9], dtype=np.int32), Draft.chain([5, 6, 5, 7]), sampler)
    queue, warnings = Queue(torch.device("cuda")), list[str]()
    with queue.scope():
        logits = torch.as_tensor(rows).cuda()
        ways = (Drawers(), drawers(torch.device("cuda"), rows.shape[1], warnings.append))
        answers = [draw(logits, [query], queue.to_host, way) for way in ways]
    assert warnings == []
    for found in answers:
        for row in range(5):
            wanted = sampler.draw(rows[row].copy(), query.context(row))
            assert (found.tokens[row], found.margins[row]) == (wanted.token, wanted.margin)


def test_half_precision_is_close_to_the_models_own() -> None:
    target, _ = target_on_gpu()
    model = build("llama", hidden_size=256, intermediate_size=512).to("cuda", torch.bfloat16)
    text = random_text(900)
    with torch.inference_mode():
        own = model(torch.tensor([text], device="cuda")).logits[0, -1].float()
    (rows,) = logits(target, query_of(text, num_prompt=850))
    assert rows.shape == (1, NUM_VOCAB)
    assert (rows[0] - own).abs().max() < 0.1 * own.std()


def test_nothing_is_compiled_after_the_start() -> None:
    """Neither for several slots, nor for other texts or draws: a target must not stop in the
    middle."""
    from duodec_torch.forward import kernels, layer_kernels
    from duodec_torch.sampling import summary_kernel

    target, _ = target_on_gpu(num_slots=2)

    def binaries() -> int:
        launched = (
            kernels._split_kernel,
            kernels._tail_kernel,
            layer_kernels._norm_kernel,
            layer_kernels._place_kernel,
            layer_kernels._gate_kernel,
            summary_kernel._part_kernel,
            summary_kernel._merge_kernel,
        )
        caches = [kernel.device_caches for kernel in launched]
        return sum(len(cache[0]) for by_device in caches for cache in by_device.values())

    num_binaries = binaries()
    assert num_binaries >= 7
    rng = np.random.default_rng(0)
    for lengths in ((30,), (600,), (30, 900), (1, 1100)):
        queries = [
            Query(
                slot,
                np.array(random_text(n), dtype=np.int32),
                random_tree(rng, 5, 5),
                Sampler(SamplingParams(0.8), num_prompt_tokens=max(1, n - 1)),
            )
            for slot, n in enumerate(lengths)
        ]
        target.score(queries)
    assert binaries() == num_binaries


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two NVIDIA GPUs")
@pytest.mark.parametrize("is_exact", [True, False])
def test_a_model_over_two_gpus_scores_as_on_one(is_exact: bool) -> None:
    alone, _ = target_on_gpu(is_width_exact=is_exact)
    model = build("llama", hidden_size=256, intermediate_size=512).to(torch.bfloat16)
    for number, block in enumerate(blocks(model)):
        for name in block.names:
            model.get_submodule(name).to(f"cuda:{number // 2}")
    warnings: list[str] = []
    spread = TorchTarget(
        Network(model), num_context=1200, is_width_exact=is_exact, on_warning=warnings.append
    )
    assert ["spread over 2 GPUs" in line for line in warnings] == [True]
    rng, text = np.random.default_rng(0), random_text(300)
    for num_paths in (0, 7, 30, 0):
        draft = random_tree(rng, num_paths, 5)
        query = query_of(text, draft, num_prompt=299)
        assert torch.equal(logits(alone, query)[0].cpu(), logits(spread, query)[0].cpu())
        text = [*text, *draft.path_tokens(len(draft) - 1), 7]
