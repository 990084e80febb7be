"""Agents complete their loops: each reads a file by a call of its tool, and says what it read.

They are other people's programs, unchanged, against our server, whose model follows a script: what
is tried is the interface, not what a small model thinks of. Where the system allows it, they have
no network but this machine's own. `make test-clients` installs them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes import ROOT
from fakes.scripted import scripted
from fakes.server import Running, running

from duodec.scheduler.scheduled_request import ScheduledRequest

NODE = ROOT / "build" / "clients" / "node_modules"
AIDER = Path(os.environ.get("AIDER_VENV", ROOT / ".venv-aider"), "bin", "aider")
CONTEXT = 1_000_000  # tokens, which are characters here
SECRET, ASKED = "marmalade", "Read notes.txt and tell me the secret word."
SAID = f"The secret word is {SECRET}."
_MOST_S = 240
_LEAST = 10_000  # tokens of a prompt with tools; a title's has fewer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * _MOST_S)]


@dataclass(frozen=True)
class Agent:
    """A client: where it is, how it is started in a folder with the file, and which tool it has."""

    program: Path
    arguments: tuple[str, ...]
    tool: str
    call: Callable[[Path], dict[str, str]]
    variables: dict[str, str] = field(default_factory=dict)  # {url}: the server's
    files: dict[str, str] = field(default_factory=dict)  # below its home, or in the folder


def _file(name: str) -> Callable[[Path], dict[str, str]]:
    return lambda folder: {name: str(folder / "notes.txt")}


CODEX = """
model = "duodec"
model_provider = "duodec"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
plugins = false
apps = false
remote_plugin = false
[model_providers.duodec]
name = "duodec"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "DUODEC_KEY"
"""
OPENCODE = json.dumps({
    "autoupdate": False, "share": "disabled", "model": "duodec/m", "small_model": "duodec/m",
    "provider": {"duodec": {
        "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{url}/v1", "apiKey": "none"},
        "models": {"m": {"tool_call": True, "limit": {"context": CONTEXT, "output": 4096}}},
    }},
})  # fmt: skip
QWEN = json.dumps({
    "privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False}, "security": {"auth": {"selectedType": "openai"}},
})  # fmt: skip
AGENTS = {
    "codex": Agent(
        NODE / ".bin" / "codex",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ASKED),
        "exec_command", lambda folder: {"cmd": "cat notes.txt"},
        variables={"DUODEC_KEY": "none"},
        files={".codex/config.toml": CODEX},
    ),
    "claude": Agent(
        NODE / "@anthropic-ai" / "claude-code" / "bin" / "claude.exe",
        ("-p", ASKED, "--allowedTools", "Read"), "Read", _file("file_path"),
        variables={
            "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "duodec", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    "opencode": Agent(
        NODE / "opencode-ai" / "bin" / "opencode.exe", ("run", ASKED), "read", _file("filePath"),
        variables={
            "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        files={".config/opencode/opencode.json": OPENCODE},
    ),
    "qwen": Agent(
        NODE / ".bin" / "qwen", ("-p", ASKED, "--approval-mode", "yolo"), "read_file",
        _file("file_path"),
        variables={
            "OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "duodec"
        },
        files={".qwen/settings.json": QWEN},
    ),
}  # fmt: skip


def ran(agent: Agent, server: Running, home: Path, folder: Path) -> str:
    """What an agent prints. Its environment has nothing of ours."""
    own = {name: value.replace("{url}", server.url) for name, value in agent.variables.items()}
    for name, text in agent.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text.replace("{url}", server.url))
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm", "NO_COLOR": "1", **own}
    done = subprocess.run(
        [str(agent.program), *agent.arguments], cwd=folder, env=env, timeout=_MOST_S, check=False,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", AGENTS)
def test_a_loop_is_completed_and_a_turn_computes_its_new_tokens(name: str, tmp_path: Path) -> None:
    agent = AGENTS[name]
    if not agent.program.exists():
        pytest.skip(f"{name} is not installed: make test-clients")
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    (folder / "notes.txt").write_text(f"{SAID}\n")
    call = json.dumps({"name": agent.tool, "arguments": agent.call(folder)})

    def script(prompt: str) -> str:
        if f'"name": "{agent.tool}"' not in prompt:  # it wants a title
            return "Notes"
        return SAID if SECRET in prompt else f"<tool_call>\n{call}\n</tool_call>"

    turns: list[tuple[int, int]] = []  # tokens of the prompt, and those that were known
    engine = scripted(script, CONTEXT)
    with running(engine) as server:
        ended = engine.scheduler.on_end

        def noted(entry: ScheduledRequest, reason: str) -> None:
            turns.append((len(entry.request.prompt), entry.num_cached))
            ended(entry, reason)

        engine.scheduler.on_end = noted
        assert SAID in ran(agent, server, home, folder)
    (num_first, _), (num_second, num_known) = (turn for turn in turns if turn[0] > _LEAST)
    assert num_first <= num_known < num_second


@pytest.mark.skipif(not AIDER.exists(), reason="aider is not installed: make test-clients")
def test_aider_edits_a_file(tmp_path: Path) -> None:
    (tmp_path / "add.py").write_text("def add(a, b):\n    return a - b\n")
    text = "add.py\n```\ndef add(a, b):\n    return a + b\n```\n"
    with running(scripted(lambda prompt: text, CONTEXT)) as server:
        command = [
            str(AIDER), "--model", "openai/duodec", "--edit-format", "whole", "--no-git", "--yes",
            "--no-check-update", "--analytics-disable", "--no-show-model-warnings",
            "--no-gitignore", "--message", "Mend add.", "add.py",
        ]  # fmt: skip
        env = {
            "PATH": os.environ["PATH"], "HOME": str(tmp_path), "OPENAI_API_KEY": "none",
            "OPENAI_API_BASE": f"{server.url}/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=tmp_path, env=env, timeout=_MOST_S, check=False, capture_output=True,
            text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert "a + b" in (tmp_path / "add.py").read_text(), done.stdout[-2000:] + done.stderr[-2000:]
