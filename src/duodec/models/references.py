"""Parse references to files of the hub."""

from __future__ import annotations

import re
from pathlib import Path

from duodec.errors import ModelNotFound
from duodec.models.downloads.hub import HubFile

_URL = re.compile(r"https?://(?:huggingface\.co|hf\.co)/(?P<rest>.+)")
_URL_FILE = re.compile(r"(?P<repo>[^/]+/[^/]+)/(?:blob|resolve|tree)/(?P<rev>[^/]+)/?(?P<file>.*)")
_PREFIX = re.compile(r"hf://|hf:|(?:huggingface|hf)\.co/", re.IGNORECASE)
_HUB = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+?)(?:/(?P<file>[^:@]+\.gguf))?(?::(?P<quant>[\w.-]+))?"
    r"(?:@(?P<rev>[\w./-]+))?"
)


def parse_hub(reference: str) -> HubFile | None:
    """Return the hub's file that a reference names; None if it names none.

    Without a prefix only `owner/repo[:quant][@rev]` counts, and only if it cannot be a mistyped
    path. Raises ModelNotFound for `hf:` with anything else after it.
    """
    text = reference.strip()
    url = _URL.fullmatch(text)
    if url:
        page = _URL_FILE.fullmatch(url["rest"].split("?")[0])
        if page:
            return HubFile(page["repo"], page["file"] or None, None, page["rev"])
        text = f"hf:{url['rest']}"
    prefix = _PREFIX.match(text)
    body = text[prefix.end() :] if prefix else text
    parts = _HUB.fullmatch(body.rstrip("/"))
    if prefix and parts is None:
        raise ModelNotFound(
            f"no model {reference!r}: write hf:owner/repo[/file.gguf][:quant][@revision]"
        )
    if parts is None or (not prefix and _looks_like_path(body, parts)):
        return None
    return HubFile(parts["repo"], parts["file"], parts["quant"], parts["rev"])


def _looks_like_path(text: str, parts: re.Match[str]) -> bool:
    owner = text.split("/")[0]
    is_file = parts["file"] is not None or text.lower().endswith((".gguf", ".bin"))
    return is_file or owner in {"", ".", "..", "~"} or Path(owner).is_dir()
