"""A JSON schema that nobody can afford to compile."""

from __future__ import annotations

from typing import Any


def explosive(num_parts: int = 26) -> dict[str, Any]:
    """2.4 KB that take minutes and gigabytes."""
    return {
        "allOf": [
            {"anyOf": [{"type": "string", "pattern": f".*{chr(65 + i)}.{{8}}"},
                       {"type": "number", "multipleOf": i + 2}]}
            for i in range(num_parts)
        ]
    }  # fmt: skip
