"""Queue requests so that one request with many completions does not keep others waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from duodec.scheduler.scheduled_request import ScheduledRequest


class Queue:
    """Hold the requests that wait. Those submitted together take turns with other submissions, in
    the order of arrival; single ones are first come, first served."""

    def __init__(self) -> None:
        self._by_submission: dict[int, deque[ScheduledRequest]] = {}  # next in turn first
        self._num_submissions = 0
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[ScheduledRequest]:
        for entries in self._by_submission.values():
            yield from entries

    def num_places(self, most: int) -> int:
        """Return the number of requests, counting at most ``most`` of each submission."""
        return sum(min(most, len(entries)) for entries in self._by_submission.values())

    def extend(self, entries: Sequence[ScheduledRequest]) -> None:
        """Add a submission."""
        if not entries:
            return
        self._num_submissions += 1
        for entry in entries:
            entry.submission = self._num_submissions
        self._by_submission[self._num_submissions] = deque(entries)
        self._num += len(entries)

    def pop(self, but: Collection[int] = ()) -> ScheduledRequest | None:
        """Remove and return the next entry of any submission except ``but``; None if there is
        none."""
        number = next((own for own in self._by_submission if own not in but), None)
        if number is None:
            return None
        entries = self._by_submission.pop(number)
        entry = entries.popleft()
        if entries:
            self._by_submission[number] = entries
        self._num -= 1
        return entry

    def drop(self, entries: Sequence[ScheduledRequest]) -> None:
        """Remove these entries."""
        for number, kept in list(self._by_submission.items()):
            rest = deque(entry for entry in kept if entry not in entries)
            self._num -= len(kept) - len(rest)
            if rest:
                self._by_submission[number] = rest
            else:
                del self._by_submission[number]
