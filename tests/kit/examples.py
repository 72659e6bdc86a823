"""How often a property is tried."""

from __future__ import annotations

import os


def examples(in_ci: int) -> int:
    """The number of examples: a fifth of it where a person waits for them."""
    return in_ci if os.environ.get("CI") else in_ci // 5
