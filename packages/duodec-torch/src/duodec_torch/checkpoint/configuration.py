"""Read a model's configuration, and refuse models that transformers does not compute by itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from duodec.errors import ModelUnreadable
from duodec_torch.checkpoint.tokenizer import one_line
from duodec_torch.library import torch, transformers

_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True)
class Source:
    """A folder with config.json and safetensors, or a GGUF file."""

    path: Path

    @property
    def is_gguf(self) -> bool:
        return self.path.is_file()

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of transformers' `from_pretrained`."""
        # never the network, and never code that comes with a model
        own: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        if self.is_gguf:
            return {"pretrained_model_name_or_path": self.path.parent, **own,
                    "gguf_file": self.path.name}  # fmt: skip
        return {"pretrained_model_name_or_path": self.path, **own}


def read_config(source: Source) -> Any:
    """The model's configuration. Raises ModelUnreadable if it is not a causal language model, or
    needs something that we lack."""
    _check_declared(source)
    try:
        with quietly():
            config = transformers.AutoConfig.from_pretrained(**source.where)
    except Exception as error:
        raise ModelUnreadable(
            f"{source.path} is not a model that transformers {transformers.__version__} can read "
            f"({one_line(error)}); use llama.cpp with a GGUF file of it, or a newer transformers"
        ) from error
    kinds = getattr(config, "architectures", None) or ()
    is_causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    is_other = bool(kinds) and not any(kind.endswith(_CAUSAL) for kind in kinds)
    if not is_causal or is_other or getattr(config, "is_encoder_decoder", False):
        kind = kinds[0] if kinds else config.model_type
        raise ModelUnreadable(
            f"{source.path} is not a language model ({kind}); use a causal (decoder-only) model"
        )
    return config


def _check_declared(source: Source) -> None:
    """Check config.json itself; a library's errors would be less clear."""
    if source.is_gguf:
        return
    declared, _ = transformers.PretrainedConfig.get_config_dict(source.path, local_files_only=True)
    kind = declared.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        if declared.get("auto_map"):
            raise ModelUnreadable(
                f"{source.path} runs code of its own (auto_map in config.json), which duodec never "
                "does; use a GGUF file of it, or a model that transformers knows"
            )
        raise ModelUnreadable(
            f"{source.path} has the architecture {kind!r}, which transformers "
            f"{transformers.__version__} does not know; update it, or use a GGUF file of the model"
        )
    if quantised := declared.get("quantization_config"):
        raise ModelUnreadable(
            f"{source.path} is quantised ({quantised.get('quant_method', 'by an unknown method')}),"
            " which the torch backend does not compute; use the model's unquantised files, or a "
            "GGUF file of it"
        )


def outline(config: Any) -> Any:
    """The model without weights, which takes no memory. Raises ModelUnreadable."""
    try:
        with quietly(), torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:
        raise ModelUnreadable(
            f"the configuration of a {config.model_type} makes no model ({one_line(error)}); "
            "fetch config.json again"
        ) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Silence transformers' bars and warnings; we report what matters."""
    logging = transformers.utils.logging
    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), _no_bar_of_gguf():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()


@contextmanager
def _no_bar_of_gguf() -> Iterator[None]:
    """Disable the one bar that transformers' switch does not."""
    module = import_module("transformers.modeling_gguf_pytorch_utils")
    bar = module.__dict__["tqdm"]
    module.__dict__["tqdm"] = partial(bar, disable=True)
    try:
        yield
    finally:
        module.__dict__["tqdm"] = bar
