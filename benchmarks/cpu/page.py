"""Write what a comparison found as tables: of forward passes, of decoding, and of sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks import markdown

_OURS = "duodec"
_AS_IT_LIES = "plain"
_DISTURBED = 0.15  # cores
_WORDS = {
    "plain": "no drafts",
    "repacked": "no drafts, repacked",
    "default": "its default",
    "n-grams": "n-grams",
    "draft": "a draft model",
}

Programs = list[Mapping[str, Any]]


def compared(figures: Mapping[str, Any]) -> str:
    """All tables of all models."""
    found = (passes(figures), decoding(figures), programs(figures))
    return "\n\n".join(table for table in found if table)


def passes(figures: Mapping[str, Any]) -> str:
    """Forward passes by rows, for each model."""
    parts = []
    for model in figures["models"]:
        found = [
            (_named(program, one), one)
            for program in model["programs"]
            for one in program.get("passes", ())
            if "forward_ms" in one
        ]
        if not found:
            continue
        widths = list(found[0][1]["forward_ms"])
        rows: list[list[object]] = [
            ["ms of a pass over rows", *widths, "prefill, ms a token", "logits move by"]
        ]
        for name, one in found:
            times = [f"{one['forward_ms'][width]:.1f}" for width in widths]
            prefill = f"{one['prefill_ms']:.2f}" if one["prefill_ms"] else ""
            moves = "" if one["deviation"] is None else f"{one['deviation']:.2g}"
            rows.append([name, *times, prefill, moves])
        load = _load(one for _, one in found)
        threads = f"{model['threads']} threads{load}"
        parts.append(f"**{model['model']}** ({threads})\n\n{markdown(rows)}")
    return "\n\n".join(parts)


def decoding(figures: Mapping[str, Any]) -> str:
    """Tokens a second and the rest, for each model and way to decode."""
    parts = []
    for model in figures["models"]:
        plain = next(
            (one["rate"] for _, one in _ways(model["programs"], _OURS) if "rate" in one), 0
        )
        rows: list[list[object]] = [
            ["", "drafts", "tokens/s", "over ours, no drafts", "first token, s", "memory, MB",
             "other texts"]
        ]  # fmt: skip
        found = [
            pair for pair in _ways(model["programs"]) if "rate" in pair[1] or pair[1]["reason"]
        ]
        if not found:
            continue
        rows += [_decoded(program["program"], one, plain) for program, one in found]
        draft = f"; the draft model is {model['draft']}" if model["draft"] else ""
        load = _load(one for _, one in _ways(model["programs"]))
        threads = f"{model['threads']} threads{load}"
        parts.append(f"**{model['model']}** ({threads}{draft})\n\n{markdown(rows)}")
    return "\n\n".join(parts)


def programs(figures: Mapping[str, Any]) -> str:
    """Where each program is from, its version and weights, or why it is not there."""
    rows: list[list[object]] = [["", "from", "version", "weights, by model"]]
    found: dict[str, tuple[str, str, list[str]]] = {}
    for model in figures["models"]:
        for one in model["programs"]:
            _, version, words = found.setdefault(
                one["program"], (one["source"], one.get("version", ""), [])
            )
            told = one.get("reason") or one["weights"]
            if told not in words:
                words.append(told)
            if not version and one.get("version"):
                found[one["program"]] = (one["source"], one["version"], words)
    for name, (source, version, words) in found.items():
        rows.append([name, source, version or "not there", "; ".join(words)])
    return markdown(rows)


def _load(found: Iterable[Mapping[str, Any]]) -> str:
    """That other programs disturbed it, if they did."""
    most = max((one.get("other_cores", 0.0) for one in found), default=0.0)
    return f"; other programs kept up to {most:.1f} cores busy" if most >= _DISTURBED else ""


def _ways(
    programs: Programs, name: str | None = None
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for program in programs:
        if name in (None, program["program"]):
            yield from ((program, one) for one in program.get("ways", ()))


def _decoded(name: str, one: Mapping[str, Any], plain: float) -> list[object]:
    words = _WORDS.get(one["way"], one["way"])
    if "rate" not in one:
        return [name, words, one["reason"], "", "", "", ""]
    over = f"{one['rate'] / plain:.2f}" if plain else ""
    texts = f"{one['num_other_texts']} of {one['num_texts']}"
    bold = "**" if name == _OURS else ""
    return [
        f"{bold}{name}{bold}", words, f"{one['rate']:.1f}", over, f"{one['first_s']:.2f}",
        f"{one['peak_mb']:.0f}", "" if one["way"] in (_AS_IT_LIES, "repacked") else texts,
    ]  # fmt: skip


def _named(program: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    name = program["program"]
    bold = "**" if name == _OURS else ""
    way = "" if one["way"] == _AS_IT_LIES else f", {one['way']}"
    return f"{bold}{name}{way}{bold}"
