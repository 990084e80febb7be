"""`duodec embed`: lines in, JSON lines or an array out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes.command_line import Cli
from fakes.disks import full_beyond
from fakes.embedders import LetterEmbedder
from fakes.pooled_models import RANK, write_bert
from fakes.server import MODEL, running, until

from duodec.backends.loaded import normalised
from duodec.cli.commands.serve import additional_models, source_of
from duodec.loading import embedding
from duodec.loading.config import EngineConfig
from duodec.loading.embedding import EmbedderUse

EMBED = ("embed", "-m", "smollm2")
LINES = ["why is the sky blue", "hello", "日本 é"]


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> LetterEmbedder:
    own = LetterEmbedder()
    monkeypatch.setattr(embedding, "load_embedder", lambda *_: (own, EmbedderUse(1000, 1000, 64)))
    return own


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", "utf-8")
    return path


def expected(lines: list[str]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    own = LetterEmbedder()
    return normalised(np.concatenate([own.rows([own.tokens_of(line)]) for line in lines]))


def test_lines_become_json_lines(cli: Cli, embedder: LetterEmbedder, file: Path) -> None:
    for given in ((str(file),), ("-",), ()):
        embedder.is_closed = False
        status, out, err = cli(*EMBED, *given, stdin="\r\n".join(LINES))
        assert status == 0
        records = [json.loads(line) for line in out.splitlines()]
        assert [record["index"] for record in records] == [0, 1, 2]
        found = np.array([record["embedding"] for record in records], np.float32)
        np.testing.assert_array_equal(found, expected(LINES))
        assert f"3 texts, {sum(record['tokens'] for record in records)} tokens" in err
        assert embedder.is_closed
    embedder.is_closed = False
    assert cli(*EMBED, "--quiet", str(file))[2] == ""


def test_many_lines_become_an_array(cli: Cli, embedder: LetterEmbedder, tmp_path: Path) -> None:
    lines = [f"text {i}" for i in range(1000)]
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, part in zip(files, (lines[:600], lines[600:]), strict=True):
        path.write_text("\n".join(part))
    output = tmp_path / "rows.npy"
    assert cli(*EMBED, *map(str, files), "-o", str(output))[0] == 0
    np.testing.assert_array_equal(np.load(output), expected(lines))
    assert max(map(len, embedder.passes)) == embedder.most_texts
    embedder.is_matryoshka, embedder.is_closed = True, False
    assert cli(*EMBED, str(files[0]), "--dimensions", "4", "-o", str(output))[0] == 0
    assert np.load(output).shape == (600, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "standard input is empty"),
        ("a\n\nb\n", "line 2 of standard input is empty"),
        ("a\n  \n", "line 2 of standard input is empty"),
        ("a\n" + "x" * 70, "line 2 of standard input has 72 tokens and the context holds 64"),
    ],
)
def test_bad_lines_are_named(cli: Cli, embedder: LetterEmbedder, text: str, words: str) -> None:
    status, _, err = cli(*EMBED, stdin=text)
    assert (status, words in err) == (2, True), err
    if "tokens" in words:
        assert "--truncate" in err


def test_lines_are_cut_where_that_is_asked_for(cli: Cli, embedder: LetterEmbedder) -> None:
    status, out, _ = cli(*EMBED, "--truncate", stdin="x" * 70)
    assert (status, json.loads(out)["tokens"]) == (0, 64)


def test_bad_options_are_named(
    cli: Cli, embedder: LetterEmbedder, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"a\n\xff\n")
    for arguments, words in (
        (("/nowhere/lines.txt",), "cannot read /nowhere/lines.txt"),
        ((str(tmp_path),), "cannot read"),
        ((str(tmp_path / "binary"),), "line 2 of"),
        ((str(file), "-o", "/nowhere/rows.npy"), "cannot write /nowhere/rows.npy"),
        ((str(file), "--dimensions", "17"), "use 1 to 16"),
        ((str(file), "--dimensions", "4"), "not known to be trained"),
    ):
        embedder.is_closed = False
        status, _, err = cli(*EMBED, *arguments)
        assert (status, words in err) == (2, True), err
        assert err.strip().count("\n") <= 1, "a line, after that on memory"


def test_a_full_disk_leaves_no_half_of_a_file(
    cli: Cli, embedder: LetterEmbedder, tmp_path: Path
) -> None:
    output = tmp_path / "rows.npy"
    output.write_text("before")
    text = "\n".join(f"text {i}" for i in range(4000))
    with full_beyond(10_000):
        status, _, err = cli(*EMBED, "-o", str(output), stdin=text)
    assert (status, "cannot write the output" in err) == (1, True)
    assert output.read_text() == "before"
    assert list(tmp_path.iterdir()) == [output]


def test_models_of_other_uses_are_refused(cli: Cli, tmp_path: Path, file: Path) -> None:
    pytest.importorskip("llama_cpp")
    status, _, err = cli(*EMBED, str(file))
    assert (status, "smollm2 makes no embeddings" in err) == (2, True)
    ranks = write_bert(tmp_path / "rank.gguf", RANK)
    status, _, err = cli("embed", "-m", str(ranks), str(file))
    assert (status, "/v1/rerank" in err) == (2, True)
    for command in (("run", str(ranks), "hello"), ("generate", "-m", str(ranks), "hello")):
        run = subprocess.run(
            [sys.executable, "-m", "duodec", *command], capture_output=True, text=True, check=False
        )
        assert run.returncode == 2
        assert "use `duodec embed` or `duodec serve`" in run.stderr
        assert run.stderr.count("\n") == 1
    run = subprocess.run([sys.executable, "-m", "duodec", "show", str(ranks)], check=False)
    assert run.returncode == 0


def test_ctrl_c_ends_it_with_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    model = write_bert(tmp_path / "model.gguf", num_layers=6)
    lines, output = tmp_path / "lines.txt", tmp_path / "rows.npy"
    lines.write_text("why is the sky blue\n" * 300_000)
    command = ["duodec", "embed", "-m", str(model), str(lines), "-o", str(output), "--quiet"]
    with subprocess.Popen(
        [sys.executable, "-m", *command], stderr=subprocess.PIPE, start_new_session=True, text=True
    ) as run:
        until(lambda: any(tmp_path.glob(".rows.npy*")), 60)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=20)
    assert (run.returncode, err.strip()) == (130, "interrupted")
    assert not list(tmp_path.glob("*rows.npy*"))


def test_a_model_of_embeddings_is_a_source_of_a_server(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    config = EngineConfig(num_slots=4)
    path = write_bert(tmp_path / "model.gguf")
    models = {"smollm2": config, **additional_models([f"embed={path} -c 50"], config, "smollm2")}
    told: list[str] = []
    source = source_of("embed", models, "auto", told.append)
    assert source.fits(0)
    assert not source.fits(1 << 60)
    with running(is_loaded=False, sources={MODEL: source}) as server:
        server.service.start()
        told_rows = server.post("/v1/embeddings", {"input": ["hello", "the sky"]}).json()["data"]
        assert [len(one["embedding"]) for one in told_rows] == [64, 64]
        assert server.post("/v1/embeddings", {"input": "a " * 60}).status_code == 400
        shown = server.post("/api/show", {"model": MODEL}).json()
        assert shown["capabilities"] == ["embedding"]
        assert shown["details"]["family"] == "bert"
    assert "texts of 50 tokens" in told[0]


def test_a_model_must_be_named(cli: Cli, file: Path) -> None:
    status, out, err = cli("embed", str(file))
    assert (status, out) == (2, "")
    assert err == "duodec: no model; name one that makes embeddings with -m MODEL.gguf\n"
