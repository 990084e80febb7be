"""Make the pictures of docs/gallery.md from real runs: python scripts/gallery.py

Needs what `make test-page` installs. SmolLM2 decodes on this machine; the target of the terminal's
and the page's pictures is slowed to 50 ms a forward pass, and the report's is simulated.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from shutil import which
from typing import Any

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright
from rich.console import Console
from rich.text import Text

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
DUODEC = (sys.executable, "-m", "duodec")
PACE = ("--pace", "0.05")
WIDE, PHONE = {"width": 1100, "height": 700}, {"width": 390, "height": 700}
COLUMNS = 100
WAIT_MS = 60_000
QUESTION = "Write a Python function that reverses a list, and explain it."
_NUM_COLOURS = 128
_SPINS = re.compile("[\u2800-\u28ff]")  # what a terminal erases again
_TERMINAL = """<body style="margin: 0"><pre style="margin: 0; padding: 14px; width: max-content;
font: 14px/1.4 monospace; background: {background}; color: {foreground}">{code}</pre></body>"""


def main() -> None:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=WIDE)
        with served() as url:
            chat(page, url)
        terminal(page, "gallery-run", "run", "smollm2", QUESTION, "-n", "120", "--show-draft",
                 "--method", "stream", *PACE)  # fmt: skip
        terminal(page, "gallery-demo", "demo", *PACE)
        report(page)
        browser.close()


def chat(page: Page, url: str) -> None:
    """While an answer streams, and when it is there; on a phone, in the dark."""
    page.goto(url)
    expect(page.locator("#model")).to_contain_text("with a draft model", timeout=WAIT_MS)
    page.locator("#tint").check()
    page.get_by_text(QUESTION).click()
    expect(page.locator("#live")).to_contain_text(re.compile(r"\d\d tokens ·"), timeout=WAIT_MS)
    shot(page, "gallery-streams")
    expect(page.locator("#send")).to_have_text("Send", timeout=WAIT_MS)
    shot(page, "gallery-page")
    page.set_viewport_size(PHONE)
    page.evaluate("document.getElementById('chat').scrollTop = 1e6")
    page.emulate_media(color_scheme="dark")
    shot(page, "gallery-phone")
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")


def terminal(page: Page, name: str, *command: str) -> None:
    """What a command writes to a terminal."""
    with StringIO() as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi("$ duodec " + " ".join(map(quoted, command))))
        console.print(Text.from_ansi(typed(*command)))
        page.set_content(console.export_html(inline_styles=True, code_format=_TERMINAL))
    shot(page.locator("pre"), name)


def report(page: Page) -> None:
    """The first screen of a report."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*DUODEC, "bench", "--methods", "ar,sps:4,lookup,duo,auto", "--tasks",
             "humaneval", "--limit", "5", "-n", "48", "--simulate-ms",
             "rtx4090-8b-bf16", "--draft-ms", "1:1.4,2:1.6,4:1.9,8:2.9,16:5.1,32:10,64:20.5",
             "--host-us", "copy:8,draw:120,candidates:60,selection:40", "--output", folder],
            check=True,
        )  # fmt: skip
        page.set_viewport_size({"width": 1100, "height": 1000})
        page.goto((Path(folder) / "report.html").as_uri())
        shot(page, "gallery-report")


@contextmanager
def served() -> Iterator[str]:
    """The address of a server of SmolLM2."""
    command = [*DUODEC, "serve", *PACE, "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        for line in server.stderr:
            if found := re.search(r"http://\S+?(?=[,;]? )", line):
                yield found[0]
                return
        sys.exit("the server did not start")
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate()


def typed(*command: str) -> str:
    """What a command writes, standard error too, to a terminal of so many columns."""
    ours, its = pty.openpty()
    env = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    process = subprocess.Popen([*DUODEC, *command], stdin=its, stdout=its, stderr=its, env=env)
    os.close(its)
    text = b""
    while True:
        try:
            text += os.read(ours, 65536)
        except OSError:  # the end of a terminal
            break
    if process.wait():
        sys.exit(f"{command[0]} failed: {text.decode()}")
    lines = re.split(r"\r*\n", re.sub(r"\x1b\[[\d?]*[A-HJKlhf]", "", text.decode()))
    kept = (line.rpartition("\r")[2] for line in lines if not _SPINS.search(line))
    return "\n".join(kept).strip()


def shot(place: Any, name: str) -> None:
    """Of a page or a part of it, in few colours: small."""
    file = FIGURES / f"{name}.png"
    place.screenshot(path=file)
    with Image.open(file) as image:
        image.convert("RGB").quantize(_NUM_COLOURS).save(file, optimize=True)


def quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word


if __name__ == "__main__":
    main()
