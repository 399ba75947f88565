"""Lossless speculative decoding for LLaMA models in JAX.

`Engine` generates text. `Drafter`, `TreeBuilder` and `Controller` are the base classes of strategies.
"""

import ast
import importlib
import importlib.metadata
import pathlib
from typing import Any

# Of our own former name an old checkout may keep an egg-info: only the other project is meant.
if any("X-ray" in (one.metadata["Summary"] or "") for one in importlib.metadata.distributions(name="jaxspec")):
    raise ImportError(
        "the distribution `jaxspec`, a library of X-ray astronomy, is installed beside `jax-specdec`, and both are "
        "imported as jaxspec: run `pip uninstall jaxspec`, and install `jax-specdec` again from its clone or wheel"
    )

try:
    __version__ = importlib.metadata.version("jax-specdec")
except importlib.metadata.PackageNotFoundError:  # on the path, but not installed
    __version__ = "checkout"

_STUB = ast.parse(pathlib.Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {name.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for name in node.names}
"""The module of each public name. It is imported when the name is first used."""

__all__ = [*_MODULES, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module 'jaxspec' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
