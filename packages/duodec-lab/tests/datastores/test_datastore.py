"""Datastores: searched as the plain way finds, built whole or not at all, refused in one line."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from fakes.decoding import proven
from hypothesis import given
from hypothesis import strategies as st

from duodec.cli import app
from duodec.core.special_tokens import NO_TOKENS
from duodec.datastores import default_path, fingerprint, open_for
from duodec.drafting.datastore import Datastore
from duodec.drafting.datastore_file import decode, encode, file_parts
from duodec.errors import BackendUnavailable, BadOption, DatastoreUnreadable, DuodecError
from duodec_lab import datastores
from duodec_lab.datastores import Built, Stage, building

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
NARROW, WIDE = 300, 70_000  # sizes of vocabularies whose tokens are stored in 2 and in 3 bytes


@dataclass(frozen=True)
class Characters:
    """A vocabulary of characters below 256, its tokens at the end of the numbers; a text that
    does not begin with "^" gets one, as of a model with a beginning token."""

    controls = NO_TOKENS

    num_vocab: int = WIDE
    chat_template: str | None = TEMPLATE
    eos: int = -1
    alphabet: str = "".join(map(chr, range(256)))

    @property
    def bos(self) -> int:
        return self._token("^")

    def _token(self, character: str) -> int:
        return self.num_vocab - 1 - self.alphabet.index(character)

    def token_text(self, token: int) -> bytes:
        return self.piece(token)

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        is_begun = is_templated and text.startswith("^")
        return [self._token(character) for character in ("" if is_begun else "^") + text]

    def piece(self, token: int) -> bytes:
        place = self.num_vocab - 1 - token
        return self.alphabet[place].encode() if place < len(self.alphabet) else b""

    def is_end(self, token: int) -> bool:
        return False


def texts_of(store: Datastore, tokenizer: Characters) -> list[str]:
    """The documents of a store, without the beginning token."""
    kept = store._data[store._tokens_at :][: store.header.num_positions * store.header.token_width]
    pieces = ["|" if token == store.num_vocab else tokenizer.piece(int(token)).decode()
              for token in decode(bytes(kept), store.header.token_width)]  # fmt: skip
    return "".join(pieces).replace("^", "").split("|")[:-1]


# Searching


def found_by_scanning(
    documents: Sequence[Sequence[int]],
    text: Sequence[int],
    *,
    max_span: int,
    min_span: int,
    length: int,
    limit: int,
) -> list[list[int]]:
    """What `Datastore.continuations` promises, read off the documents."""
    for n in range(min(max_span, len(text)), min_span - 1, -1):
        suffix = list(text[-n:])
        rest = [
            list(d[i + n :]) for d in documents for i in range(len(d)) if d[i : i + n] == suffix
        ]
        if rest:
            rest.sort(key=lambda tokens: [*tokens, 1 << 30])  # an end after every token
            count = min(len(rest), limit)
            chosen = [rest[i * len(rest) // count] for i in range(count)]
            return [(tokens[:length] + [-1] * length)[:length] for tokens in chosen]
    return []


tokens = st.lists(st.integers(0, 2), max_size=12)


@proven
@given(
    documents=st.lists(tokens, max_size=6),
    text=tokens,
    num_vocab=st.sampled_from([3, 65_535, 65_536, WIDE]),
    max_span=st.sampled_from([1, 3, 16]),
    min_span=st.integers(1, 3),
    length=st.sampled_from([1, 3, 10, 40]),
    limit=st.sampled_from([1, 2, 3, 5000]),
)
def test_the_longest_known_suffix_is_found_with_all_that_followed(
    documents: list[list[int]], text: list[int], num_vocab: int, **options: int
) -> None:
    shift = num_vocab - 3  # the last tokens: all of their bytes are in use
    documents = [[token + shift for token in document] for document in documents]
    text = [token + shift for token in text]
    store = Datastore.of(documents, num_vocab)
    found = store.continuations(np.array(text, dtype=np.int32), **options)
    assert found.dtype == np.int32
    assert found.shape[1] == options["length"]
    assert found.tolist() == found_by_scanning(documents, text, **options)


def test_of_many_occurrences_some_are_taken_from_the_whole_range() -> None:
    store = Datastore.of([[1, 2, 3 + i] for i in range(100)], 200)
    found = store.continuations(np.array([1, 2], dtype=np.int32), limit=4, length=1)
    assert found.tolist() == [[3], [28], [53], [78]]


def test_a_match_does_not_cross_the_end_of_a_document() -> None:
    store = Datastore.of([[1, 2], [3, 4]], 10)
    assert store.continuations(np.array([2, 3], dtype=np.int32)).shape == (0, 10)
    for length in (1, 10, 10_000):
        found = store.continuations(np.array([1, 2], dtype=np.int32), length=length)
        assert found.tolist() == [[-1] * length]


# Building


def build(
    path: Path, *files: Path, num_vocab: int = WIDE, **options: Callable[..., object]
) -> Built:
    tokenizer = Characters(num_vocab)
    return datastores.build(files, tokenizer, path, **options)  # type: ignore[arg-type]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path / "notes.txt", "to be, or not to be, that is\nthe question: tobe or b")


@pytest.fixture
def store(tmp_path: Path, text: Path) -> Path:
    build(tmp_path / "s.duods", text)
    return tmp_path / "s.duods"


@proven
@given(
    documents=st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=5),
    num_vocab=st.sampled_from([4, 260, WIDE]),
    scale=st.sampled_from([1, 64]),
)
def test_sorting_bytes_sorts_tokens(documents: list[list[int]], num_vocab: int, scale: int) -> None:
    # tokens whose bytes are alike, and alike across the borders of tokens: 0, 64, 128, 0x0101
    texts = [[token * scale % num_vocab for token in document] for document in documents]
    plain = Datastore.of(texts, num_vocab)
    width = plain.header.token_width
    encoded = b"".join(encode([*text, num_vocab], width) for text in texts)
    positions = building._sorted_positions(bytearray(encoded), width, building._divsufsort())
    head, *rest = file_parts(plain.header, encoded, positions)
    assert b"".join([head, *rest]) == plain._data


@pytest.mark.parametrize("num_vocab", [NARROW, WIDE])
def test_a_built_file_answers_as_the_plain_one(tmp_path: Path, num_vocab: int) -> None:
    tokenizer = Characters(num_vocab)
    words = ["to be or not to be\n" * 9, "b", "", "or not to be, that is", "to be"]
    files = [write(tmp_path / f"{i}.txt", text) for i, text in enumerate(words)]
    built = build(tmp_path / "s.duods", *files, num_vocab=num_vocab, today=lambda: date(2026, 1, 2))
    kept = [tokenizer.tokenize(text, is_templated=False) for text in words if text]
    opened, plain = Datastore.open(tmp_path / "s.duods"), Datastore.of(kept, num_vocab)
    for end in range(1, len(kept[0])):
        text = np.array(kept[0][:end], dtype=np.int32)
        for limit in (3, 5000):
            found = opened.continuations(text, min_span=1, limit=limit)
            assert np.array_equal(found, plain.continuations(text, min_span=1, limit=limit))
    assert opened.header == built.header
    assert (opened.num_tokens, opened.num_vocab) == (plain.num_tokens, num_vocab)
    assert opened.vocabulary == fingerprint(tokenizer)
    assert (built.header.num_documents, built.header.num_files) == (4, 5)
    assert built.header.num_bytes == sum(map(len, words))
    assert built.header.built == "2026-01-02"
    assert built.num_bytes == (tmp_path / "s.duods").stat().st_size


def test_a_long_file_is_one_document(tmp_path: Path) -> None:
    content = "".join(f"line {i}\n" for i in range(30_000)) + "x" * 200_000
    build(tmp_path / "s.duods", write(tmp_path / "long.md", content))
    store = Datastore.open(tmp_path / "s.duods")
    assert texts_of(store, Characters()) == [content]
    assert store.num_tokens == len(content) + 1, "one beginning token, none at the seams"


def test_a_beginning_token_that_a_long_chat_spells_out_is_kept(tmp_path: Path) -> None:
    tokenizer = Characters(chat_template="{% for m in messages %}^{{ m.content }}\n{% endfor %}")
    line = json.dumps({"turns": ["x" * 70_000] * 3})
    built = datastores.build([write(tmp_path / "a.jsonl", line)], tokenizer, tmp_path / "s.duods")
    assert built.header.num_tokens == 3 * 70_002


CHATS = {
    '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]}': (
        "u:a\na:\n"
    ),
    '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {}]}]}': "u:a\n\n",
    '{"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "h"},'
    ' {"from": "gpt", "value": "g"}]}': "s:s\nu:h\na:g\n",
    '{"question_id": 1, "turns": ["one", "two"]}': "u:one\nu:two\n",
    '{"text": "plain"}': "plain",
    '{"content": "plain"}': "plain",
    '"plain"': "plain",
    '{"unknown": 1}': '{"unknown": 1}',
}


@pytest.mark.parametrize("line", CHATS)
def test_lines_and_items_of_the_known_shapes(tmp_path: Path, line: str) -> None:
    lines = write(tmp_path / "a.jsonl", f'\n{line}\n{{"text": "z"}}\n')
    array = write(tmp_path / "b.json", f'[{line}, {{"text": "z"}}]')
    single = write(tmp_path / "c.json", line)
    build(tmp_path / "s.duods", lines, array, single)
    found = texts_of(Datastore.open(tmp_path / "s.duods"), Characters())
    assert [words.removesuffix("\n") for words in found] == [
        words.removesuffix("\n") for words in [CHATS[line], "z", CHATS[line], "z", CHATS[line]]
    ]


def test_chats_without_a_template_are_their_contents(tmp_path: Path) -> None:
    line = '{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}'
    chats = write(tmp_path / "a.jsonl", f'{line}\n{{"messages": []}}\n')
    for template, num_refused in ((None, 0), ("{{ raise_exception('no') }}", 1)):
        tokenizer = replace(Characters(), chat_template=template)
        built = datastores.build([chats], tokenizer, tmp_path / "s.duods")
        assert texts_of(Datastore.open(tmp_path / "s.duods"), tokenizer)[0] == "a\nb"
        assert built.num_plain_chats == num_refused


def test_json_that_is_no_list_of_texts_is_text(tmp_path: Path) -> None:
    for number, content in enumerate(('{"name": "x",\n "n": 1}', "{ // no JSON\n}", "[" * 10**5)):
        build(tmp_path / "s.duods", write(tmp_path / f"{number}.json", content))
        assert texts_of(Datastore.open(tmp_path / "s.duods"), Characters()) == [content]


def test_a_folder_is_walked_for_its_texts(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder / "b.py", "b\r\n")
    write(folder / "deep" / "a.md", b"\xef\xbb\xbfa")
    write(folder / "deep" / "empty.txt", "")
    write(folder / ".git" / "config", "hidden")
    write(folder / ".hidden", "hidden")
    write(folder / "binary", b"a\0b")
    write(folder / "latin", b"text at first, then \xe9")
    write(folder / "late", b"text for long, then\n" * 10_000 + b"\xe9")
    write(folder / "late.jsonl", b'{"text": "text for long"}\n' * 1000 + b"\xe9")
    (folder / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(folder / "fifo")
    built = build(tmp_path / "s.duods", folder, folder / "deep" / ".." / "b.py")
    assert texts_of(Datastore.open(tmp_path / "s.duods"), Characters()) == ["b\n", "a"]
    assert (built.header.num_files, built.num_skipped) == (3, 8)
    assert built.header.num_documents == 2


def test_progress_counts_the_bytes_of_all_files(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.txt", "\xe9" * 100) for i in range(2)]
    told: list[tuple[Stage, int, int]] = []
    build(tmp_path / "s.duods", *files, on_progress=lambda *step: told.append(step))
    assert list(dict.fromkeys(stage for stage, *_ in told)) == ["reading", "sorting", "writing"]
    assert told[:2] == [("reading", 100, 400), ("reading", 300, 400)]
    assert all(0 <= done <= total for _, done, total in told)


# What cannot be built


def refused(kind: type[DuodecError], path: Path, *files: Path, **options: object) -> str:
    before = sorted(path.parent.iterdir())
    with pytest.raises(kind) as caught:
        build(path, *files, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert sorted(path.parent.iterdir()) == before
    return str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    place = tmp_path / "s.duods"
    assert "No such file" in refused(BadOption, place, tmp_path / "missing.txt")
    assert "File name too long" in refused(BadOption, place, tmp_path / ("x" * 300))
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in refused(BadOption, place, tmp_path / "fifo")
    for content in (b"\x7fELF\0", b"caf\xe9"):
        binary = write(tmp_path / "binary", content)
        assert f"{binary} is not UTF-8 text" in refused(BadOption, place, binary)
    empty = write(tmp_path / "empty.txt", "")
    assert "no text in" in refused(BadOption, place, empty)
    (tmp_path / "folder").mkdir()
    assert "no text in" in refused(BadOption, place, *[tmp_path / "folder"] * 5)
    broken = write(tmp_path / "a.jsonl", '{"text": "good"}\n\n{"text": \n')
    assert f"{broken}, line 3: broken JSON" in refused(BadOption, place, broken)


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path, text: Path) -> None:
    def never(*_: object) -> None:
        pytest.fail("nothing was to be read")

    message = refused(BadOption, text, text, on_progress=never)
    assert "exists and is not a datastore" in message
    assert "--output" in refused(BadOption, tmp_path, text, on_progress=never)
    with pytest.raises(BadOption, match=r"cannot write .*--output"):
        build(text / "s.duods", text, on_progress=never)


def test_a_disk_without_room_is_refused(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert "0 MB free and the datastore needs" in refused(BadOption, tmp_path / "s.duods", text)


@pytest.mark.parametrize("stage", ["reading", "sorting", "writing"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_what_stops_a_build_leaves_the_old_datastore_and_nothing_else(
    store: Path, text: Path, stage: Stage, error: BaseException
) -> None:
    before, files = store.read_bytes(), sorted(store.parent.iterdir())
    write(text, "something else")

    def stop(reached: Stage, done: int, total: int) -> None:
        if reached == stage:
            raise error

    with pytest.raises(type(error)):
        build(store, text, on_progress=stop)
    assert store.read_bytes() == before
    assert sorted(store.parent.iterdir()) == files


def test_a_datastore_in_use_stays_as_it_was_when_it_is_replaced(store: Path, text: Path) -> None:
    opened = Datastore.open(store)
    asked = np.array(Characters().tokenize("be", is_templated=True), dtype=np.int32)[1:]
    before = opened.continuations(asked, min_span=1)
    build(store, write(text, "something else"))
    assert np.array_equal(opened.continuations(asked, min_span=1), before)
    assert texts_of(Datastore.open(store), Characters()) == ["something else"]


def test_a_missing_library_is_named_with_its_remedy(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    message = refused(BackendUnavailable, tmp_path / "s.duods", text)
    assert "-m pip install pydivsufsort" in message


def test_too_many_texts_for_the_memory_are_refused(tmp_path: Path, text: Path) -> None:
    def no_memory(_: object) -> object:
        raise MemoryError

    with pytest.raises(BadOption, match=r"no memory to sort .* name fewer files"):
        building._sorted_positions(bytearray(4), 2, no_memory)  # type: ignore[arg-type]


# Files that are no good


def unreadable(path: Path) -> str:
    with pytest.raises(DatastoreUnreadable) as caught:
        Datastore.open(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_missing_foreign_and_other_versions_are_refused(tmp_path: Path, store: Path) -> None:
    assert "No such file" in unreadable(tmp_path / "missing")
    assert "cannot read" in unreadable(tmp_path)
    assert "is not a datastore" in unreadable(write(tmp_path / "foreign", b"GGUF" * 100))
    assert "is not a datastore" in unreadable(write(tmp_path / "empty", b""))
    data = bytearray(store.read_bytes())
    data[16] += 1
    assert "version 2, not 1" in unreadable(write(store, bytes(data)))


def test_every_truncation_is_refused(store: Path) -> None:
    data = store.read_bytes()
    for size in [*range(400), *range(400, len(data), 997), len(data) - 1]:
        unreadable(write(store, data[:size]))
    unreadable(write(store, data + b"\0"))


def test_broken_headers_are_refused(store: Path) -> None:
    data = store.read_bytes()
    size = int.from_bytes(data[20:24], sys.byteorder)
    header = json.loads(data[24 : 24 + size])
    for wrong in (
        {"token_width": 2}, {"num_tokens": "many"}, {"num_tokens": -1}, {"num_vocab": 0},
        {"num_tokens": 10**9}, {"surprise": 1},
    ):  # fmt: skip
        words = json.dumps(header | wrong).encode().ljust(size)[:size]
        unreadable(write(store, data[:24] + words + data[24 + size :]))
    unreadable(write(store, data[:24] + b"[1]".ljust(size) + data[24 + size :]))


def test_damaged_arrays_are_refused_or_give_other_drafts(store: Path) -> None:
    data = store.read_bytes()
    asked = [
        np.array(Characters().tokenize(text, is_templated=True), dtype=np.int32)
        for text in ("to be", "e", "t", "o", " ")
    ]
    size = int.from_bytes(data[20:24], sys.byteorder)
    begins = [*range(24 + size, 24 + size + 600, 4), *range(len(data) - 1100, len(data), 4)]
    for begin in begins:  # the tokens and positions, then the starts of the tokens in use
        store.write_bytes(data[:begin] + b"\xff" * 4 + data[begin + 4 :])
        with contextlib.suppress(DatastoreUnreadable):
            opened = Datastore.open(store)
            assert all(opened.continuations(text, min_span=1).shape[1] == 10 for text in asked)
    assert "damaged" in unreadable(write(store, data[:-4] + b"\xff" * 4))
    assert "damaged" in unreadable(write(store, data[:-8] + b"\xff" * 4 + data[-4:]))


def test_a_datastore_serves_its_own_vocabulary_alone(
    store: Path, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    tokenizer = Characters()
    other = replace(tokenizer, alphabet=tokenizer.alphabet[::-1])
    assert fingerprint(other) != fingerprint(tokenizer)
    assert fingerprint(Characters(NARROW)) != fingerprint(tokenizer)
    empty = Characters(NARROW + 1, alphabet="")
    assert fingerprint(replace(empty, num_vocab=NARROW + 2)) != fingerprint(empty)
    assert open_for(tokenizer, store).num_tokens == len(text.read_text()) + 1
    with pytest.raises(DatastoreUnreadable, match=r"another vocabulary; .* build --target"):
        open_for(other, store)
    with pytest.raises(BadOption, match="build one with duodec datastore build FILES"):
        open_for(tokenizer, tmp_path / "missing")
    with pytest.raises(BadOption, match="build one with duodec datastore build FILES"):
        open_for(tokenizer)
    build(default_path(fingerprint(tokenizer)), text)
    assert open_for(tokenizer).vocabulary == fingerprint(tokenizer)


# The command


@dataclass
class Command:
    """Runs `duodec datastore` in this process, with the vocabulary that comes with duodec."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        status = app.run(["datastore", *map(str, arguments)])
        return status, *self.capture.readouterr()

    def build(self, *arguments: str | Path) -> tuple[int, str, str]:
        return self("build", "--target", "smollm2-draft", "--offline", *arguments)


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    return Command(capsys)


def test_a_datastore_is_built_and_described(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    write(folder / "a.txt", "The harbour was quiet that morning. " * 20)
    write(folder / "b.jsonl", '{"turns": ["Why is the sky blue?"]}\n')
    write(folder / "c.bin", b"\0")
    status, out, err = command.build(folder)
    assert status == 0
    place = Path(out.strip())
    assert place.parent == tmp_path / "cache" / "datastores"
    assert "skipped 1 hidden, binary or unreadable" in err
    assert "tokens from 2 files" in err
    store = Datastore.open(place)
    status, out, _ = command("info", "--json")
    record = json.loads(out)
    assert (status, record["schema_version"]) == (0, 1)
    assert record["datastores"] == [{"path": str(place), **vars(store.header)}]
    status, out, _ = command("info", place)
    assert f"{store.num_tokens:,}" in out
    assert store.vocabulary in out


def test_the_command_writes_where_it_is_told(command: Command, tmp_path: Path, text: Path) -> None:
    place = tmp_path / "new" / "s.duods"
    assert command.build(text, "--output", place)[:2] == (0, f"{place}\n")
    assert Datastore.open(place).num_tokens > 5
    assert command("info")[0] == 0, "an empty folder is no error"


def test_errors_of_the_command_are_one_line(command: Command, tmp_path: Path, text: Path) -> None:
    for arguments, words in (
        ([tmp_path / "missing.txt"], "cannot read"),
        ([write(tmp_path / "empty", "")], "no text in"),
        ([text, "--output", text], "exists and is not a datastore"),
        ([], "Missing argument"),
    ):
        status, out, err = command.build(*arguments)
        assert (status, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
    assert command()[0] == 0, "alone it shows its help"
    status, _, err = command("info", text)
    assert status == 2
    assert f"{text} is not a datastore" in err
    write(tmp_path / "cache" / "datastores" / "x.duods", "foreign")
    status, _, err = command("info")
    assert status == 0
    assert "x.duods is not a datastore" in err
