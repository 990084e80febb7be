"""The chat page in a real browser: in each of its states axe finds nothing, and it fits.

`make test-page` installs what drives Chromium; the pictures are in the folders of `tmp_path`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fakes.server import MODEL, Running, Slowed, engine_on_tables, running

from duodec.llm import LLM
from duodec.server.models.registry import Source

api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: make test-page"
)
axe = pytest.importorskip(
    "axe_playwright_python.base", reason="axe is not installed: make test-page"
)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine: apt install chromium"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
SIZES = ((1280, 800), (768, 1024), (390, 780))
TIMEOUT_MS = 20_000
GATE = Event()  # while it is not set, the target computes nothing
GATE.set()
RICH = r"""# Sorting

A **merge sort** takes $O(n \log n)$ comparisons:

$$T(n) = 2T\left(\frac{n}{2}\right) + n$$

```python
def merge(a: list[int], b: list[int]) -> list[int]:
    out = []  # the result
    while a and b:
        out.append(a.pop(0) if a[0] <= b[0] else b.pop(0))
    return out + a + b
```

| n | steps |
|---|---|
| 8 | 24 |

> It costs [$5](https://example.org) and <b>no</b> more.
"""


def node(role: str, content: str, parent: int, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "parent": parent, **more}


def facts(verdict: str) -> dict[str, Any]:
    return {"verdict": verdict, "sources": [34, 21, 60], "words": "115 tokens · 42.3 tokens/s"}


SORTING = {"title": "", "leaf": 3, "nodes": [
    node("user", "How does merge sort work?", -1),
    node("assistant", "Like this.", 0, facts="3 tokens"),
    node("user", "How does merge sort work, with code?", -1),
    node("assistant", RICH, 2, drafted=[[0, 9, "draft model"], [14, 40, "earlier text"]],
         facts=facts("2.1\u00d7 plain decoding")),
]}  # fmt: skip
UNPAID = "0.70\u00d7 plain decoding: drafts do not pay here"
WHALES = {"title": "Whales", "leaf": 1, "nodes": [
    node("user", "Tell me of whales", -1),
    node("assistant", "They are large.", 0, facts=facts(UNPAID)),
]}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    engine = engine_on_tables(num_context=4000)
    with running(engine, Slowed(engine.loaded.target, 0.005, lambda _: GATE.wait(60))) as server:
        yield server


@pytest.fixture(autouse=True)
def flows() -> Iterator[None]:
    yield
    GATE.set()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of an empty browser; no script fails, and nothing is fetched from elsewhere."""
    context = browser.new_context(viewport={"width": SIZES[0][0], "height": SIZES[0][1]})
    context.set_default_timeout(TIMEOUT_MS)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not own(request.url) else None)
    page.on("console", lambda said: wrong.append(said.text) if "Content Sec" in said.text else None)
    yield page
    context.close()
    assert not wrong


def own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:"))


def expect(page: Any, selector: str) -> Any:
    return api.expect(page.locator(selector).last)


def opened(page: Any, server: Running, *chats: Any) -> None:
    """The page, with these conversations of before."""
    keep = "([name, chats]) => localStorage.setItem(name, chats)"
    page.goto(server.url)
    if chats:
        page.evaluate(keep, ["duodec.chat", json.dumps(chats[0])])
        page.evaluate(keep, ["duodec.chats", json.dumps(chats[1:])])
        page.reload()
    expect(page, "#model").to_have_text("tables with a draft model", timeout=TIMEOUT_MS)


def say(page: Any, words: str, most: int = 40) -> None:
    page.locator("#max_tokens").evaluate("(e, most) => { e.value = most; }", most)
    page.locator("#seed").evaluate("e => { e.value = 1; }")
    page.locator("#method").evaluate("e => { e.value = 'stream'; }")
    page.locator("#text").fill(words)
    page.locator("#text").press("Enter")


def answered(page: Any) -> None:
    expect(page, "#send").to_have_text("Send", timeout=TIMEOUT_MS)


def side(page: Any) -> None:
    if page.locator("#menu").is_visible() and not page.locator("#find").is_visible():
        page.locator("#menu").click()


# --- the states: each brings the page there


def empty(page: Any, server: Running) -> None:
    opened(page, server)
    assert page.locator(".try").count() == 3


def finished(page: Any, server: Running) -> None:
    opened(page, server, SORTING, WHALES)
    page.locator("#tint").check()
    expect(page, ".facts").to_contain_text("2.1\u00d7 plain decoding")
    assert page.locator(".drafted").count() > 1
    assert page.locator("math").count() == 2
    assert page.locator("main b").count() == 0
    assert page.locator(".hljs-keyword").count() > 1


def not_paying(page: Any, server: Running) -> None:
    opened(page, server, WHALES)
    expect(page, ".facts").to_contain_text(UNPAID)


def streaming(page: Any, server: Running) -> None:
    opened(page, server)
    say(page, "hello", 3000)
    expect(page, "#live").to_contain_text("tokens/s", timeout=TIMEOUT_MS)
    GATE.clear()


def cut(page: Any, server: Running) -> None:
    opened(page, server)
    say(page, "hello")
    expect(page, ".facts").to_contain_text("cut off by the limit of 40 tokens", timeout=TIMEOUT_MS)
    api.expect(page.get_by_text("continue", exact=True)).to_be_visible()


def edited(page: Any, server: Running) -> None:
    opened(page, server, SORTING)
    page.get_by_text("edit", exact=True).click()
    expect(page, ".editor").to_have_value("How does merge sort work, with code?")


def branch(page: Any, server: Running) -> None:
    opened(page, server, SORTING)
    page.get_by_label("the version before").click()
    expect(page, ".count").to_have_text("1 of 2")
    expect(page, ".assistant").to_have_text("Like this.")


def dead(page: Any, server: Running) -> None:
    opened(page, server, WHALES)
    page.context.route(re.compile("/(health|v1/)"), lambda route: route.abort())
    say(page, "Are you there?")
    expect(page, "#trouble").to_contain_text("does not answer")
    expect(page, "#text").to_have_value("Are you there?")


def loading(page: Any, server: Running) -> None:
    wait = json.dumps({"status": "loading model"})
    page.context.route("**/health", lambda route: route.fulfill(status=503, body=wait))
    page.goto(server.url)
    expect(page, "#model").to_contain_text("loading model")
    expect(page, "#progress").to_be_visible()


def searched(page: Any, server: Running) -> None:
    opened(page, server, SORTING, WHALES)
    side(page)
    page.locator("#find").fill("large")
    api.expect(page.locator("button.open")).to_have_text(["Whales"])


def not_found(page: Any, server: Running) -> None:
    opened(page, server, SORTING, WHALES)
    side(page)
    page.locator("#find").fill("zebra")
    expect(page, "#none").to_be_visible()


def renamed(page: Any, server: Running) -> None:
    opened(page, server, SORTING, WHALES)
    side(page)
    page.get_by_label("rename Whales").click()
    expect(page, ".renamed").to_have_value("Whales")


def settings(page: Any, server: Running) -> None:
    opened(page, server, SORTING)
    page.locator("summary").click()
    expect(page, "#temperature").to_be_visible()


def refused(page: Any, server: Running) -> None:
    opened(page, server, WHALES)
    say(page, "x" * 5000)
    expect(page, ".error").to_contain_text("context holds 4000")
    expect(page, "#text").to_have_value("x" * 5000)


def key_missing(page: Any, server: Running) -> None:
    page.context.route("**/v1/models", lambda route: route.fulfill(status=401, body="{}"))
    page.goto(server.url)
    expect(page, "#ask").to_be_visible()


STATES: Sequence[Callable[[Any, Running], None]] = (
    empty, streaming, finished, not_paying, cut, edited, branch, dead, loading, searched, not_found,
    renamed, settings, refused, key_missing,
)  # fmt: skip
OF_SIDE = (searched, not_found, renamed)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_axe_finds_nothing_and_it_fits(
    state: Callable[[Any, Running], None], server: Running, page: Any, tmp_path: Path
) -> None:
    state(page, server)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        if state in OF_SIDE:
            side(page)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.screenshot(path=tmp_path / f"{state.__name__}-{width}-{scheme}.png")
            page.evaluate(axe.AXE_SCRIPT)
            found = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
            assert not found, axe.AxeResults({"violations": found}).generate_report()
            fits = "document.documentElement.scrollWidth <= innerWidth"
            assert page.evaluate(fits), "nothing scrolls sideways"


def test_an_answer_that_is_stopped_stays(server: Running, page: Any) -> None:
    streaming(page, server)
    page.locator("#stop").click()
    answered(page)
    expect(page, ".facts").to_have_text("stopped")
    words = page.locator(".assistant").text_content()
    page.reload()
    expect(page, ".assistant").to_have_text(words)


def test_an_answer_goes_on_where_the_limit_cut_it(server: Running, page: Any) -> None:
    cut(page, server)
    before = page.locator(".assistant").text_content()
    page.get_by_text("continue", exact=True).click()
    expect(page, ".facts").to_contain_text("limit of 80 tokens", timeout=TIMEOUT_MS)
    assert page.locator(".assistant").text_content().startswith(before)
    expect(page, ".count").to_have_text("2 of 2")


def test_an_edited_message_stands_beside_the_old_one(server: Running, page: Any) -> None:
    opened(page, server, SORTING)
    num_messages = page.locator(".message").count()
    page.get_by_text("edit", exact=True).click()
    page.keyboard.press("Escape")
    expect(page, ".user").to_have_text("How does merge sort work, with code?")
    page.get_by_text("edit", exact=True).click()
    page.locator(".editor").fill("And quicksort?")
    page.locator(".editor").press("Enter")
    answered(page)
    expect(page, ".user").to_have_text("And quicksort?")
    assert page.locator(".message").count() == num_messages
    page.reload()
    expect(page, ".can.mine .count").to_have_text("3 of 3")
    page.get_by_label("the version before").first.click()
    expect(page, ".user").to_have_text("How does merge sort work, with code?")


def test_a_server_that_dies_is_named_and_found_again(page: Any) -> None:
    engine = engine_on_tables(num_context=4000)
    with running(engine, Slowed(engine.loaded.target, 0.005)) as first:
        opened(page, first)
        say(page, "hello", 3000)
        expect(page, "#live").to_contain_text("tokens/s", timeout=TIMEOUT_MS)
        first.server.force_exit = True
    expect(page, "#trouble").to_contain_text("does not answer", timeout=TIMEOUT_MS)
    expect(page, ".facts").to_contain_text("broken off")
    with running(engine_on_tables(num_context=4000), port=int(first.url.rpartition(":")[2])):
        expect(page, "#banner").to_be_hidden(timeout=TIMEOUT_MS)
        say(page, "again")
        expect(page, ".facts").to_contain_text("40 tokens", timeout=TIMEOUT_MS)


def test_another_model_is_picked_and_its_loading_shown(page: Any, tmp_path: Path) -> None:
    loads = Event()

    def other(taken: int) -> LLM:
        assert loads.wait(60)
        return engine_on_tables()

    sources = {MODEL: Source(lambda taken: engine_on_tables()), "other": Source(other)}
    with running(is_loaded=False, sources=sources, num_models=2) as server:
        server.service.start()
        page.goto(server.url)
        api.expect(page.locator("#pick option")).to_have_text([MODEL, "other"])
        page.locator("#pick").select_option("other")
        say(page, "hello")
        expect(page, "#live").to_contain_text("loading other", timeout=TIMEOUT_MS)
        expect(page, "#progress").to_be_visible()
        page.screenshot(path=tmp_path / "loading-other.png")
        loads.set()
        expect(page, ".facts").to_contain_text("40 tokens", timeout=TIMEOUT_MS)


def test_a_key_is_asked_for_and_taken(browser: Any, page: Any) -> None:
    with running(engine_on_tables(), api_keys=("secret",)) as server:
        page.goto(server.url)
        page.locator("#key").fill("secret")
        page.locator("#key").press("Tab")
        expect(page, "#ask").to_be_hidden()
        expect(page, "#model").to_contain_text("tables")


def test_a_phone_held_across_keeps_room_for_messages(server: Running, page: Any) -> None:
    opened(page, server, SORTING)
    page.set_viewport_size({"width": 844, "height": 390})
    assert page.locator("main").bounding_box()["height"] >= 390 * 0.4
