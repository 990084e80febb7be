"""Convert a GGUF file's weights to a folder of safetensors, once, in bfloat16.

    python -m benchmarks.vllm.checkpoint smollm2

Needs the torch extra.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from benchmarks import SCRATCH
from duodec.models import resolve

_OF_THE_FILE = ("quantization_config", "_name_or_path", "architectures", "transformers_version")


def checkpoint(name: str) -> Path:
    """The folder of a Llama that has this alias in `duodec.models`."""
    folder = SCRATCH / f"{name}-bf16"
    if not (folder / "config.json").exists():
        _convert(resolve(name).path, folder)
    return folder


def _convert(path: Path, folder: Path) -> None:
    import torch
    import transformers

    warnings.simplefilter("ignore")
    source = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    known = source.config.to_dict()
    config = transformers.LlamaConfig(
        **{key: value for key, value in known.items() if key not in _OF_THE_FILE}
    )
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(source.state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    tokenizer.save_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    print(checkpoint(sys.argv[1]))
