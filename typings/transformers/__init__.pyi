"""Everything is Any: reading transformers' lazy package itself takes pyright half a minute."""

from typing import Any

def __getattr__(name: str) -> Any: ...
