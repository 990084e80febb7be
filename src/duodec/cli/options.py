"""The options that commands share: one spelling, one meaning, one help text each."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer

from duodec.decoding.methods import METHODS

_MODELS, _DECODING, _SAMPLING = "Models", "Decoding", "Sampling"
_MACHINE, _OUTPUT, _PROMPTS = "Machine", "Output", "Prompts"

# How llama.cpp, vLLM and transformers spell what we have under another name.
_OTHER_SPELLINGS = {
    "model": "target",
    "model-draft": "draft",
    "spec-draft-model": "draft",
    "draft-model": "draft",
    "ctx-size": "context",
    "n-ctx": "context",
    "max-model-len": "context",
    "max-new-tokens": "max-tokens",
    "n-predict": "max-tokens",
    "predict": "max-tokens",
    "num-predict": "max-tokens",
    "temp": "temperature",
    "repeat-penalty": "repetition-penalty",
    "system-prompt": "system",
    "threads-draft": "draft-threads",
    "spec-draft-threads": "draft-threads",
    "n-gpu-layers": "gpu-layers",
    "torch-dtype": "dtype",
}


def canonical(name: str) -> str:
    """Our spelling of an option's name (without its dashes)."""
    name = name.replace("_", "-")
    return _OTHER_SPELLINGS.get(name, name)


CONTEXT_SETTINGS = {"token_normalize_func": canonical, "help_option_names": ["-h", "--help"]}


def methods_help() -> str:
    """Every method with one line on it, for the end of a help text."""
    lines = [f"[bold]{name}[/bold]  {_first_line(kind)}" for name, kind in METHODS.items()]
    return "\n\n".join(["[bold]Methods[/bold]", *lines])


def _first_line(kind: object) -> str:
    """What the file of a method says it is."""
    return (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n")[0]


# Models

Target = Annotated[
    str,
    typer.Option(
        "--target",
        "-m",
        help="The model whose text is wanted: a GGUF file, a folder of safetensors, "
        "hf:owner/repo\\[:quant], or an alias (see `duodec models`).",
        metavar="MODEL",
        rich_help_panel=_MODELS,
    ),
]
DraftModel = Annotated[
    str,
    typer.Option(
        "--draft",
        "-md",
        help="The smaller model that drafts for it; auto: the one known to suit the target; "
        "none: no draft.",
        metavar="MODEL",
        rich_help_panel=_MODELS,
    ),
]
TargetBackend = Annotated[
    str,
    typer.Option(
        "--target-backend",
        help="What computes the target: llama.cpp or torch; auto: llama.cpp for GGUF files, torch "
        "for safetensors.",
        metavar="NAME",
        rich_help_panel=_MODELS,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="Numbers of a torch target: bfloat16, float16 or float32; auto: bfloat16 on a GPU, "
        "the files' own on the CPU.",
        metavar="NAME",
        rich_help_panel=_MACHINE,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="Where the target computes: cpu, cuda (as few GPUs as hold it), cuda:1, or "
        "cuda:0,cuda:1; auto: a GPU where there is one.",
        metavar="NAME",
        rich_help_panel=_MACHINE,
    ),
]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline", help="Use only models that are on the disk.", rich_help_panel=_MODELS
    ),
]
DatastoreFile = Annotated[
    str,
    typer.Option(
        "--datastore",
        help="What `rest` drafts from; auto: the one that `duodec datastore build` made for this "
        "vocabulary.",
        metavar="FILE",
        rich_help_panel=_MODELS,
    ),
]

# Decoding

MethodName = Annotated[
    str,
    typer.Option(
        "--method",
        help="How to decode; auto: whatever pays on this machine and text, plain decoding "
        "included; stream where you name a draft. All of them are listed below.",
        metavar="NAME",
        rich_help_panel=_DECODING,
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="The same bits however many tokens are scored at once, for every kind of "
        "quantisation; without it, attention alone has this property.",
        rich_help_panel=_DECODING,
    ),
]
Fast = Annotated[
    bool,
    typer.Option(
        "--fast",
        help="llama.cpp's own choice of kernels: some per cent faster on a CPU, but near ties "
        "may fall otherwise than in plain decoding.",
        rich_help_panel=_DECODING,
    ),
]
Pace = Annotated[
    float,
    typer.Option(
        "--pace",
        help="Let each target forward take at least this long, as on a slower or larger model.",
        metavar="SECONDS",
        rich_help_panel=_DECODING,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        help="End before this text; may be given several times.",
        metavar="TEXT",
        rich_help_panel=_DECODING,
        show_default=False,
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        "--system",
        help="Instructions that come before the prompt.",
        metavar="TEXT",
        rich_help_panel=_DECODING,
        show_default=False,
    ),
]

ParseSpecial = Annotated[
    bool,
    typer.Option(
        "--parse-special",
        help="Take control tokens that prompts and messages spell (<|im_end|>) for control tokens; "
        "without it they are text, and only the chat template writes control tokens.",
        rich_help_panel=_DECODING,
    ),
]

# Prompts

Tasks = Annotated[
    str,
    typer.Option(
        "--tasks",
        help="Tasks, by commas: mt_bench, translation, summarization, qa, math_reasoning, "
        "rag, humaneval; or all.",
        metavar="A,B,...",
        rich_help_panel=_PROMPTS,
    ),
]
PromptFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A folder of prompts in Spec-Bench's format; without it, our own.",
        metavar="FOLDER",
        show_default=False,
        rich_help_panel=_PROMPTS,
    ),
]

DraftCosts = Annotated[
    str | None,
    typer.Option(
        "--draft-ms",
        help="What a forward pass of the draft model takes in a simulation, by its tokens: "
        "TOKENS:MS, by commas; measured at the start if absent.",
        metavar="1:1.3,4:2.5,...",
        show_default=False,
        rich_help_panel="Benchmark",
    ),
]

# Sampling

Temperature = Annotated[
    float,
    typer.Option("--temperature", help="0 takes the likeliest token.", rich_help_panel=_SAMPLING),
]
TopK = Annotated[
    int,
    typer.Option("--top-k", help="Only the K likeliest; 0: off.", rich_help_panel=_SAMPLING),
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p",
        help="Only the likeliest that hold this part of the probability; 1: off.",
        rich_help_panel=_SAMPLING,
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p",
        help="Only those at least this likely, next to the likeliest; 0: off.",
        rich_help_panel=_SAMPLING,
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        help="Divides the scores of tokens already seen; 1: off.",
        rich_help_panel=_SAMPLING,
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(
        "--presence-penalty",
        help="Taken from tokens that the answer holds; 0: off.",
        rich_help_panel=_SAMPLING,
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(
        "--frequency-penalty",
        help="Taken from a token each time that the answer holds it; 0: off.",
        rich_help_panel=_SAMPLING,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        "-s",
        help="One seed gives one text, whatever the method and the draft; taken at random and "
        "reported if absent.",
        show_default=False,
        rich_help_panel=_SAMPLING,
    ),
]

# Machine

ContextSize = Annotated[
    int | None,
    typer.Option(
        "--context",
        "-c",
        help="Tokens that prompt and answer may hold together; by default what the model was "
        "trained for, up to 8192.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        help="Cores to use; by default all that this process may use.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
DraftThreads = Annotated[
    int | None,
    typer.Option(
        "--draft-threads",
        "-td",
        help="Cores for the draft model; by default a share of them.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
DraftWindow = Annotated[
    int | None,
    typer.Option(
        "--draft-window",
        help="Tokens of a text that the draft model holds at most, 128 or more; by default 8192. "
        "It drafts from the end of a long prompt at once and reads older text while that pays.",
        metavar="TOKENS",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
GpuLayers = Annotated[
    int,
    typer.Option(
        "--gpu-layers",
        "-ngl",
        help="Layers of the target to place on a GPU; -1: all, where llama.cpp was built for it.",
        rich_help_panel=_MACHINE,
    ),
]

# Output

ShowDraft = Annotated[
    bool,
    typer.Option(
        "--show-draft",
        help="Tint and underline accepted draft text; on a terminal only.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No closing lines; warnings stay.", rich_help_panel=_OUTPUT),
]
