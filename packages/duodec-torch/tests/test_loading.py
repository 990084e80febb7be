"""Models of transformers as they are loaded: their vocabulary, their place, and what is refused."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.decoding import proven
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import gguf
import huggingface_hub
import tokenizers
import torch
import transformers
from fakes.hub import FakeHub
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from duodec import LLM, Finished, SamplingParams
from duodec.backends.llamacpp.model import LlamaModel
from duodec.chat.prompting import chat_tokens
from duodec.cli.app import run
from duodec.errors import (
    BackendUnavailable,
    BadOption,
    DuodecError,
    ModelNotFound,
    ModelUnreadable,
)
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.machine import busy
from duodec.models import resolve_heads
from duodec.models.downloads.hub import forget
from duodec.models.vocabularies import difference
from duodec_torch.checkpoint import placing
from duodec_torch.checkpoint.blueprint import Blueprint
from duodec_torch.checkpoint.model import TorchModel
from duodec_torch.checkpoint.placing import DevicePlacement, choose_places
from duodec_torch.checkpoint.rope import divisors
from duodec_torch.checkpoint.tokenizer import FolderTokenizer


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[TorchModel]:
    model = TorchModel(Blueprint.of(folder, device="cpu"))
    yield model
    model.close()


def refused(path: Path, **options: Any) -> str:
    """Why a model is not loaded, in one line."""
    with pytest.raises(DuodecError) as caught:
        TorchModel(Blueprint.of(path, **options))
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value), "a remedy"
    return str(caught.value)


# The vocabulary


def test_both_spell_every_token_alike(model: TorchModel, vocabulary: LlamaModel) -> None:
    assert difference(model, vocabulary) is None
    assert difference(vocabulary, model) is None
    assert [model.piece(t) for t in range(model.num_vocab)] == [
        vocabulary.piece(t) for t in range(vocabulary.num_vocab)
    ]


def test_a_vocabulary_by_value_is_the_same_in_another_process(model: TorchModel) -> None:
    assert isinstance(model.vocabulary, FolderTokenizer)
    sent = pickle.loads(pickle.dumps(model.vocabulary.by_value())).load()
    text = "naïve \U0001f600 <|im_end|> 12"
    found = model.tokenize(text, is_templated=False)
    assert sent.tokenize(text, is_templated=False) == found[found[:1] == [model.bos] :]
    assert difference(model, sent) is None
    assert [sent.piece(t) for t in range(sent.num_vocab)] == [
        model.piece(t) for t in range(model.num_vocab)
    ]


def test_both_know_the_same_ends_and_the_files_more(
    model: TorchModel, vocabulary: LlamaModel
) -> None:
    ours = {token for token in range(model.num_vocab) if model.is_end(token)}
    theirs = {token for token in range(vocabulary.num_vocab) if vocabulary.is_end(token)}
    assert ours == theirs | {5}  # of generation_config.json
    assert (model.bos, model.eos) == (vocabulary.bos, vocabulary.eos)
    assert not model.is_end(-1)


def test_both_have_one_chat_template(model: TorchModel, vocabulary: LlamaModel) -> None:
    assert model.chat_template == vocabulary.chat_template


SNIPPETS = (
    "<|im_start|>user\n", "<|im_end|>", "<|endoftext|>", "<|im_start", "def f(x):\n    return x**2",
    "   ", "\n\n\t", "123 4.5e-6", "naïve café", "日本語のテキスト", "👩🏽\u200d🚀", "e\u0301",
    "\u200b", "\ufffd", "don't WON'T", "http://a.b/c?d=e", "\r\n", "\x00", "\ud800",
)  # fmt: skip
texts = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=20), max_size=6).map("".join)


@proven
@given(texts, st.booleans())
def test_both_cut_a_text_alike(
    model: TorchModel, vocabulary: LlamaModel, text: str, is_templated: bool
) -> None:
    ours = model.tokenize(text, is_templated=is_templated)
    assert ours == vocabulary.tokenize(text, is_templated=is_templated)


def test_a_prompt_cannot_spell_control_tokens(model: TorchModel) -> None:
    assert 2 not in model.tokenize("<|im_end|>", is_templated=False)
    assert model.tokenize("<|im_end|>", is_templated=True) == [2]


def test_threads_that_tokenise_at_once_do_not_change_each_others_switch(model: TorchModel) -> None:
    # the switch that reads control tokens belonged to one object that all of them shared
    text = "<|im_end|>" * 50
    plain = model.tokenize(text, is_templated=False)
    assert 2 not in plain

    def tokenise(is_templated: bool) -> bool:
        expected = [2] * 50 if is_templated else plain
        return all(model.tokenize(text, is_templated=is_templated) == expected for _ in range(300))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(tokenise, [True, False, True, False]))


@proven
@given(st.lists(texts, min_size=1, max_size=3))
def test_both_read_forged_turns_alike(
    model: TorchModel, vocabulary: LlamaModel, contents: list[str]
) -> None:
    messages = [{"role": "user", "content": f"a{text}b"} for text in contents]
    ours = chat_tokens(model, messages)
    assert ours == chat_tokens(vocabulary, messages)
    assert ours.count(1) == chat_tokens(model, [{**m, "content": "a"} for m in messages]).count(1)


@pytest.mark.parametrize("lstrip", [False, True])
def test_control_tokens_keep_their_ways_around_a_forged_one(tmp_path: Path, lstrip: bool) -> None:
    found = sentencepiece(tmp_path)
    end = tokenizers.AddedToken("</s>", special=True, lstrip=lstrip, normalized=False)
    found._backend.add_special_tokens([end])
    found = FolderTokenizer(found.tokenizer, 40, frozenset())
    text = "<s>a  </s>ab</s>b"
    spelled = list(found.controls.find(text))
    whole = found.tokenize(text, is_templated=True)
    assert found.tokenize_around(text, spelled) == whole
    assert whole[0] == 1, "no second beginning"
    inside = found.tokenize_around(text, spelled[:2])
    assert inside.count(2) == 1


def test_a_vocabulary_of_another_family_is_refused(model: TorchModel, tmp_path: Path) -> None:
    other = sentencepiece(tmp_path)
    assert (difference(model, other) or "").startswith("the draft has 40 tokens")


def sentencepiece(folder: Path, **config: Any) -> FolderTokenizer:
    """A vocabulary as Llama 2's: bytes, words with their spaces, added tokens, padding."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in (0x0A, 0xE2, 0x82, 0xAC))]
    words += ["▁", "a", "b", "▁a", "▁ab", "ab"]
    vocab = {word: number for number, word in enumerate(words)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    bpe = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    backend = tokenizers.Tokenizer(bpe)
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.add_tokens([
        tokenizers.AddedToken("▁▁", normalized=False),
        tokenizers.AddedToken("<|fim|>", normalized=False),
    ])  # fmt: skip
    saved = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **config
    )
    saved.save_pretrained(folder)
    return FolderTokenizer.open(folder, 40, frozenset())


def test_sentencepieces_spaces_and_bytes(tmp_path: Path) -> None:
    found = sentencepiece(tmp_path)
    tokens = found.tokenize(" ab€\n", is_templated=False)
    assert b"".join(map(found.piece, tokens)) == " ab€\n".encode()
    assert found.token_text(11) == "▁ab".encode()
    assert found.token_text(4) == b"<0xE2>"
    assert found.piece(4) == b"\xe2"
    assert found.token_text(13) == b"  ", "an added token is spelled as it reads"
    assert found.piece(13) == b"  "
    assert found.token_text(39) == b"[PAD39]"
    assert [found.piece(token) for token in (0, 1, 2, 39)] == [b""] * 4


def test_tokens_that_look_like_control_tokens_are_some(tmp_path: Path) -> None:
    found = sentencepiece(tmp_path)
    assert found.piece(14) == b""
    assert 14 not in found.tokenize("<|fim|>", is_templated=False)
    assert found.tokenize("<|fim|>", is_templated=True) == [14]


@pytest.mark.parametrize(
    ("template", "found"),
    [("one", "one"), ({"default": "d", "tools": "t"}, "d"), ({"tools": "t"}, None), (None, None)],
)
def test_of_several_chat_templates_the_default_is_taken(
    tmp_path: Path, template: Any, found: str | None
) -> None:
    assert sentencepiece(tmp_path, chat_template=template).chat_template == found


# Facts and places


def test_a_folder_is_computed_in_its_own_numbers_on_the_cpu(model: TorchModel) -> None:
    assert model.place == DevicePlacement(("cpu",), torch.bfloat16)
    assert model.causal_lm.dtype == torch.bfloat16
    assert (model.num_layers, model.num_context_train) == (2, 4096)
    assert model.num_params == sum(p.numel() for p in model.causal_lm.parameters())
    assert model.num_bytes == 2 * model.num_params
    assert model.cache_bytes_per_token == 2 * 2 * 32 * 2
    assert model.description == f"llama {model.num_params / 1e6:.0f}M bfloat16"


def test_another_dtype_can_be_asked_for(folder: Path) -> None:
    model = TorchModel(Blueprint.of(folder, dtype="float32", device="cpu"))
    assert {p.dtype for p in model.causal_lm.parameters()} == {torch.float32}
    model.close()
    model.close()


def place_of(*asked: Any) -> DevicePlacement:
    """The first place that is tried."""
    return choose_places(*asked)[0]


def test_a_gpu_that_is_not_there_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable, match=r"no device cuda: .*; fix that, or use `device"):
        choose_places("cuda", "auto", None)
    assert place_of("auto", "auto", None) == DevicePlacement(("cpu",), torch.float32)
    assert place_of("auto", "auto", torch.float16) == DevicePlacement(("cpu",), torch.float16)


@pytest.fixture
def fake_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, as far as questions about them go."""
    answers = {
        "is_available": True, "device_count": 2, "get_device_capability": (9, 0),
        "mem_get_info": (3 * 10**9, 8 * 10**9), "get_device_name": "Toy",
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


@pytest.mark.usefixtures("fake_gpus")
def test_a_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of("auto", "auto", torch.float32)
    assert place == DevicePlacement(("cuda:0",), torch.bfloat16)
    assert (place.words, place.free_bytes) == ("cuda:0 (Toy)", (3 * 10**9,))
    assert place_of("cpu", "auto", torch.float32) == DevicePlacement(("cpu",), torch.float32)
    assert place_of("cuda:0", "float16", None) == DevicePlacement(("cuda:0",), torch.float16)
    with pytest.raises(BackendUnavailable, match="no device cuda:2: this machine shows 2"):
        choose_places("cuda:2", "auto", None)
    assert "cuda:0 Toy, 3.00 GB of 8.00 GB free" in str(placing.gpu_words())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert place_of("cuda", "auto", None).dtype == torch.float16


@pytest.mark.usefixtures("fake_gpus")
def test_one_gpu_is_tried_before_two_and_a_list_is_obeyed() -> None:
    for device in ("auto", "cuda"):
        tried = [place.devices for place in choose_places(device, "auto", None)]
        assert tried == [("cuda:0",), ("cuda:1",), ("cuda:0", "cuda:1")]
    (both,) = choose_places("cuda:1,cuda:0", "auto", None)
    assert both.devices == ("cuda:1", "cuda:0")
    assert both.words == "cuda:1 (Toy) and cuda:0 (Toy)"
    with pytest.raises(BadOption, match="names a GPU twice"):
        choose_places("cuda:0,cuda:0", "auto", None)
    with pytest.raises(BackendUnavailable, match="no device cuda:4"):
        choose_places("cuda:0,cuda:4", "auto", None)


def test_too_little_memory_is_told_before_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DevicePlacement, "free_bytes", property(lambda place: (4 * 10**6,)))
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda **_: 1 / 0)
    words = refused(folder, device="cpu", num_context=500, num_slots=2)
    assert "500 tokens of context in each of 2 slots" in words
    assert "the CPU has 4.0 MB free; take a smaller model" in words


@pytest.mark.parametrize(
    "fault",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate\n2 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"),
        MemoryError(),
    ],
)
def test_memory_that_runs_out_while_loading_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(**_: Any) -> None:
        raise fault

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fail)
    assert refused(folder, device="cpu").startswith("out of memory: ")


# What is refused


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(folder, tmp_path / "broken"))


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mystery", "auto_map": {"AutoConfig": "c.C"}}, "runs code of its own"),
        ({"model_type": "mystery"}, "has the architecture 'mystery', which transformers"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "is not a language model"),
        ({"model_type": "t5", "architectures": ["T5Model"]}, "is not a language model (T5Model)"),
        ({"quantization_config": {"quant_method": "awq"}}, "is quantised (awq)"),
        ({"num_attention_heads": 3, "head_dim": None}, "; "),
        ({"hidden_size": 32, "head_dim": 32}, "cannot be loaded by transformers"),
        ({"num_hidden_layers": 3}, "lacks 9 weights, such as model.layers.2"),
    ],
)
def test_what_a_configuration_asks_for_in_vain(
    broken: Path, changes: dict[str, Any], words: str
) -> None:
    configure(broken, **changes)
    assert words in refused(broken, device="cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mystery", "auto_map": {"AutoConfig": "c.C"}}, "runs code of its own"),
        ({"model_type": "bloom", "n_head": 2}, "has an attention of its own"),
        ({"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ({"sliding_window": 64}, "tells its attention none"),
        ({"intermediate_size": 5 * 10**9}, "take a smaller model"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "use `fast=True`"),
    ],
)
def test_of_a_hub_no_weights_are_fetched_that_cannot_be_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, words: str
) -> None:
    fake = FakeHub(tmp_path / "snapshots" / "c0ffee", ["config.json", "model.safetensors"])
    fake.snapshot.mkdir(parents=True)
    shutil.copy(folder / "config.json", fake.snapshot)
    configure(fake.snapshot, architectures=None, **changes)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    with pytest.raises(DuodecError, match=words) as caught:
        load(EngineConfig(target="hf:o/r", draft=None, device="cpu", dtype="float32"))
    assert "\n" not in str(caught.value)
    assert fake.downloaded == []


def test_code_that_comes_with_a_model_is_never_run(broken: Path) -> None:
    ran = broken / "ran"
    (broken / "c.py").write_text(f"open({str(ran)!r}, 'w')\nclass C: pass\n")
    names = {"AutoConfig": "c.C", "AutoModelForCausalLM": "c.C", "AutoTokenizer": ["c.C", "c.C"]}
    configure(broken, model_type="mystery", auto_map=names)
    refused(broken, device="cpu")
    configure(broken, model_type="llama")  # known by itself: its own code is not needed
    TorchModel(Blueprint.of(broken, device="cpu")).close()
    assert not ran.exists()


@pytest.mark.parametrize("content", [b"", b"{", b'{"model": {}}'])
def test_a_broken_tokenizer_is_one_line(broken: Path, content: bytes) -> None:
    (broken / "tokenizer.json").write_bytes(content)
    assert "has no tokenizer" in refused(broken, device="cpu")


# GGUF files


def tiny_gguf(path: Path, freqs: Any = None, **metadata: Any) -> Path:
    """A llama of one layer with a byte-level vocabulary of 260."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    for name, value in {"block_count": 1, "context_length": 512, "embedding_length": 32,
                        "feed_forward_length": 32, "attention.head_count": 1,
                        "rope.dimension_count": 32, "vocab_size": 260}.items():  # fmt: skip
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 500000.0)
    for name, value in metadata.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"llama.rope.scaling.{name}", value)
    words = ["<s>", "</s>", "<pad>", *pre_tokenizers.ByteLevel.alphabet(), "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(sorted(words[:3]) + sorted(words[3:]))
    writer.add_token_types([3] * 3 + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (260, 32), "output_norm": (32,), "output": (260, 32),
              "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}  # fmt: skip
    shapes |= {f"blk.0.{n}": (32, 32) for n in ("attn_q", "attn_k", "attn_v", "attn_output",
                                                "ffn_gate", "ffn_up", "ffn_down")}  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    if freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(freqs, dtype=np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file,
                  writer.write_tensors_to_file):  # fmt: skip
        write()
    writer.close()
    return path


def test_a_gguf_file_is_dequantised_and_keeps_its_own_vocabulary(tmp_path: Path) -> None:
    model = TorchModel(Blueprint.of(tiny_gguf(tmp_path / "m.gguf"), device="cpu", num_context=100))
    assert model.place == DevicePlacement(("cpu",), torch.float32)
    assert isinstance(model.vocabulary, LlamaModel)
    assert model.num_vocab == 260
    assert model.causal_lm.config.rope_parameters["rope_type"] == "default"
    tokens = model.tokenize("hé", is_templated=True)
    assert b"".join(map(model.piece, tokens)) == "hé".encode()
    model.close()
    model.close()


def test_llama_31s_rope_is_found_in_a_gguf_file(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", divisors(500000.0, 32, 8.0).numpy())
    model = TorchModel(Blueprint.of(path, device="cpu"))
    config = model.causal_lm.config
    assert config.rope_parameters["rope_type"] == "llama3"
    assert config.rope_parameters["factor"] == 8.0
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    plain = 500000.0 ** -(torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    expected = plain / divisors(500000.0, 32, 8.0).double()
    torch.testing.assert_close(scaled.double(), expected, rtol=1e-5, atol=0)
    model.close()


@pytest.mark.parametrize(
    ("freqs", "metadata", "words"),
    [
        (np.linspace(1, 8, 16), {}, "divisors that are not Llama 3.1's"),
        (None, {"type": "yarn", "factor": 4.0}, "scales its rope (yarn)"),
    ],
)
def test_a_rope_that_would_be_wrong_is_refused(
    tmp_path: Path, freqs: Any, metadata: dict[str, Any], words: str
) -> None:
    assert words in refused(tiny_gguf(tmp_path / "m.gguf", freqs, **metadata), device="cpu")


def test_a_linear_rope_is_taken_over(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", type="linear", factor=2.0)
    model = TorchModel(Blueprint.of(path, device="cpu"))
    found = model.causal_lm.config.rope_parameters
    assert (found["rope_type"], found["factor"], found["rope_theta"]) == ("linear", 2.0, 500000.0)
    model.close()


def test_a_truncated_gguf_file_is_one_line(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ModelUnreadable):
        TorchModel(Blueprint.of(path, device="cpu"))


# The whole


def answer(engine: LLM, method: str, **sampling: float) -> Finished:
    prompt = engine.tokens_of("The sky is")
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    *_, last = engine.stream(prompt, replace(params, max_tokens=24), method=method)
    assert isinstance(last, Finished)
    return last


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LLM]:
    config = EngineConfig(
        target=str(folder), draft="smollm2-draft", dtype="fp32", device="cpu", context=512
    )
    with load(config) as engine:
        yield engine


def test_the_text_is_that_of_transformers_generate(engine: LLM, folder: Path) -> None:
    found = answer(engine, "ar").tokens
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([engine.tokens_of("The sky is")])
    whole = plain.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
    assert list(found) == whole[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("method", ["duo", "sps", "stream", "lookup"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_gguf_draft_in_its_process_changes_no_text(
    engine: LLM, method: str, temperature: float
) -> None:
    sampling = {"temperature": temperature, "seed": 7}
    assert answer(engine, method, **sampling).tokens == answer(engine, "ar", **sampling).tokens


# Heads of its own


def test_heads_are_fetched_from_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeHub(tmp_path, ["README.md", "config.json", "medusa_lm_head.pt"])
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
    assert resolve_heads("hf:o/heads") == tmp_path
    assert fake.downloaded == ["config.json", "medusa_lm_head.pt"]
    fake.files = ["config.json", "adapter.safetensors"]
    forget()
    with pytest.raises(ModelNotFound, match="o/heads holds no heads"):
        resolve_heads("hf:o/heads")
    with pytest.raises(ModelNotFound, match="no heads 'no/such/folder/'"):
        resolve_heads("no/such/folder/")


def test_heads_are_loaded_by_their_option(folder: Path, tmp_path: Path) -> None:
    num_vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(1)
    weights = {
        "0.0.linear.weight": torch.randn(64, 64),
        "0.0.linear.bias": torch.randn(64),
        "0.1.weight": torch.randn(num_vocab, 64),
    }
    torch.save(weights, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 1}')
    config = EngineConfig(
        target=str(folder), heads=str(tmp_path), draft=None, device="cpu", context=256
    )
    with load(config) as engine:
        assert engine.loaded.target.traits.heads == "medusa"
        assert 0 < engine.loaded.target.traits.heads_share < 2
        found = answer(engine, "medusa")
        assert sum(done.num_drafted for done in found.stats.rounds) > 100
        assert found.tokens == answer(engine, "ar").tokens
        with pytest.raises(BadOption, match="needs hydra heads of the target, which has medusa"):
            engine.method("hydra")


def test_llama_cpp_has_no_heads_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="a folder, which only targets on torch read"):
        load(EngineConfig(target="smollm2-draft", heads=str(tmp_path), draft=None))


def test_doctor_looks_at_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "NOTABLE", math.inf)  # other tests run meanwhile
    arguments = ["doctor", "--json", "--target", str(folder), "--draft", "smollm2-draft"]
    assert run([*arguments, "--device", "cpu", "--context", "256", "-t", "1"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["computed by"]["words"] == "torch on the CPU, in bfloat16"
    assert "all equal" in checks["vocabularies"]["words"]
    assert f"torch {version('torch')}" in checks["torch"]["words"]
    assert checks["plain decoding"]["verdict"] == "ok"
