"""The paper's two pairs end to end: safetensors in the hub's cache, and a draft in Q5_K_M.

The models are tiny and random, with the layers, the files and the kind of vocabulary of the real
ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from huggingface_hub import constants

from duodec.cli.app import run
from duodec_lab.bench.paper import DRAFT, PAPERS, llama, vicuna
from duodec_lab.bench.results import Results
from duodec_lab.bench.tasks import TASKS, Prompt

torch = pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers while it saves

NUM_VOCAB = 2048
NUM_TOKENS = 4
REVISION = "0123456789abcdef0123456789abcdef01234567"
CONTROLS = ("<unk>", "<s>", "</s>")
SPACE = "\u2581"  # sentencepiece's
FIRST = Prompt("mt_bench", "1", ("Why?",), None, None)
TEXT = f"{vicuna(FIRST, [], 'Why is the sky blue?')} {llama(FIRST, [], 'Who wrote the answer?')}"
Q5_K_M = 17  # of llama.cpp's file types
QUESTIONS = {
    "mt_bench": ["Why is the sky blue?", "And the sea?"],
    "translation": ["Translate German to English: Der Himmel ist blau."],
    "math_reasoning": ["How many questions are in 4 answers?"],
}


def merges() -> list[tuple[str, str]]:
    """Of the words of a text, from left to right: what sentencepiece's longest pieces allow."""
    found: dict[tuple[str, str], None] = {}
    for word in TEXT.split():
        left = SPACE
        for letter in word:
            found[left, letter] = None
            left += letter
    return list(found)


def vocabulary() -> list[str]:
    """Llama 2's order: controls, bytes, pieces; the last ones are never read."""
    pieces = dict.fromkeys([SPACE, *map(chr, range(33, 127)), *("".join(p) for p in merges())])
    known = [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return [*known, *(f"{SPACE}#{i}#" for i in range(NUM_VOCAB - len(known)))]


def save_tokenizer(folder: Path) -> None:
    """Sentencepiece's pieces in tokenizer.json, as Llama 2 and Vicuna have them."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = {token: number for number, token in enumerate(vocabulary())}
    backend = Tokenizer(
        models.BPE(tokens, merges(), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    backend.decoder = decoders.Sequence([
        decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def save_target(folder: Path, seed: int) -> None:
    """In bfloat16 and several files, as models of 7B are saved."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=NUM_VOCAB, hidden_size=64, intermediate_size=172, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=4096,
        rms_norm_eps=1e-5, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="300KB")
    assert (folder / "model.safetensors.index.json").is_file()


def save_draft(path: Path) -> None:
    """Two layers, as the 68m has, quantised by llama.cpp."""
    import llama_cpp

    width, inner, heads = 256, 768, 4
    plain = path.with_suffix(".f32")
    writer = gguf.GGUFWriter(plain, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(2)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(width // heads)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(vocabulary())
    writer.add_token_scores([-float(number) for number in range(NUM_VOCAB)])
    kinds = {0: gguf.TokenType.UNKNOWN, 1: gguf.TokenType.CONTROL, 2: gguf.TokenType.CONTROL}
    kinds |= dict.fromkeys(range(3, 259), gguf.TokenType.BYTE)
    writer.add_token_types([kinds.get(n, gguf.TokenType.NORMAL) for n in range(NUM_VOCAB)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    dice = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        drawn = dice.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", np.ones_like(drawn) if len(shape) == 1 else drawn)

    for name in ("token_embd", "output"):
        add(name, NUM_VOCAB, width)
    add("output_norm", width)
    for block in ("blk.0", "blk.1"):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"{block}.{norm}", width)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{part}", width, width)
        for part in ("ffn_gate", "ffn_up"):
            add(f"{block}.{part}", inner, width)
        add(f"{block}.ffn_down", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype, how.nthread = Q5_K_M, 1
    assert llama_cpp.llama_model_quantize(bytes(plain), bytes(path), how) == 0
    plain.unlink()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub's cache with both targets, and a folder of prompts with the draft in it."""
    root = tmp_path_factory.mktemp("paper")
    for seed, paper in enumerate(PAPERS.values()):
        repository = paper.target.removeprefix("hf:")
        cached = root / "hub" / f"models--{repository.replace('/', '--')}"
        folder = cached / "snapshots" / REVISION
        folder.mkdir(parents=True)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(REVISION)
        save_tokenizer(folder)
        save_target(folder, seed)
    data = root / "data"
    data.mkdir()
    for task in TASKS[:-1]:
        category = "writing" if task == "mt_bench" else task
        turns = QUESTIONS.get(task, ["Who wrote the answer?"])
        (data / f"{task}.jsonl").write_text(
            json.dumps({"question_id": 1, "category": category, "turns": turns})
        )
    code = {"task_id": "1", "prompt": "def f():\n", "entry_point": "f", "test": "def check(f): ..."}
    (data / "humaneval.jsonl").write_text(json.dumps(code))
    save_draft(data / DRAFT)
    return root


@pytest.fixture
def hub(place: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The network is off, and the cache is that of `place`."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place / "hub"))
    return monkeypatch


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama-2-7b", marks=pytest.mark.soak),
        pytest.param("vicuna-7b", marks=pytest.mark.slow),
    ],
)
def test_the_papers_pair_fills_every_row(name: str, place: Path, tmp_path: Path) -> None:
    chats, store, out = tmp_path / "chats.txt", tmp_path / "store", tmp_path / "out"
    chats.write_text(TEXT * 20)
    target, methods = PAPERS[name].target, PAPERS[name].methods
    assert run(["datastore", "build", "-m", target, "-o", str(store), str(chats)]) == 0
    arguments = ["bench", "--paper", name, "--data", str(place / "data"), "--device", "cpu"]
    arguments += ["--datastore", str(store), "-n", str(NUM_TOKENS), "--context", "1024"]
    assert run([*arguments, "--quiet", "--output", str(out)]) == 0
    results = Results.read(out)
    settings = results.settings
    assert (settings["paper"], settings["targets"]) == (name, [target])
    assert (settings["dtype"], settings["target_backend"]) == ("bfloat16", "torch")
    assert tuple(results.methods) == methods
    num_turns = len(TASKS) + 1  # mt_bench has two
    for method in methods:
        own = [g for g in results.generations if g.method == method]
        assert len(own) == num_turns
        assert {g.task for g in own} == set(TASKS)
        assert not any(g.error for g in own)
        assert all(g.identical for g in own), method
        assert all(g.new_tokens for g in own)
    drafting = {g.method for g in results.generations if g.draft_tokens}
    assert drafting >= {"sps:5", "duo"}  # others where the text repeats what they know
    report = (out / "report.md").read_text()
    for method in methods:
        assert f"| {method} |" in report
    assert "The paper's DuoDecoding: 2.61 at most" in report
    assert "The paper: 83%" in report
    assert (out / "report.html").is_file()


@pytest.mark.parametrize("name", PAPERS)
def test_out_of_reach_of_the_hub_one_line_says_what_is_missing(
    name: str, place: Path, hub: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    hub.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    arguments = ["bench", "--paper", name, "--data", str(place / "data"), "--device", "cpu"]
    assert run([*arguments, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    repository = PAPERS[name].target.removeprefix("hf:")
    assert f"{repository} is not in the cache and the network is off" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
