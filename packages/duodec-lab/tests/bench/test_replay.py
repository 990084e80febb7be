"""The stand-ins: what they answer, what they refuse, how long they take."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
from benchmarks.gpu.enforced import EnforcedTarget
from fakes.beds import ClockedTarget
from fakes.decoding import Session, decode_rounds

from duodec.backends.curves import CostCurve
from duodec.backends.paced import PacedTarget
from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Candidates, Query
from duodec.errors import DistributionUnavailable
from duodec.methods.registry import METHODS, method
from duodec.methods.request import Request
from duodec.testing import InlineDrafter, TableModel, TableTarget
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.replay import ReplayTarget

PROMPT = [3, 1, 4, 1, 5]
MODEL = TableModel(num_vocab=16, order=1)
DRAFT = TableModel(num_vocab=16, order=1, noise=0.3)
NOW = LatencyCurve(CostCurve.flat(0.0))


def session(target: object, num_tokens: int = 30, **fields: object) -> Request:
    return Session(
        target=target,  # type: ignore[arg-type]
        prompt=PROMPT,
        capacity=len(PROMPT) + num_tokens,
        drafter=InlineDrafter(DRAFT.load()),
        sampler=Sampler(SamplingParams(temperature=0.8, seed=4)),
        **fields,  # type: ignore[arg-type]
    )


def recording() -> np.ndarray:
    plain = session(TableTarget(MODEL))
    list(decode_rounds(method("ar"), plain))
    return plain.text.copy()


@pytest.mark.parametrize("name", [n for n in METHODS if not METHODS[n]().reads_off_path])
def test_a_replay_tells_every_method_the_recorded_text(name: str) -> None:
    real, replayed = session(TableTarget(MODEL)), session(ReplayTarget(recording(), NOW))
    real_rounds = list(decode_rounds(method(name), real))
    replayed_rounds = list(decode_rounds(method(name), replayed))
    assert np.array_equal(replayed.text, real.text)
    if name in ("ar", "sps", "lookup"):  # budgets of the others hang on what forwards take
        assert [r.tokens for r in replayed_rounds] == [r.tokens for r in real_rounds]


def test_a_replay_knows_nothing_beside_its_text() -> None:
    text = recording()
    target = ReplayTarget(text, NOW)
    known = text[:10]
    wrong = int(text[10]) ^ 1
    (scores,) = target.score([Query(0, known, Draft.sequences([text[10:12].tolist(), [wrong]]))])
    assert [scores.draw(row).token for row in range(3)] == text[10:13].tolist()
    with pytest.raises(DistributionUnavailable, match="off the recorded text"):
        scores.draw(3)
    with pytest.raises(DistributionUnavailable, match="no distributions"):
        scores.distribution(0)
    with pytest.raises(DistributionUnavailable):
        list(decode_rounds(method("sps-rejection"), session(target)))


def test_a_replay_knows_the_candidates_of_its_own_text() -> None:
    """Of a row beside the text it knows none, and says so without failing."""
    text = recording()
    known = {position: Candidates((int(text[position]), 15), (0.75, 0.25)) for position in (10, 11)}
    wrong = int(text[10]) ^ 1
    draft = Draft.sequences([text[10:12].tolist(), [wrong]])
    query = Query(0, text[:10], draft, num_candidates=8)
    (scores,) = ReplayTarget(text, NOW, known).score([query])
    assert [scores.candidates(row) for row in range(4)] == [
        known[10], known[11], Candidates(), Candidates(),
    ]  # fmt: skip
    (few,) = ReplayTarget(text, NOW, known).score([replace(query, num_candidates=1)])
    assert few.candidates(0).tokens == (int(text[10]),)
    (none,) = ReplayTarget(text, NOW).score([query])
    assert none.candidates(0) == Candidates()


def test_candidates_come_with_the_softmax_over_them_alone() -> None:
    query = Query(0, recording()[:10], num_candidates=4)
    row = MODEL.logits(query.context(0)).astype(np.float64)
    (scores,) = TableTarget(MODEL).score([query])
    tokens, confidences = scores.candidates(0)
    assert list(tokens) == np.argsort(-row, kind="stable")[:4].tolist()
    weights = np.exp(row[list(tokens)])
    assert confidences == pytest.approx(weights / weights.sum())


def test_a_replay_takes_what_its_curve_says() -> None:
    text = recording()
    target = ReplayTarget(text, LatencyCurve(CostCurve.flat(0.01, num_rows=5), prefill_s=0.002))

    def seconds(length: int, num_draft: int = 0) -> float:
        begin = perf_counter()
        target.score([Query(0, text[:length], Draft.chain(text[length : length + num_draft]))])
        return perf_counter() - begin

    assert seconds(11) >= 0.01 + 10 * 0.002  # a prompt of 11: ten tokens and the forward
    assert seconds(12) >= 0.01
    assert seconds(12, 9) >= 0.02  # ten rows cost two of five
    assert target.curve.seconds(4, 1) == target.curve.seconds(0, 1) == 0.01
    assert target._prefill.num_new([Query(0, text[:15])]) == 1  # drafted tokens were read
    one, two, three = (int(token) for token in text[15:18])
    tree = Draft.sequences([[one ^ 1, two], [one, two, three]])
    assert target._prefill.num_new([Query(0, text[:15], tree)]) == 1
    assert target._prefill.num_new([Query(0, text[:18])]) == 1  # along a branch, too


def test_a_pace_is_kept() -> None:
    begin = perf_counter()
    PacedTarget(TableTarget(MODEL), CostCurve.constant(0.02)).score(
        [Query(0, np.array(PROMPT, np.int32))]
    )
    assert perf_counter() - begin >= 0.02


def test_a_clocked_target_reports_its_curve() -> None:
    """Real rows, distributions included; on its own clock 20 forward passes of 0.5 s take ten."""
    clocked = ClockedTarget(TableTarget(MODEL), LatencyCurve(CostCurve.flat(0.5)))
    plain = session(clocked, 20, clock=clocked.clock)
    begin, real = clocked.clock(), perf_counter()
    rounds = list(decode_rounds(method("ar"), plain))
    assert perf_counter() - real < 9
    assert 10 <= clocked.clock() - begin < 19
    assert all(r.end_s - r.start_s == pytest.approx(0.5, abs=1e-3) for r in rounds)
    drawn = session(clocked, 20, clock=clocked.clock)
    list(decode_rounds(method("sps-rejection"), drawn))
    assert drawn.remaining == 0


def test_an_enforced_target_says_what_was_recorded_and_takes_its_own_time() -> None:
    text = recording()
    likely = {12: Candidates((int(text[12]), 1), (0.7, 0.3))}
    under = PacedTarget(TableTarget(MODEL), CostCurve.constant(0.02))
    target = EnforcedTarget(under, text, likely)
    assert target.traits == under.traits
    wrong = int(text[12]) ^ 1
    query = Query(0, text[:12], Draft.chain([wrong]), num_candidates=2)
    begin_s = perf_counter()
    (scores,) = target.launch([query]).result()
    assert perf_counter() - begin_s >= 0.02
    (own,) = under.score([query])
    assert scores.draw(0).token == text[12]
    assert scores.draw(1) == own.draw(1)
    assert scores.candidates(0) == likely[12]
    assert scores.candidates(1) == own.candidates(1)
    for name in ("ar", "sps", "duo", "stream"):
        told = session(EnforcedTarget(TableTarget(TableModel(num_vocab=16, order=2)), text))
        list(decode_rounds(method(name), told))
        assert np.array_equal(told.text, text), name
