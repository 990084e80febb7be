"""Run `duodec generate`: one prompt, one completion."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duodec.chat.pictures import ImageFile, part_of
from duodec.cli import opening, options
from duodec.cli.completion import StreamedCompletion, plain_seconds, stream_completion
from duodec.cli.interrupts import Interruption, Stopped
from duodec.cli.markdown import writer_for
from duodec.cli.opening import open_llm
from duodec.cli.output import is_terminal, put, say, say_dim, warn
from duodec.cli.summary import (
    comparison,
    draft_line,
    end_line,
    seconds,
    speed_line,
    to_json,
)
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import SamplingParams, seeded
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec.machine.busy import OtherPrograms

if TYPE_CHECKING:
    from duodec.llm import LLM

EPILOG = """
Examples:
duodec generate "Why is the sky blue?"
cat question.txt | duodec generate --method sps --temperature 0.7 --seed 1
duodec generate --raw --show-draft "def fibonacci(n):"
duodec generate --regex "(yes|no), because .{10,80}\\." "Is the sky blue?"
duodec generate -m hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF -md qwen2.5-coder-0.5b "Sort a list."
duodec generate -m gemma3:4b --image plan.png "What is this?"  # of Ollama
duodec generate -m Qwen/Qwen2.5-Coder-7B-Instruct -md qwen2.5-coder-0.5b "Sort it."  # safetensors
"""

_INTERRUPTED = 130
_READ_FROM_STDIN = "-"


@options.derived
def generate(
    *,
    prompt: Annotated[str | None, typer.Argument(
        help="The prompt; read from standard input if absent.", show_default=False
    )] = None,
    prompt_option: options.Prompt = None,
    file: options.PromptFile = None,
    method: options.MethodName = "auto",
    max_tokens: Annotated[
        int | None, options.option("--max-tokens -n", "Most tokens of the completion.", "Decoding")
    ] = 256,
    stop: options.Stop = None,
    image: Annotated[list[Path] | None, options.option(
        "--image FILE",
        "A picture (PNG, JPEG, WebP, GIF or BMP) that the prompt is about; may be given several "
        "times. The model needs an mmproj file.",
        "Decoding"
    )] = None,
    raw: Annotated[bool, options.option(
        "--raw", "Continue the text as it is, without the model's chat template.", "Decoding"
    )] = False,
    system: options.System = None,
    json_schema: Annotated[str | None, options.option(
        "--json-schema SCHEMA",
        "Complete in JSON of this schema: a file, or the schema itself; {} for any JSON.",
        "Decoding"
    )] = None,
    regex: Annotated[str | None, options.option(
        "--regex EXPRESSION",
        "Complete with a text that this regular expression matches as a whole.", "Decoding"
    )] = None,
    show_draft: options.ShowDraft = False,
    plain: options.Plain = False,
    json: Annotated[bool, options.option(
        "--json", "After the text, one JSON object as the last line of stdout.", "Output"
    )] = False,
    quiet: options.Quiet = False,
    config: Annotated[EngineConfig, options.Options(defaults={"datastore": "auto"})],
    sampling: Annotated[SamplingParams, options.Options()],
) -> None:  # fmt: skip
    """Complete a prompt: the text to stdout, everything else to stderr.

    A draft model guesses ahead in another process while the target computes.

    The text is the target's own; draft and method only change the speed.
    """
    sampling = replace(seeded(sampling), grammar=_grammar(json_schema, regex))
    opening.check_length(max_tokens, stop or ())
    config = opening.with_datastore(config, method)
    chosen = opening.method_or_none(method)
    if raw and system is not None:
        raise BadOption("--system needs the chat template that --raw leaves out; choose one")
    if raw and image:
        raise BadOption("--image needs the chat template that --raw leaves out; choose one")
    pictures = [_picture(path) for path in image or ()]
    text = _prompt_text(prompt, prompt_option, file)
    pair = opening.resolve_for(config, chosen)
    if pair.draft is None and config.draft not in ("auto", "none"):
        warn(f"method '{method}' uses no draft model: --draft {config.draft} is not loaded")

    writer = writer_for(show_draft=show_draft, is_plain=plain or raw or json)
    if show_draft and not is_terminal(sys.stdout):
        warn("--show-draft has no effect: stdout is not a terminal")
    try:
        with closing(writer), open_llm(pair, on_warning=writer.warn, is_quiet=quiet) as engine:
            # it may have been left out
            drafting = pair.draft_name if engine.loaded.drafter else None
            tokens = engine.tokens_of(text if raw else messages(text, system, pictures))
            others = OtherPrograms()
            done = stream_completion(
                engine,
                tokens,
                sampling,
                method=chosen,
                max_tokens=max_tokens,
                stop=stop or (),
                writer=writer,
                interruption=Interruption(patience=0),
                is_quiet=quiet,
            )
            writer.end()
            if json:
                line = to_json(
                    done,
                    target=pair.name,
                    draft=drafting,
                    seed=sampling.seed,
                    pace_s=engine.loaded.target.traits.pace_s,
                )
                put(f"{line}\n")
            if not quiet:
                _close(engine, done, sampling, drafting)
                if not (json or done.is_interrupted or done.method == "ar"):
                    _compare(engine, done, sampling, others)
    except (Stopped, KeyboardInterrupt):
        if writer.text:
            writer.end()
        say_dim("interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    if done.is_interrupted:
        raise typer.Exit(_INTERRUPTED)


def _grammar(json_schema: str | None, regex: str | None) -> Grammar | None:
    """Return the grammar of the completion. A schema that is not a JSON object is the name of its
    file. Raises BadOption."""
    if json_schema is not None and regex is not None:
        raise BadOption("--json-schema and --regex exclude each other; choose one")
    if regex is not None:
        return Grammar("regex", regex)
    if json_schema is None:
        return None
    if json_schema.lstrip().startswith("{"):
        return Grammar("json_schema", json_schema)
    try:
        return Grammar("json_schema", Path(json_schema).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(
            f"the JSON schema {json_schema} cannot be read ({error}); name a file, or write it out"
        ) from error


def messages(
    text: str, system: str | None, pictures: Sequence[ImageFile] = ()
) -> list[dict[str, Any]]:
    """Return a conversation with one user message, whose pictures come before its text."""
    first = [] if system is None else [{"role": "system", "content": system}]
    content = [*map(part_of, pictures), {"type": "text", "text": text}] if pictures else text
    return [*first, {"role": "user", "content": content}]


def _picture(path: Path) -> ImageFile:
    """Read a picture. Raises BadOption."""
    try:
        return ImageFile(path.read_bytes())
    except OSError as error:
        raise BadOption(
            f"cannot read {path} ({error.strerror}); name a picture with --image"
        ) from error


def _close(
    engine: LLM, done: StreamedCompletion, sampling: SamplingParams, draft: str | None
) -> None:
    """Print the closing lines."""
    stats = done.finished.stats
    words = [speed_line(stats), f"seed {sampling.seed}"]
    if pace_s := engine.loaded.target.traits.pace_s:
        words.append(f"paced at {seconds(pace_s)} a pass: a stand-in for a larger model")
    end = end_line(
        done.finished.finish_reason,
        is_interrupted=done.is_interrupted,
        num_context=engine.loaded.num_context,
    )
    if end:
        words.append(end)
    say("")
    say_dim("; ".join(words))
    say_dim(draft_line(stats, done.method, draft))


def _compare(
    engine: LLM, done: StreamedCompletion, sampling: SamplingParams, others: OtherPrograms
) -> None:
    """Print how the completion compares with plain decoding, which is timed for this."""
    try:
        plain_s = plain_seconds(engine, done, sampling)
    except KeyboardInterrupt:  # the completion is done: only its comparison is abandoned
        return
    num_busy = others.num_cores
    shares = engine.loaded.cores.is_shared
    say_dim(comparison(done.finished.stats, plain_s, shares_cores=shares, num_busy=num_busy))


def _prompt_text(prompt: str | None, option: str | None, file: Path | None) -> str:
    """Return the prompt: a file's text and the question about it, or standard input if there is
    neither. Raises BadOption."""
    if prompt is not None and option is not None:
        raise BadOption("a prompt and --prompt are given; leave one out")
    question = option if prompt is None else prompt
    if question == _READ_FROM_STDIN or (question is None and file is None):
        question = _standard_input()
    parts = [*([_file_text(file)] if file else []), *([question] if question is not None else [])]
    text = "\n\n".join(parts)
    if not text.strip():
        raise BadOption("the prompt is empty; write something to complete")
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _standard_input() -> str:
    """Read standard input. Raises BadOption if it is a terminal, or not text."""
    if sys.stdin is None or sys.stdin.isatty():
        raise BadOption(
            'no prompt; write one (duodec generate "Why is the sky blue?") or pipe it in'
        )
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise BadOption(
            f"standard input is not UTF-8 text (byte {error.start}); convert it first"
        ) from error


def _file_text(file: Path) -> str:
    """Read a file. Raises BadOption."""
    try:
        return file.read_text("utf-8").removesuffix("\n")
    except OSError as error:
        raise BadOption(
            f"cannot read {file} ({error.strerror}); name a text with --file"
        ) from error
    except UnicodeDecodeError as error:
        raise BadOption(
            f"{file} is not UTF-8 text (byte {error.start}); convert it first"
        ) from error
