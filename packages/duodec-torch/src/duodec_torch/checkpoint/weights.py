"""Read a model of transformers from its files, or refuse it in one line."""

from __future__ import annotations

from typing import Any

from duodec.errors import ModelUnreadable
from duodec_torch.checkpoint.blueprint import Blueprint
from duodec_torch.checkpoint.configuration import quietly
from duodec_torch.checkpoint.placing import is_out_of_memory
from duodec_torch.checkpoint.tokenizer import one_line
from duodec_torch.library import transformers


def read_weights(blueprint: Blueprint) -> Any:
    """The model with its weights. Raises ModelUnreadable if files are broken, weights are missing,
    or memory runs out."""
    source, place = blueprint.source, blueprint.place
    how: dict[str, Any] = {
        "config": blueprint.config, "dtype": place.dtype, "output_loading_info": True,
    }  # fmt: skip
    if source.is_gguf:
        if hasattr(transformers, "GgufConfig"):
            how["quantization_config"] = transformers.GgufConfig(dequantize=True)
    else:
        how["use_safetensors"] = True
    if not place.is_on_cpu:
        # straight there, never through the CPU's memory
        is_alone = len(place.devices) == 1
        how["device_map"] = {"": place.devices[0]} if is_alone else dict(blueprint.layout)
    try:
        with quietly():
            model, info = transformers.AutoModelForCausalLM.from_pretrained(**source.where, **how)
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelUnreadable(f"out of memory: {blueprint.need.complaint(place)}") from error
        raise ModelUnreadable(
            f"{source.path} cannot be loaded by transformers ({one_line(error)}); fetch it again, "
            "or use a GGUF file of it with `target_backend=llama.cpp`"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise ModelUnreadable(
            f"{source.path} lacks {len(missing)} weights, such as {missing[0]}; fetch it again"
        )
    return model.eval()
