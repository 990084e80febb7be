"""Run `duodec embed`: an embedding of each line of a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Annotated, Protocol

import numpy as np
import typer

from duodec.cli import opening, options
from duodec.cli.output import put, say_dim, status
from duodec.errors import BadOption, ContextExceeded
from duodec.loading.config import EngineConfig
from duodec.machine.files import is_full, replacing
from duodec.machine.signals import interrupted_at_once

if TYPE_CHECKING:
    from duodec.backends.loaded import Embedder, Rows

EPILOG = """
Examples:
duodec embed -m nomic-embed-text-v1.5.Q8_0.gguf lines.txt > embeddings.jsonl
duodec embed -m qwen3-embedding-0.6b-q8_0.gguf lines.txt -o embeddings.npy
cat lines.txt | duodec embed -m bge-small-en-v1.5-f16.gguf --truncate

A line is a text. Some models want a prefix to it, such as `search_query: `: their cards say which.
`duodec serve` answers clients with embeddings, and ranks documents with a reranker.
"""

_STDIN = "-"
_AHEAD = 256  # lines that are read before they are computed

_OPTIONS = (
    "target", "offline", "context", "no_mmap", "no_repack", "threads", "gpu_layers", "device",
    "parse_special",
)  # fmt: skip
_HELPS = {
    "target": "The model that makes embeddings: a GGUF file, a folder with one, or hf:owner/repo.",
    "context": "Most tokens of a text; without it as many as the model was trained for, 8,192 at "
    "most, and fewer if memory is short.",
    "parse_special": "Read control tokens that are spelled in texts as control tokens.",
}


@options.derived
def embed(
    *,
    files: Annotated[list[str] | None, typer.Argument(
        help="Files of texts, one a line; standard input if absent.", metavar="FILE...",
        show_default=False
    )] = None,
    output: Annotated[Path | None, options.option(
        "--output -o FILE",
        "Write to this file: a NumPy array (texts, numbers) if it ends in .npy, else JSON lines. "
        "It is there once all is computed.", "Output"
    )] = None,
    dimensions: Annotated[int | None, options.option(
        "--dimensions N",
        "The first N numbers of each embedding, for models that are trained for that.", "Output"
    )] = None,
    truncate: Annotated[bool, options.option(
        "--truncate", "Cut texts that are longer than the context; without it they are refused.",
        "Machine"
    )] = False,
    quiet: options.Quiet = False,
    config: Annotated[EngineConfig, options.Options(
        only=_OPTIONS, defaults={"target": ""}, helps=_HELPS
    )],
) -> None:  # fmt: skip
    """Compute an embedding of each line of a text.

    JSON lines to stdout, or a NumPy array to a file. Embeddings have length 1, and are those that
    `duodec serve` gives.
    """
    from duodec.cli.output import warn
    from duodec.loading.embedding import load_embedder
    from duodec.loading.resolve import resolve_target

    if not config.target:
        raise BadOption("no model; name one that makes embeddings with -m MODEL.gguf")
    lines = _Lines(files or [_STDIN])
    target = resolve_target(config)
    with status(f"loading {target.name}", is_quiet=quiet), interrupted_at_once():
        embedder, use = load_embedder(target, warn)
    with closing(embedder):
        if not quiet:
            say_dim(opening.embedder_line(use))
        num_dims = _checked(embedder, target.name, dimensions)
        begin_s = perf_counter()
        texts = _tokens(embedder, lines, is_cut=truncate)
        with _writer(output, num_dims) as writer:
            num_texts, num_tokens = _compute(embedder, texts, writer, num_dims)
    if not quiet:
        taken_s = perf_counter() - begin_s
        rate = num_tokens / max(taken_s, 1e-9)
        say_dim(f"{num_texts} texts, {num_tokens} tokens in {taken_s:.1f} s ({rate:.0f} tokens/s)")


def _checked(embedder: Embedder, name: str, dimensions: int | None) -> int:
    """Return the length of an embedding. Raises BadOption."""
    if embedder.ranks:
        raise BadOption(
            f"{name} ranks texts and makes no embeddings; serve it with `duodec serve`, which has "
            "/v1/rerank"
        )
    most = embedder.num_dims
    if dimensions is None or dimensions == most:
        return most
    if not 1 <= dimensions <= most:
        raise BadOption(f"--dimensions is {dimensions}; use 1 to {most}")
    if not embedder.is_matryoshka:
        raise BadOption(
            f"--dimensions is {dimensions}, and {name} is not known to be trained for fewer than "
            f"its {most}; leave it out"
        )
    return dimensions


def _compute(
    embedder: Embedder, texts: Iterator[list[int]], writer: Writer, num_dims: int
) -> tuple[int, int]:
    """Write an embedding of each text; return the number of texts, and of tokens."""
    from duodec.backends.loaded import normalised, num_fitting

    waiting: list[list[int]] = []
    num_texts = num_tokens = 0
    while True:
        while len(waiting) < _AHEAD and (text := next(texts, None)) is not None:
            waiting.append(text)
        if not waiting:
            return num_texts, num_tokens
        num = num_fitting(map(len, waiting), embedder.num_pass, embedder.most_texts)
        batch, waiting = waiting[:num], waiting[num:]
        rows = normalised(embedder.rows(batch)[:, :num_dims])
        writer.write(rows, [len(text) for text in batch])
        num_texts += num
        num_tokens += sum(map(len, batch))


# --- input


@dataclass(frozen=True)
class _Line:
    place: str
    text: str


class _Lines:
    """Read the lines of files. Raises BadOption for a file that cannot be read, before anything
    else is done."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        for name in self._names:
            with self._open(name):
                pass

    def __iter__(self) -> Iterator[_Line]:
        for name in self._names:
            shown = "standard input" if name == _STDIN else name
            number = 0
            with self._open(name) as file:
                for number, data in enumerate(file, 1):
                    yield _Line(f"line {number} of {shown}", self._text(data, number, shown))
            if not number:
                raise BadOption(f"{shown} is empty; write a text a line")

    @staticmethod
    def _open(name: str) -> AbstractContextManager[IO[bytes]]:
        if name != _STDIN:
            try:
                return Path(name).open("rb")
            except OSError as error:
                raise BadOption(
                    f"cannot read {name} ({error.strerror}); name a file of texts, one a line"
                ) from error
        if sys.stdin is None or sys.stdin.isatty():
            raise BadOption("no texts; name a file with one a line, or pipe it in")
        return nullcontext(sys.stdin.buffer)

    @staticmethod
    def _text(data: bytes, number: int, shown: str) -> str:
        try:
            text = data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise BadOption(
                f"line {number} of {shown} is not UTF-8 text (byte {error.start}); convert it first"
            ) from error
        if not text.strip():
            raise BadOption(f"line {number} of {shown} is empty; write a text, or remove the line")
        return text


def _tokens(embedder: Embedder, lines: Iterable[_Line], *, is_cut: bool) -> Iterator[list[int]]:
    """Yield the tokens of each line. Raises ContextExceeded."""
    for line in lines:
        tokens = embedder.tokens_of(line.text)
        if len(tokens) > embedder.num_context and not is_cut:
            raise ContextExceeded(
                f"{line.place} has {len(tokens)} tokens and the context holds "
                f"{embedder.num_context}; shorten it, or cut such lines with --truncate"
            )
        yield embedder.cut(tokens)


# --- output


class Writer(Protocol):
    """Take embeddings in the order of their texts."""

    def write(self, rows: Rows, num_tokens: list[int]) -> None: ...


@contextmanager
def _writer(output: Path | None, num_dims: int) -> Iterator[Writer]:
    """Yield a writer for the output. Raises BadOption if the file cannot be written."""
    if output is None:
        yield _JsonLines(put)
        return
    try:
        with replacing(output) as part, part.open("wb") as file:
            if output.suffix == ".npy":
                writer = _Array(file, num_dims)
                yield writer
                writer.end()
            else:
                yield _JsonLines(lambda text: file.write(text.encode()))
    except OSError as error:
        if is_full(error):
            raise
        raise BadOption(
            f"cannot write {output} ({error.strerror}); name a file in a folder of yours"
        ) from error


class _JsonLines:
    """Write one object per text."""

    def __init__(self, put: Callable[[str], object]) -> None:
        self._put, self._num = put, 0

    def write(self, rows: Rows, num_tokens: list[int]) -> None:
        for row, tokens in zip(rows, num_tokens, strict=True):
            numbers = ", ".join(row.astype(str))
            head = json.dumps({"index": self._num, "tokens": tokens})[:-1]
            self._put(f'{head}, "embedding": [{numbers}]}}\n')
            self._num += 1


class _Array:
    """Write a NumPy file. Its header is written again once the number of rows is known; NumPy
    leaves room for it."""

    def __init__(self, file: IO[bytes], num_dims: int) -> None:
        self._file, self._num_dims, self._num = file, num_dims, 0
        self._write_header()

    def write(self, rows: Rows, num_tokens: list[int]) -> None:
        self._file.write(np.ascontiguousarray(rows, "<f4").tobytes())
        self._num += len(rows)

    def end(self) -> None:
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        shape = (self._num, self._num_dims)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
