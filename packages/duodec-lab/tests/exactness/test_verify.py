"""`duodec verify` finds planted faults, and passes what is sound."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.decoding import Letters
from fakes.server import engine_on_tables, running
from tests.models.weights import weights

from duodec.cli.app import run
from duodec.core.verify import Verdict, verify
from duodec.methods import loops
from duodec_lab.exactness.audit import Audit, Limits
from duodec_lab.exactness.audit import run as run_checks
from duodec_lab.exactness.checks import CHECKS
from duodec_lab.exactness.endpoint import Call, Case, Endpoint, Reply, Step, Trouble, _whole
from duodec_lab.exactness.judging import (
    DIFFERS,
    FAILED,
    NEAR_TIE,
    NOT_SERVED,
    SAME,
    WRONG,
    Response,
    judged,
    logprobs_agree,
)

SOUND = ("--prompts", "3", "--max-tokens", "60", "--quiet")
FAULTY = ("--prompts", "7", "--max-tokens", "120", "--checks", "greedy,logprobs", "--quiet")
A, B = (Endpoint(name, f"http://{name}", "m") for name in "AB")
CASE = Case("case", "completions", {"prompt": "P", "max_tokens": 20})


class Visible(Letters):
    """Every token is seen in the text."""

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        return [
            self.eos if c == "#" else super(Visible, self).tokenize(c, is_templated=False)[0]
            for c in text
        ]

    def piece(self, token: int) -> bytes:
        return super().piece(token) or b"#"


def served(method: str = "sps", **settings: Any) -> Any:
    """A server on tables, whose texts are letters, with space for whole prompts."""
    return running(
        engine_on_tables(num_context=6000, tokenizer=Visible()), method=method, **settings
    )


@pytest.mark.slow
def test_a_sound_server_passes(tmp_path: Path) -> None:
    with served() as drafting, served("ar") as plain:
        assert run(["verify", drafting.url, plain.url, *SOUND, "-o", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "verify.json").read_text("utf-8"))
    found = {(f["check"], f["verdict"]) for f in record["findings"]}
    # tools are refused by these tables' template: the rest is compared, and all of it is the same
    assert {check for check, verdict in found if verdict == SAME} == CHECKS.keys() - {"tools"}
    assert {verdict for _, verdict in found} == {SAME, NOT_SERVED}
    page = (tmp_path / "verify.html").read_text("utf-8")
    assert "No fault in" in page
    assert drafting.url in page


def dropped(verdict: Verdict) -> Verdict:
    """The last draft token never reaches the text."""
    return replace(verdict, accepted=verdict.accepted[:-1])


def doubled(verdict: Verdict) -> Verdict:
    return replace(verdict, accepted=(*verdict.accepted, verdict.accepted[-1]))


def mistaken(verdict: Verdict) -> Verdict:
    """Another token takes the last draft token's place."""
    other = (verdict.accepted[-1] + 1) % 20
    return replace(verdict, accepted=(*verdict.accepted[:-1], other))


def plant(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Verdict], Verdict]) -> None:
    """Once in 500 tokens, in the next round that accepts any."""
    count = [0, 0]

    def faulty(*arguments: Any) -> Verdict:
        verdict = verify(*arguments)
        count[0] += len(verdict.tokens)
        if verdict.accepted and count[0] // 500 > count[1]:
            count[1] = count[0] // 500
            return fault(verdict)
        return verdict

    monkeypatch.setattr(loops, "verify", faulty)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "has_other"),
    [(dropped, False), (dropped, True), (doubled, False), (mistaken, True)],
)
def test_a_fault_once_in_500_tokens_is_found(
    fault: Callable[[Verdict], Verdict],
    has_other: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with served() as faulty, served("ar") as plain:
        plant(monkeypatch, fault)
        urls = [faulty.url, plain.url] if has_other else [faulty.url]
        assert run(["verify", *urls, *FAULTY, "-o", str(tmp_path)]) == 1
    record = json.loads((tmp_path / "verify.json").read_text("utf-8"))
    wrong = [f for f in record["findings"] if f["verdict"] == WRONG]
    assert wrong
    assert all("A " in f["words"].rpartition(": ")[2] for f in wrong)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["http://127.0.0.1:1"], "does not list its models"),
        (["ftp://127.0.0.1:1"], "is no address of a server"),
        (["http://[::1"], "is no address of a server"),
        (["http://127.0.0.1:99999"], "is no address of a server"),
        (["http://a", "smollm2"], "name one URL, two URLs, or one model"),
        (["http://a", "--checks", "gredy"], "did you mean greedy"),
        (["http://127.0.0.1:1", "-c", "512"], "options of a model"),
        (["http://127.0.0.1:1", "--api-key", "x", "--api-key", "y"], "2 times for 1 servers"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_the_budget_ends_the_audit() -> None:
    audit = Audit([A], Limits(budget_s=0), lambda: 0.0, texts=[CASE])
    assert run_checks(audit, CHECKS, lambda *_: None) == ([], list(CHECKS))


# --- verdicts


class Recomputing:
    """Servers that compute a place anew: the tops at each token, by server."""

    def __init__(self, **steps: Sequence[Step]) -> None:
        self.steps = steps
        self.prompts: list[str] = []

    def __call__(self, endpoint: Endpoint, case: Case, **fields: object) -> Reply | Trouble:
        self.prompts.append(case.body["prompt"])
        steps = self.steps.get(endpoint.name)
        return Trouble("gone") if steps is None else Reply("", (), tuple(steps))


def step(token: str, **others: float) -> Step:
    """A token of logprob -0.5, and others at its place; _ stands for a blank."""
    tops = {other.replace("_", " "): logprob for other, logprob in others.items()}
    return Step(token, -0.5, {token: -0.5, **tops})


def verdict_of(left: str, right: str, send: Recomputing, other: Endpoint = B) -> tuple[str, str]:
    found = judged(
        "greedy", CASE, Response(A, "alone", Reply(left)), Response(other, "alone", Reply(right)),
        lambda: 0.1, send,
    )  # fmt: skip
    return found.verdict, found.words.rpartition(": ")[2]


CALM, TIE = step(" cat", _dog=-4.0), step(" cat", _dog=-0.55)
KEEN = step(" dog", _cat=-4.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict", "culprit"),
    [
        (CALM, CALM, WRONG, "B alone left the likeliest token"),
        (KEEN, KEEN, WRONG, "A alone left the likeliest token"),
        (TIE, TIE, NEAR_TIE, ""),
        (CALM, TIE, NEAR_TIE, ""),
        (CALM, KEEN, DIFFERS, "the two servers compute other distributions"),
        (KEEN, CALM, WRONG, "A alone and B alone left the likeliest token"),
    ],
)
def test_verdicts_by_what_both_servers_compute_anew(
    ours: Step, theirs: Step, verdict: str, culprit: str
) -> None:
    send = Recomputing(A=[step("the black"), ours], B=[step("the black"), theirs])
    found = verdict_of("the black cat sat", "the black dog sat", send)
    assert found[0] == verdict
    assert culprit in found[1]
    assert set(send.prompts) == {"P"}


def test_a_text_that_ends_early_is_wrong_unless_its_end_was_likely() -> None:
    likely = Recomputing(
        A=[step("the cat"), Step("<|end|>", -0.5, {"<|end|>": -0.5, " dog": -0.55})]
    )
    assert verdict_of("the cat", "the cat dog", likely, A)[0] == NEAR_TIE
    assert (
        verdict_of("the cat", "the cat dog", Recomputing(A=[step("the cat"), KEEN]), A)[0] == WRONG
    )
    ended = Recomputing(A=[step("the cat")])  # after which it ends, with no token that says so
    assert verdict_of("the cat", "the cat dog", ended, A)[0] == WRONG
    assert "A alone" in verdict_of("the cat dog", "the cat", ended, A)[1]


def test_tokens_may_part_before_characters() -> None:
    """A blank is a token of its own before a digit, and the beginning of another before a word."""
    blank = Step(" ", -0.5, {" ": -0.5, " the": -0.55, " a": -4.0})
    digit = Step("1", -0.1, {"1": -0.1, "2": -3.0})
    for steps in ([step("for"), blank, digit], [step("for"), step(" the", _=-0.55)]):
        send = Recomputing(A=steps)
        assert verdict_of("for 12 months", "for the next", send, A)[0] == NEAR_TIE
    far = Step(" ", -0.5, {" ": -0.5, " the": -4.0})
    assert verdict_of("for 12", "for the next", Recomputing(A=[step("for"), far, digit]), A) == (
        WRONG, "A alone left the likeliest token",
    )  # fmt: skip


def test_what_cannot_be_judged_is_no_tie() -> None:
    assert verdict_of("the cat", "the dog", Recomputing())[0] == DIFFERS


def test_a_server_that_goes_a_third_way_reads_what_both_wrote_as_a_prompt() -> None:
    class Astray(Recomputing):
        def __call__(self, endpoint: Endpoint, case: Case, **fields: object) -> Reply | Trouble:
            reply = super().__call__(endpoint, case, **fields)
            return Reply("", (), (step(" mouse"),)) if case.body["prompt"] == "P" else reply

    astray = Astray(A=[KEEN])
    assert verdict_of("the cat sat", "the dog sat", astray, A)[0] == WRONG
    assert astray.prompts == ["P", "Pthe"]


def test_a_completion_that_did_not_come_is_a_fault_unless_it_was_refused() -> None:
    there = Response(A, "alone", Reply("x"))
    for trouble, verdict in (
        (Trouble("status 500"), FAILED),
        (Trouble("status 400", is_refusal=True), NOT_SERVED),
    ):
        found = judged("c", CASE, there, Response(B, "alone", trouble), lambda: 0.1, Recomputing())
        assert found.verdict == verdict
        assert found.is_fault == (verdict == FAILED)


@pytest.mark.parametrize(("logprob", "verdict"), [(-0.55, SAME), (-0.7, DIFFERS)])
def test_logprobs_of_shared_tokens_agree(logprob: float, verdict: str) -> None:
    ours = Reply("", steps=(step("a"), step("b"), step("c")))
    theirs = Reply("", steps=(step("a"), Step("b", logprob, {}), Step("z", -9.0, {})))
    found = logprobs_agree("l", CASE, Response(A, "", ours), Response(B, "", theirs), 0.1)
    assert found.verdict == verdict
    assert found.words.startswith("2 tokens")


def test_both_shapes_of_logprobs_are_read() -> None:
    legacy = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0, "b": -2.0}]}
    content = [{"token": "a", "logprob": -1.0, "top_logprobs": [
        {"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]}]  # fmt: skip
    expected = (Step("a", -1.0, {"a": -1.0, "b": -2.0}),)
    assert _whole({"text": "a", "logprobs": legacy}).steps == expected
    assert _whole({"text": "a", "logprobs": {"content": content}}).steps == expected


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (Call("get_weather", '{"city": "Oslo"}'), ""),
        (Call("get_weather", '{"city": "Os'), "are no JSON"),
        (Call("get_weather", '{"town": "Oslo"}'), "takes city"),
        (Call("fly", "{}"), "there is no tool 'fly'"),
        (Call("convert", '{"amount": "1", "to": "EUR"}'), "amount of convert is '1'"),
        (Call("convert", '{"amount": 1, "to": "DKK"}'), "to of convert is 'DKK'"),
    ],
)
def test_calls_are_held_to_the_schemas(call: Call, fault: str) -> None:
    from duodec_lab.exactness.checks import _valid

    reply = Reply("", (call,))
    others = (
        None,
        lambda: Response(B, "alone", Reply("a text")),
        lambda: Response(B, "alone", reply),
    )
    found = [_valid(CASE, Response(A, "alone", reply), again) for again in others]
    assert all(fault in one.words for one in found)
    expected = [WRONG, WRONG, SAME] if fault else [SAME] * 3
    assert [one.verdict for one in found] == expected  # what the model writes twice is its own


@pytest.mark.slow
def test_a_model_is_served_and_compared_with_itself_without_drafts(tmp_path: Path) -> None:
    words = ["--method", "lookup", "--prompts", "1", "-n", "8", "--checks", "greedy,seeds", "-q"]
    assert run(["verify", str(weights("smollm2")), *words, "-o", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "verify.json").read_text("utf-8"))
    assert [server["name"] for server in record["servers"]] == ["plain", "drafts"]
    # the same text by both halves, and one seed gives one text, by each and by both
    assert [f["verdict"] for f in record["findings"]] == [SAME] * 4
