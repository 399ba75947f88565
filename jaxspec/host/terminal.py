"""Remarks on stderr, so that stdout holds nothing but results."""

import sys


def say(text: str) -> None:
    """One remark."""
    print(text, file=sys.stderr, flush=True)
