"""Define every error that a user can cause, as one tree.

    DuodecError
    ├── BadOption            a flag, a field or a combination that cannot be served
    ├── ModelNotFound        a reference that names no file, repository or alias
    ├── ModelUnreadable      a file that exists but is not a causal language model
    ├── ChecksumMismatch     a file whose SHA-256 is not the pinned one
    ├── CacheUnwritable      the download cache cannot be written, or the disk is full
    ├── DownloadFailed       every source of a model failed
    ├── PairMismatch         draft and target cannot work together
    │   └── VocabularyMismatch
    ├── ContextExceeded      the prompt does not fit the context
    ├── GrammarsFull         the grammars in use leave no memory for another
    ├── PicturesFull         the pictures in work leave no memory for another
    ├── ComputeFailed        the library failed in the middle of a forward pass
    ├── DistributionUnavailable       the target has no distributions (replay)
    ├── BackendUnavailable   a library is missing or was built for another machine
    ├── ResultsUnreadable    a benchmark's result file that is broken or of another version
    └── DatastoreUnreadable  a datastore that is broken, or made for another vocabulary

A message is one line that names the value and the remedy; the command line prints
it as it is and exits with ``exit_status``. `assert` is for our own mistakes.
"""

from __future__ import annotations

import sys


class DuodecError(Exception):
    """Base of all errors that a user can cause; never raised itself."""

    exit_status = 2


class BadOption(DuodecError):
    """An option's value, or a combination of options, that cannot be served.

    ``option`` is the name that the message begins with, ``flags`` how the command line spells it;
    both are empty where several options are at fault.
    """

    def __init__(self, message: str, *, option: str = "", flags: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.option, self.flags = option, flags


class ModelNotFound(DuodecError):
    """A model reference that names no file."""


class ModelUnreadable(DuodecError):
    """A file that exists but is not a causal language model we can run."""


class ChecksumMismatch(DuodecError):
    """A file whose content is not what its alias pins."""


class CacheUnwritable(DuodecError):
    """The cache folder refuses writes, or its disk is full."""


class DownloadFailed(DuodecError):
    """No source of a model could be read."""


class PairMismatch(DuodecError):
    """A draft that cannot serve its target."""


class VocabularyMismatch(PairMismatch):
    """Draft and target number their tokens differently."""


class ContextExceeded(DuodecError):
    """A prompt that leaves no space for a completion."""


class GrammarsFull(DuodecError):
    """A grammar for which those of other requests leave no memory; it fits later."""


class PicturesFull(DuodecError):
    """A picture for which those of other requests leave no memory; it fits later."""


class ComputeFailed(DuodecError):
    """A forward pass that the library could not compute."""

    exit_status = 1


class DistributionUnavailable(DuodecError):
    """A target that knows only its text was asked for a probability distribution."""


class BackendUnavailable(DuodecError):
    """A library that is missing, broken or built for another processor."""


class ResultsUnreadable(DuodecError):
    """A result file that we did not write, or wrote in another version."""


class DatastoreUnreadable(DuodecError):
    """A datastore that is broken, or whose tokens are of another vocabulary."""


def warn(line: str) -> None:
    """Print one line on stderr, by default."""
    print(f"duodec: {line}", file=sys.stderr)
