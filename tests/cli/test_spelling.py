"""An option that is wrong is named as it was typed."""

from __future__ import annotations

import pytest

from duodec.cli import app


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--temp -1", "--temp is -1.0; use 0 (greedy) or more"),
        ("--temperature=-1", "--temperature is -1.0; use 0 (greedy) or more"),
        ("--top_p 3", "--top_p is 3.0; use a value above 0 and up to 1 (off)"),
        ("-n 0", "-n is 0; use 1 or more"),
        ("--max-new-tokens 0", "--max-new-tokens is 0; use 1 or more"),
        ("-c 0", "-c is 0; use 1 or more"),
        ("--temp hot", "--temp is 'hot': "),
        ("-n x", "-n is 'x': "),
        ("--max_tokns 3", "No such option: --max_tokns"),
        ("-md", "Option '-md' requires an argument; see duodec generate --help"),
        ("--log-level loud", "--log-level is 'loud'; choose from: debug, info, warning, error"),
    ],
)
def test_the_line_names_what_was_typed(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert app.run(["generate", "hi", *arguments.split()]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"duodec: {line}"), err
    assert err.count("\n") == 1
