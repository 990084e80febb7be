"""Run the evaluation scripts of the paper's release, with a decoder that notes what it is given.

The scripts are read from a clone of github.com/KaiLv69/DuoDecoding, at the commit that
`duodec_lab.bench.paper` names; nothing of them is in this repository. What they import and this
machine may lack (FastChat, llama-cpp-python, models) is replaced by the little that they use.
"""

from __future__ import annotations

import ast
import io
import os
import shlex
import subprocess
import sys
import tarfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from duodec_lab.bench import paper

VARIABLE = "DUODEC_RELEASED_SCRIPTS"
BESIDE = Path(__file__).parents[2].parent / "DuoDecoding"
FILES = ("cmds", "eval", "src/utils.py", "src/engine.py", ":(glob)data/*.jsonl")
COMPLETION = " It is so."
PREFILL_S, TOKEN_S = 0.5, 0.25  # of the decoder, on the scripts' clock


def find_repository() -> Path:
    """The clone that the variable names, or that lies beside ours. Skips the test if neither is
    there."""
    folder = Path(os.environ.get(VARIABLE, BESIDE))
    for found in (folder / ".git", folder):
        if (found / "objects").is_dir():
            return found
    pytest.skip(f"no clone of the released scripts: set {VARIABLE} to one ({folder} is none)")


def checkout(folder: Path) -> Path:
    """The files of the pinned commit."""
    packed = git("archive", "--format=tar", paper.COMMIT, *FILES)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    (folder / "data" / paper.DRAFT).touch()  # its hash is compared, see `blob_of`
    return folder


def blob_of(path: str) -> str:
    """As git names the content of a file of the pinned commit."""
    return git("rev-parse", f"{paper.COMMIT}:{path}").decode().strip()


def git(*words: str) -> bytes:
    command = ["git", f"--git-dir={find_repository()}", *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


@dataclass(frozen=True)
class Evaluation:
    """One command line of a script: its options, and what it did."""

    options: Namespace
    task: str
    prompts: list[str]  # in the order in which they were decoded, warm-up included
    printed: list[str]


def keyword(source: Path, name: str) -> set[Any]:
    """The constants that calls in a file pass by that name."""
    return {
        call_keyword.value.value
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        for call_keyword in node.keywords
        if call_keyword.arg == name and isinstance(call_keyword.value, ast.Constant)
    }


def command_lines(script: Path) -> Iterator[list[str]]:
    """The Python file and arguments of each of a script's commands."""
    for line in script.read_text().splitlines():
        words = shlex.split(line, comments=True)
        for i, word in enumerate(words):
            if word.startswith("eval/"):
                yield words[i:]


@dataclass
class Release:
    """The released files, ready to run."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    now: float = 0.0
    prompts: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch = pytest.importorskip("torch", reason="the released scripts need torch")
        self.monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        self.monkeypatch.chdir(self.folder)
        self.utils = self._module("src.utils", self.folder / "src/utils.py")
        self.utils.seed_everything = lambda seed: None  # seeds what other tests share
        self._stub("src.engine", Decoding=self._decoding())
        self._stub("ipdb")
        self._stub("shortuuid", uuid=str)
        self._stub("fastchat.model", get_conversation_template=Conversation)
        self._stub("tqdm", tqdm=lambda items, **_: items)
        self.monkeypatch.setattr(sys, "path", [*sys.path])
        self.evaluations = {
            path.name: self._module(f"released_{path.stem}", path)
            for path in (self.folder / "eval").glob("*.py")
        }
        for module in self.evaluations.values():
            vars(module)["time"] = SimpleNamespace(time=lambda: self.now)

    def options(self, words: list[str]) -> Namespace:
        """What a command line sets, by the scripts' own parser."""
        self.monkeypatch.setattr(sys, "argv", words)
        options: Namespace = self.utils.parse_arguments()
        options.data_path = str(self.folder / "data")
        return options

    def run(self, words: list[str]) -> Evaluation:
        """Run a command to its end."""
        self.prompts, self.printed = [], []
        options = self.options(words)
        module = self.evaluations[Path(words[0]).name]
        kind = "EvalMTBench" if "mt_bench" in words[0] else "EvalHumaneval"
        getattr(module, kind)(options).eval()
        for result in Path(options.exp_name).glob("*"):
            result.unlink()  # the scripts append
        return Evaluation(options, task_of(words, options), self.prompts, self.printed)

    def _stub(self, name: str, **values: object) -> None:
        module = ModuleType(name)
        vars(module).update(values)
        package = name.partition(".")[0]
        if package != name:
            self.monkeypatch.setitem(sys.modules, package, ModuleType(package))
        self.monkeypatch.setitem(sys.modules, name, module)

    def _module(self, name: str, path: Path) -> ModuleType:
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        self.monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    def _decoding(self) -> type:
        """In place of the engine: every method takes the same time and gives the same text."""
        release = self

        def decode(self: object, prompt: Any) -> Any:
            import torch

            release.prompts.append("".join(map(chr, prompt[0].tolist())))
            release.now += PREFILL_S + TOKEN_S * len(COMPLETION)
            return torch.cat([prompt, torch.tensor([[ord(c) for c in COMPLETION]])], dim=1)

        class Decoding:
            def __init__(self, args: Namespace) -> None:
                self.args, self.seed, self.seed_set = args, args.seed, set[int]()
                self.accelerator = SimpleNamespace(
                    is_main_process=True, num_processes=1, wait_for_everyone=lambda: None
                )

            def load_model(self) -> None: ...

            def load_tokenizer(self) -> None:
                self.tokenizer = Characters()

            def color_print(self, content: str, color: int = 4) -> None:
                release.printed.append(content)

            autoregressive_sampling = speculative_decoding = duodecoding = decode
            parallel_speculative_decoding = decode
            pld_forward = lookahead_forward = rest_forward = decode

        return Decoding


def task_of(words: list[str], options: Namespace) -> str:
    """Our name of the task."""
    name = Path(words[0]).stem.removeprefix("eval_")
    return str(options.sub_domain) if name == "specbench" else name


class Characters:
    """A tokenizer whose tokens are characters."""

    bos_token, eos_token = "<s>", "</s>"
    special_tokens_map = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # noqa: RUF012

    def encode(self, text: str, **_: bool) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, tokens: Any, **_: bool) -> str:
        return "<s>" + "".join(map(chr, tokens.tolist()))


class Conversation:
    """FastChat's template `vicuna_v1.1`, the only one that the scripts reach."""

    roles = ("USER", "ASSISTANT")
    system = (
        "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions."
    )

    def __init__(self, name: str) -> None:
        assert name == "vicuna", name
        self.messages: list[list[str | None]] = []

    def append_message(self, role: str, message: str | None) -> None:
        self.messages.append([role, message])

    def get_prompt(self) -> str:
        """Messages after a role's name, the user's before a space, the assistant's before the end
        token; one that is still to come leaves the name."""
        text = f"{self.system} "
        for (role, message), end in zip(self.messages, [" ", "</s>"] * len(self.messages)):  # noqa: B905
            text += f"{role}: {message}{end}" if message else f"{role}:"
        return text
