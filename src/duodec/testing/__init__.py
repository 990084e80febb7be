"""Try methods and backends of your own without a library, a model or weights.

`check_method` decodes with a method on tables, and compares with plain decoding; `check_target`
scores drafts with a target, and compares with its rows one by one. Both raise AssertionError.
See docs/extending.md.
"""

from duodec.testing.backends import LetterModel, RunningTable, check_target
from duodec.testing.drafters import InlineDrafter
from duodec.testing.methods import FixedBudget, ListedTexts, check_method, decode, plain_text
from duodec.testing.tables import TableDraftModel, TableModel, TableScores, TableTarget

__all__ = [
    "FixedBudget",
    "InlineDrafter",
    "LetterModel",
    "ListedTexts",
    "RunningTable",
    "TableDraftModel",
    "TableModel",
    "TableScores",
    "TableTarget",
    "check_method",
    "check_target",
    "decode",
    "plain_text",
]
