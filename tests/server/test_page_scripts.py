"""The chat page's scripts, under Node on a document of our own, and what a browser lets them do."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: make setup")

from duodec.server.page import chat_page, content_policy

HERE = Path(__file__).parent
KEPT = Path(str(files("duodec.server"))) / "web" / "kept"
NODE = shutil.which("node")
TESTS = re.findall(
    r"^  (?:async )?(\w+)\(\) \{$", (HERE / "page_tests.cjs").read_text(), re.MULTILINE
)


@pytest.mark.slow
@pytest.mark.skipif(NODE is None, reason="no node on this machine")
@pytest.mark.parametrize("name", TESTS)
def test_under_node(name: str) -> None:
    assert NODE is not None
    done = subprocess.run(
        [NODE, str(HERE / "page_tests.cjs"), name], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_page_is_whole_and_fetches_nothing_from_elsewhere() -> None:
    page = chat_page()
    assert all(name in page for name in ("renderMarkdown", "const Chats", "katex", "hljs"))
    assert "/*" + "page.css*/" not in page
    for library in KEPT.glob("*.js"):
        text = library.read_text("utf-8")
        assert text in page
        page = page.replace(text, "")  # the policy forbids it to fetch anything
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", page)
    assert "innerHTML" not in page, "an answer never becomes HTML"


def test_libraries_that_are_kept_are_small_and_have_their_licences() -> None:
    licences = (KEPT / "LICENSE").read_text("utf-8")
    for library in KEPT.glob("*.js"):
        assert re.search(rf"(?m)^{re.escape(library.name)}: \S+ [\d.]+, https://", licences)
    assert "BSD 3-Clause" in licences
    assert "MIT License" in licences
    assert len(chat_page()) < 500_000


def test_a_browser_runs_our_scripts_and_no_others() -> None:
    policy = content_policy()
    for script in re.findall(r"<script>(.*?)</script>", chat_page(), re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_a_phone_held_across_is_thought_of() -> None:
    assert "@media (max-height:" in chat_page()
    assert "width=device-width" in chat_page()
