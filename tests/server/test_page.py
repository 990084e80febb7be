"""The chat page in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.server import Running, Slowed, engine_on_tables, running

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    engine = engine_on_tables(num_context=4000)
    with running(engine, Slowed(engine.target, 0.005)) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("size", [(1280, 800), (390, 780), (844, 390)])
def test_a_conversation(
    server: Running, browser: Any, size: tuple[int, int], tmp_path: Path
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(server.url)
    api.expect(page.locator("#model")).to_have_text("tables with a draft model")
    page.locator("summary").click()
    page.locator("#max_tokens").fill("60")
    page.locator("#seed").fill("1")
    page.locator("#method").select_option("stream")
    page.locator("summary").click()
    page.locator("#tint").check()
    page.locator("#text").fill("hello")
    page.locator("#text").press("Enter")
    facts = page.locator(".facts")
    api.expect(facts).to_contain_text("60 tokens", timeout=20_000)
    assert re.search(
        r"tokens/s · first after \d+ ms · \d+ of \d+ drafts accepted", facts.text_content()
    )
    api.expect(facts).to_contain_text("stream · seed 1")
    assert page.locator(".drafted").count() > 0
    tint = page.locator(".drafted").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert tint != "rgba(0, 0, 0, 0)"
    page.screenshot(path=tmp_path / f"page-{size[0]}.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits"
    # a second message, stopped in the middle
    page.locator("#max_tokens").evaluate("e => { e.value = 3000; }")
    page.locator("#text").fill("more")
    page.locator("#send").click()
    api.expect(page.locator("#live")).to_contain_text("tokens/s", timeout=20_000)
    page.screenshot(path=tmp_path / f"live-{size[0]}.png")
    page.locator("#stop").click()
    api.expect(page.locator("#send")).to_have_text("Send")
    api.expect(page.locator(".facts").last).to_have_text("stopped")
    # a reload keeps the conversation
    num_messages = page.locator(".message").count()
    page.reload()
    api.expect(page.locator(".message")).to_have_count(num_messages)
    # an error is said
    page.locator("#text").fill("x" * 5000)
    page.locator("#send").click()
    api.expect(page.locator("#text")).to_have_value("x" * 5000)
    api.expect(page.locator(".error")).to_contain_text("context holds 4000")
    page.locator("#text").fill("")
    assert page.locator("main").bounding_box()["height"] >= size[1] * 0.4, "messages have room"
    if page.locator("#menu").is_visible():
        page.locator("#menu").click()
    page.locator("#clear").click()
    assert page.locator(".message").count() == 0
    assert page.locator(".try").count() == 3
    assert all(url.startswith((server.url, "data:")) for url in asked)
    assert not wrong
    page.close()


def test_markdown_and_a_missing_key(browser: Any, tmp_path: Path) -> None:
    with running(engine_on_tables(), api_keys=("secret",)) as server:
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 844, "height": 390}, color_scheme=scheme)
            page.goto(server.url)
            api.expect(page.locator("#ask")).to_be_visible()
            page.evaluate(
                "words => localStorage.setItem('duodec.chat', JSON.stringify("
                "[{role: 'user', content: 'hi'}, {role: 'assistant', content: words}]))",
                "# Title\n\n- **one**\n- two\n\n```js\nlet a = 1;\n```\n\n<b>no</b>"
                "\n\n| a | b |\n|---|---|\n| 1 | 2 |",
            )
            page.reload()
            api.expect(page.locator("main strong")).to_have_text("one")
            api.expect(page.locator("main pre code")).to_have_text("let a = 1;\n")
            assert page.locator("main b").count() == 0
            page.screenshot(path=tmp_path / f"markdown-{scheme}.png")
            page.locator("#key").fill("secret")
            page.locator("#key").press("Tab")
            api.expect(page.locator("#ask")).to_be_hidden()
            api.expect(page.locator("#model")).to_contain_text("tables")
            page.screenshot(path=tmp_path / f"across-{scheme}.png")
            page.close()
