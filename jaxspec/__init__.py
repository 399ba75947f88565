"""jaxspec: LLaMA models that generate text several times faster, without changing one token of what they say."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

__version__ = importlib.metadata.version("jaxspec")
__all__ = ["Checkpoint", "Engine", "Generation", "Method", "__version__", "load", "make_mesh", "parse_method"]

if TYPE_CHECKING:
    from jaxspec.checkpoint.loading import Checkpoint, load
    from jaxspec.engine.engine import Engine
    from jaxspec.engine.generation import Generation
    from jaxspec.methods.method import Method, parse_method
    from jaxspec.model.mesh import make_mesh

_HOMES = {
    "Checkpoint": "jaxspec.loading",
    "Engine": "jaxspec.engine",
    "Generation": "jaxspec.generation",
    "Method": "jaxspec.methods",
    "load": "jaxspec.loading",
    "make_mesh": "jaxspec.mesh",
    "parse_method": "jaxspec.methods",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxspec' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
