"""What every distillation begins with: a target, prompts, and a recording of its completions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption, warn
from duodec.llm import load
from duodec.loading.backends import TargetFiles
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import ResolvedPair, resolve_target
from duodec.machine.cores import available_cores
from duodec_lab.distill import recording as recordings
from duodec_lab.distill.files import Folder, read_json, write_json
from duodec_lab.distill.library import torch
from duodec_lab.distill.prompts.collect import Prompts, asked, collect
from duodec_lab.distill.prompts.magpie import Written, write_prompts
from duodec_lab.distill.recording import Recording
from duodec_lab.distill.settings import DistillSettings
from duodec_lab.distill.training.loop import Training, most_steps

_FOLDER_VERSION = 4  # of the shards and checkpoints in it, and of what options mean
_LEAST_STEPS = 10
_RECORDING_PART = 0.4  # of the minutes, at most, prompts that are written included
_WRITING_PART = 0.5  # of that, for these prompts

OnProgress = Callable[[str, int, int], None]


@dataclass(kw_only=True)
class Work:
    """A target and what is made for it, in a folder beside the output."""

    config: EngineConfig
    output: Path
    settings: DistillSettings
    params: SamplingParams
    files: tuple[Path, ...] = ()
    on_progress: OnProgress = lambda words, done, total: None
    on_warning: Callable[[str], None] = warn

    @property
    def seed(self) -> int:
        """Of the sampling, of the order of the prompts and of the training; 0 by default, so that
        the work can be repeated."""
        return self.params.seed or 0

    @property
    def recording_s(self) -> float:
        """Seconds that writing prompts and recording take, at most."""
        return _RECORDING_PART * 60 * self.settings.minutes

    def check_target(self) -> None:
        """Find the target and the prompts. Raises BadOption, ModelNotFound, ModelUnreadable or
        BackendUnavailable."""
        self.given: Prompts = collect(self.files, self.settings.num_prompts, self.seed)
        self.target = resolve_target(self.config)
        with closing(self.target.open_vocabulary()) as vocabulary:
            self.num_vocab = vocabulary.num_vocab
            if vocabulary.chat_template is None:
                raise BadOption(
                    f"{self.config.target} has no chat template, and prompts are chats; distil for "
                    "a model that was trained to chat"
                )

    def claim_folder(self) -> None:
        """Raises BadOption if the folder holds another distillation, or the output is taken."""
        self.folder = Folder.beside(self.output)
        wanted = self.manifest()
        found = read_json(self.folder.manifest)
        if found is None:
            if self.output.exists():
                raise BadOption(f"{self.output} exists; name another --output, or delete it")
            write_json(self.folder.manifest, wanted)
            return
        for key, value in wanted.items():
            if found.get(key) != value:
                raise BadOption(
                    f"{self.folder.path} holds a distillation with another {key} "
                    f"({found.get(key)} in place of {value}); name another --output, or delete "
                    "that folder"
                )

    def manifest(self) -> dict[str, Any]:
        """What decides the recording."""
        return {
            "version": _FOLDER_VERSION,
            "target": identity(self.target.file.path),
            "num_prompts": self.settings.num_prompts,
            "prompts": self.given.digest,
            "written_prompts": self.settings.written_prompts,
            "seed": self.seed,
            "temperature": self.params.temperature,
            "max_tokens": self.settings.max_tokens,
        }

    def record(self, num_tops: int) -> Recording:
        """Have the target complete the prompts, with so many of its likeliest tokens at each place;
        what was recorded before is used again. Raises BadOption where nothing was that trains."""
        manifest = read_json(self.folder.manifest) or {}
        if "recorded" not in manifest:
            params = replace(self.params, max_tokens=self.settings.max_tokens, logprobs=num_tops)
            config = replace(self.config, draft=None, num_slots=self.settings.parallel)
            pair = ResolvedPair(config, self.target.backend, TargetFiles(self.target.file))
            with load(pair, on_warning=self.on_warning) as llm:
                # more of them would change what each shard holds
                if self.settings.written_prompts and not self.folder.shard(0).exists():
                    write_prompts(
                        llm,
                        self.settings.written_prompts,
                        self.seed,
                        self.folder,
                        most_s=_WRITING_PART * self.recording_s,
                        on_progress=self.on_progress,
                    )
                prompts, writing_s = self._every_prompt()
                recordings.check_fits(prompts, llm, params)
                recordings.record(
                    llm,
                    prompts,
                    params,
                    self.folder,
                    most_s=self.recording_s - writing_s,
                    on_progress=self.on_progress,
                )
        self.prompts, writing_s = self._every_prompt()
        found = recordings.read(self.folder, self.prompts)
        write_json(self.folder.manifest, {**manifest, "recorded": found.num_conversations})
        if not found.held_out or not found.training:
            raise BadOption(
                "no completion was recorded that measures, or none that trains; use shorter "
                "prompts or a larger --context"
            )
        return replace(found, seconds=found.seconds + writing_s)

    def _every_prompt(self) -> tuple[Prompts, float]:
        """Those given and those that the target wrote, and the seconds that writing took."""
        written = Written.read(self.folder)
        if not written.messages:
            return self.given, written.seconds
        every = (*self.given.conversations, *map(asked, written.messages))
        return Prompts.of(every, self.settings.num_prompts, self.seed), written.seconds

    def plan_steps(self, training: Training) -> int:
        """As configured, or as planned when the training began: so many as the time allows."""
        manifest = read_json(self.folder.manifest) or {}
        planned = manifest.get("num_steps")
        if self.settings.steps:
            planned = self.settings.steps
        elif not isinstance(planned, int):
            left_s = 60 * self.settings.minutes - training.recording.seconds
            most = most_steps(training.recording, self.settings)
            planned = max(_LEAST_STEPS, min(most, training.steps_in(left_s)))
        write_json(self.folder.manifest, {**manifest, "num_steps": planned})
        return planned

    def use_device(self) -> str:
        """Where torch trains, with as many threads as the options say."""
        torch.set_num_threads(self.config.threads or len(available_cores()))
        return "cuda" if torch.cuda.is_available() and self.config.device != "cpu" else "cpu"


def identity(path: Path) -> str:
    """A file by name and size; a folder by name."""
    return f"{path.name}, {path.stat().st_size} bytes" if path.is_file() else path.name
