"""Chat templates come with model files: one that never ends, or never fits, ends nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from fakes.server import until

from duodec.chat import template
from duodec.chat.template import render
from duodec.chat.template_renderer import TemplateRenderer
from duodec.errors import BadOption

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Iterator[TemplateRenderer]:
    """With a limit that tests can wait for."""
    renderer = TemplateRenderer(limit_s=0.5)
    monkeypatch.setattr(template, "TEMPLATE_RENDERER", renderer)
    yield renderer
    renderer.close()


LOOPS = "".join(f"{{% for {name} in range(99999) %}}" for name in "abcd") + "{% endfor %}" * 4
ENDLESS = {
    "loops that write nothing": LOOPS,
    "a number of a billion digits": "{% if 7 ** (10 ** 10) %}{% endif %}",
    "calls that double": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}"
    ),
}
HUGE = {
    "strings that double": (
        "{% set n = namespace(s='x' * 1000) %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}"
        "{% endfor %}"
    ),
    "a string of ten billion": "{{ 'x' * 10 ** 10 }}",
    "a format of ten billion": "{{ '%10000000000d' % 1 }}",
    "lists that double": (
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}"
        "{% set n.s = n.s + n.s %}{% endfor %}"
    ),
    "long output": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
}


@pytest.mark.parametrize("name", [*ENDLESS, *HUGE])
def test_a_template_without_bound_is_refused(renderer: TemplateRenderer, name: str) -> None:
    template = {**ENDLESS, **HUGE}[name]
    with pytest.raises(BadOption, match="in place of `messages`"):
        render(template, MESSAGES, bos="", eos="")
    assert render("{{ messages[0].content }}", MESSAGES, bos="", eos="") == "Hi"


def test_what_takes_too_long_is_said(renderer: TemplateRenderer) -> None:
    with pytest.raises(BadOption, match=r"takes longer than 0\.5 s"):
        render(LOOPS, MESSAGES, bos="", eos="")


def test_threads_render_at_once(renderer: TemplateRenderer) -> None:
    def written(i: int) -> bool:
        said = [{"role": "user", "content": f"{i}" * 5000}]
        return render("{{ messages[0].content }}!", said, bos="", eos="") == f"{i}" * 5000 + "!"

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(written, range(40)))


def is_rendering(process: psutil.Process) -> bool:
    return "jinja.py" in " ".join(process.cmdline())


def test_a_prompt_that_takes_long_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = TemplateRenderer(limit_s=240)
    monkeypatch.setattr(template, "TEMPLATE_RENDERER", renderer)
    here = psutil.Process()
    others = set(here.children())  # of other tests
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(render, LOOPS, MESSAGES, bos="", eos="")
        until(lambda: any(map(is_rendering, set(here.children()) - others)))  # it has begun
        assert render("{{ messages[0].content }}", MESSAGES, bos="", eos="") == "Hi"
        assert not slow.done()
        for child in filter(is_rendering, set(here.children()) - others):
            child.kill()
        with pytest.raises(BadOption, match="ended its process"):
            slow.result()
    renderer.close()


def test_texts_arrive_whole(renderer: TemplateRenderer) -> None:
    for text in ("é👩🏽\u200d🚀\x00\r\n", "lone \ud800", "", "x" * 3_000_000):
        said = [{"role": "user", "content": text}]
        assert render("{{ messages[0].content }}", said, bos="", eos="") == text


def test_values_that_cannot_be_passed_on_are_refused(renderer: TemplateRenderer) -> None:
    with pytest.raises(BadOption, match="in place of `messages`"):
        render("a", [{"role": "user", "content": lambda: None}], bos="", eos="")


def test_a_process_that_died_idle_is_replaced(renderer: TemplateRenderer) -> None:
    assert render("a", MESSAGES, bos="", eos="") == "a"
    (helper,) = renderer._idle
    child = helper._child
    assert child is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
    assert render("a", MESSAGES, bos="", eos="") == "a"
