"""Many requests, clients that leave and a drafter that dies: is every answer right, does anything
grow, do the counters add up?

A pool of requests is answered by the library, plainly and alone: what the server must say to each.
Then clients send them to `duodec serve` again and again, streamed and whole, by every method, with
more clients than there is room for, while the drafter is killed every few seconds. A tenth of the
clients leave at random moments, half of them by a reset, and `attackers` try what they know. In a
calm part nobody leaves or attacks, and counters must be the sums of what the answers said of
themselves, exactly; in the other parts what is left of them must be explained by those who left. At
the end the slots' time to notice a client that left is taken.

    python -m stress.soak --data FOLDER --journal soak.jsonl

The journal has a line a part of so many requests: a soak that was stopped goes on after its last
line, in a server of its own. Memory must be flat over the last half of the longest session.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter
from typing import Annotated, Any

import psutil
import typer
from benchmarks import RESULTS
from benchmarks.serving.servers import Served, ours

from duodec_lab.bench.card import environment
from stress.attack import attacked
from stress.soak_clients import CONTEXT, Case, Part, cases, noticing_s, part, slots

_LEAVERS = 0.1
_PAUSE_S = 2.0  # of an attacker: they attack for an hour
_MOST_GROWTH = 0.02  # of memory, which moves a little with what is being answered
_SAMPLE_S = 2.0
_FEWEST_SAMPLES = 8  # of a session whose memory is judged
_COUNTERS = {  # of /metrics: where an answer says the same of itself
    "duodec:generation_tokens_total": lambda a: a["usage"]["completion_tokens"],
    "duodec:prompt_tokens_total": lambda a: a["usage"]["prompt_tokens"],
    "duodec:spec_decode_num_drafts_total": lambda a: _speculative(a, "num_spec_steps"),
    "duodec:spec_decode_num_draft_tokens_total": lambda a: _speculative(a, "num_draft_tokens"),
    "duodec:spec_decode_num_accepted_tokens_total": (
        lambda a: _speculative(a, "num_accepted_draft_tokens")
    ),
    "duodec:near_ties_total": lambda a: a["duodec"]["near_ties"],
}


def _speculative(answer: dict[str, Any], name: str) -> float:
    return float((answer["metrics"]["speculative_decoding"] or {}).get(name, 0))


@dataclass(frozen=True)
class Sample:
    """What the server's process holds."""

    at_s: float
    rss_mb: float
    num_files: int
    num_threads: int
    num_cells: int  # tokens that the slots know


@contextmanager
def repeating(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do it now and then, meanwhile."""
    over = Event()

    def run() -> None:
        while not over.wait(every_s):
            action()

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def drafters(served: Served) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(served.pid).children():
        with suppress(psutil.NoSuchProcess):  # or it is dead, and not waited for yet
            if any("duodec-draft" in word for word in child.cmdline()):
                found.append(child)
    return found


@dataclass
class Session:
    """A server under soak, from its start to its end."""

    served: Served
    pool: Sequence[Case]
    num_clients: int
    num_kills: int = 0
    samples: list[Sample] = field(default_factory=list)
    begin_s: float = field(default_factory=perf_counter)

    def kill(self) -> None:
        for child in drafters(self.served):
            with suppress(psutil.NoSuchProcess):
                child.kill()
                self.num_kills += 1

    def sample(self) -> None:
        process = psutil.Process(self.served.pid)
        cells = sum(slot["n_cached"] for slot in slots(self.served))
        self.samples.append(
            Sample(
                perf_counter() - self.begin_s, process.memory_info().rss / 1e6,
                process.num_fds(), process.num_threads(), cells,
            )
        )  # fmt: skip

    def run(self, name: str, numbers: range, seed: int, attacks: Sequence[str] | None) -> Line:
        """A part; with ``attacks`` a tenth of its clients leaves."""
        begin_s, num_kills, num_samples = perf_counter(), self.num_kills, len(self.samples)
        done, ended = Part(), dict[str, Any]()
        with repeating(self.sample, _SAMPLE_S):
            if attacks is None:
                done = part(self.served, self.pool, numbers, self.num_clients, 0.0, seed)
            else:
                with attacked(self.served, _PAUSE_S, attacks) as ended:
                    done = part(self.served, self.pool, numbers, self.num_clients, _LEAVERS, seed)
        wrong = list(done.wrong)
        if len(done.answers) + done.num_left + len(done.wrong) != len(numbers):
            wrong.append("a request was lost")
        return Line(
            part=name,
            first=numbers.start,
            num_requests=len(numbers),
            num_right=len(done.answers),
            num_left=done.num_left,
            num_busy=done.statuses[429],
            num_kills=self.num_kills - num_kills,
            seconds=round(perf_counter() - begin_s, 1),
            wrong=[*wrong, *unexplained(done, ended)],
            attacks=ended,
            samples=[asdict(sample) for sample in self.samples[num_samples:]],
        )


@dataclass(frozen=True)
class Line:
    """What the journal says of a part."""

    part: str
    first: int
    num_requests: int
    num_right: int
    num_left: int
    num_busy: int
    num_kills: int
    seconds: float
    wrong: list[str]
    attacks: dict[str, Any]
    samples: list[dict[str, float]]
    session: int = 0
    noticing_s: list[float] = field(default_factory=list)


def unexplained(done: Part, attacks: dict[str, Any]) -> list[str]:
    """Counters that do not add up, with what those who left may have had."""
    found = []
    for name, of in _COUNTERS.items():
        rest = done.moved(name) - sum(map(of, done.answers))
        if rest < 0:
            found.append(f"{name} is {-rest} short of what answers say")
        elif rest and not done.num_left and not attacks:
            found.append(f"{name} moved by {rest} more than answers say")
    # of the attackers, too, some were answered, some left, and some were ended
    others = sum(n for name, n in attacks.items() if name.endswith((" 200", " left")))
    others += attacks.get("num_attackers", 0)
    for name, most in (
        ("duodec:generation_tokens_total", done.left_tokens + others),
        ("duodec:prompt_tokens_total", done.left_prompts + others * CONTEXT),
    ):
        rest = done.moved(name) - sum(map(_COUNTERS[name], done.answers))
        if rest > most:
            found.append(f"{name} has {rest} more than answers say, and who left had {most}")
    ended = done.moved("duodec:request_success_total")
    most = len(done.answers) + done.num_left + others
    if not len(done.answers) <= ended <= most:
        found.append(f"{ended} answers ended, of {most}")
    refused = done.moved("duodec:requests_refused_total")
    if refused < done.statuses[429]:
        found.append(f"{refused} were refused and {done.statuses[429]} know of it")
    return found


def read(journal: Path) -> list[Line]:
    """The parts that are done."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [Line(**json.loads(line)) for line in lines]


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """All sessions together; memory is judged by the longest."""
    sessions = sorted({line.session for line in lines})
    samples = [
        [s for line in lines if line.session == session for s in line.samples]
        for session in sessions
    ]
    longest = max(samples, key=len)
    wrong = [words for line in lines for words in line.wrong]
    growth = growth_of_last_half(longest)
    if growth is not None and growth > _MOST_GROWTH:
        wrong.append(f"memory grew by {growth:.1%} over the last half")
    notices = sorted(s for line in lines for s in line.noticing_s)
    return {
        **{
            name: sum(getattr(line, name) for line in lines)
            for name in ("num_requests", "num_right", "num_left", "num_busy", "num_kills")
        },
        "num_sessions": len(sessions),
        "seconds": round(sum(line.seconds for line in lines), 1),
        "attacks": dict(sorted(sum((Counter(line.attacks) for line in lines), Counter()).items())),
        "growth_of_last_half": growth,
        "samples_of_longest_session": len(longest),
        "by_thirds": thirds(longest),
        "noticing_ms": {
            "median": round(1e3 * median(notices), 1), "most": round(1e3 * notices[-1], 1)
        } if notices else None,
        "wrong": wrong,
    }  # fmt: skip


def thirds(samples: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """By third: the median of what the process holds."""
    if len(samples) < _FEWEST_SAMPLES:
        return {}
    parts = [samples[len(samples) * i // 3 : len(samples) * (i + 1) // 3] for i in range(3)]
    return {
        name: [median(sample[name] for sample in one) for one in parts]
        for name in ("rss_mb", "num_files", "num_threads", "num_cells")
    }


def growth_of_last_half(samples: Sequence[dict[str, float]]) -> float | None:
    """Of memory: the last quarter's median over that of the one before it, less 1. None where there
    are too few samples."""
    number = len(samples)
    if number < _FEWEST_SAMPLES:
        return None
    third, last = samples[number // 2 : 3 * number // 4], samples[3 * number // 4 :]
    return round(median(s["rss_mb"] for s in last) / median(s["rss_mb"] for s in third) - 1, 4)


def main(
    data: Annotated[Path, typer.Option(help="Prompts, in Spec-Bench's format.")],
    journal: Annotated[Path, typer.Option(help="Of the parts that are done.")],
    num_requests: Annotated[int, typer.Option(help="With leaving clients.")] = 5000,
    num_calm: Annotated[int, typer.Option(help="Of the part in which nobody leaves.")] = 200,
    num_of_part: Annotated[int, typer.Option(help="Requests of a part.")] = 250,
    num_cases: Annotated[int, typer.Option(help="Different requests.")] = 60,
    num_clients: Annotated[int, typer.Option(help="At once.")] = 10,
    kill_s: Annotated[float, typer.Option(help="Between two deaths of the drafter.")] = 5.0,
    output: Annotated[str, typer.Option(help="Name of the results.")] = "soak",
) -> None:
    """Print what became of it; status 1 if anything is wrong."""
    lines = read(journal)
    number = 1 + max((line.session for line in lines), default=0)
    first = sum(line.num_requests for line in lines if line.part == "storm")
    is_calm_left = not any(line.part == "calm" for line in lines)
    if is_calm_left or first < num_requests:
        pool = cases(data, num_cases)
        with ours("--draft", "smollm2-draft", "--context", str(CONTEXT), "--parallel", "4",
                  "--queue", "8") as served:  # fmt: skip
            session = Session(served, pool, num_clients)

            def note(line: Line, notices: Sequence[float] = ()) -> None:
                log = served.log.read_text().splitlines()
                bad = [one for one in log if '"level": "error"' in one or "Traceback" in one]
                lines.append(
                    replace(line, session=number, noticing_s=[*notices],
                            wrong=[*line.wrong, *bad[:5]])
                )  # fmt: skip
                with journal.open("a") as file:
                    file.write(json.dumps(asdict(lines[-1])) + "\n")
                print(
                    f"{line.part} from {line.first}: {line.num_right} right, {line.num_left} left, "
                    f"{len(lines[-1].wrong)} wrong, {line.seconds} s",
                    flush=True,
                )

            with repeating(session.kill, kill_s):
                if is_calm_left:
                    note(session.run("calm", range(num_calm), 1, None))
                for begin in range(first, num_requests, num_of_part):
                    end = min(begin + num_of_part, num_requests)
                    line = session.run("storm", range(begin, end), 2, ())
                    notices = noticing_s(served, pool, 40) if end == num_requests else []
                    note(line, notices)
    facts = summary(lines)
    found = {"environment": environment(), **facts}
    (RESULTS / f"{output}.json").write_text(json.dumps(found, indent=1) + "\n")
    words = [f"- {name}: {value}" for name, value in facts.items()]
    (RESULTS / f"{output}.md").write_text(
        "# Leaving clients, a dying drafter\n\n" + "\n".join(words) + "\n"
    )
    print("\n".join(words))
    if facts["wrong"]:
        raise SystemExit("something is wrong")


if __name__ == "__main__":
    typer.run(main)
