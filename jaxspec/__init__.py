"""jaxspec: LLaMA models that generate text several times faster, without changing one token of what they say."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if any(importlib.metadata.distributions(name="jaxspec")):
    raise ImportError(
        "the distribution `jaxspec`, a library of X-ray astronomy, is installed beside `jax-specdec`, and both are "
        "imported as jaxspec: run `pip uninstall jaxspec`, then `pip install --force-reinstall --no-deps jax-specdec`"
    )

__version__ = importlib.metadata.version("jax-specdec")

if TYPE_CHECKING:
    from jaxspec.checkpoint.loading import Checkpoint, load
    from jaxspec.decoding.builder import TreeBuilder
    from jaxspec.decoding.controller import Controller, DraftSignals
    from jaxspec.decoding.cost_table import CostTable
    from jaxspec.decoding.drafter import Committed, Drafter, Models, Prefix
    from jaxspec.decoding.drafts import Drafts
    from jaxspec.decoding.request import SamplingParams
    from jaxspec.decoding.round_counts import RoundCounts
    from jaxspec.decoding.rule import Propose
    from jaxspec.decoding.tree import DraftTree, Frontier, Selection
    from jaxspec.engine.engine import Engine
    from jaxspec.engine.generation import Generation
    from jaxspec.methods.method import Method, parse_method
    from jaxspec.model.mesh import make_mesh

_HOMES = {
    "Checkpoint": "jaxspec.checkpoint.loading",
    "Committed": "jaxspec.decoding.drafter",
    "Controller": "jaxspec.decoding.controller",
    "CostTable": "jaxspec.decoding.cost_table",
    "DraftSignals": "jaxspec.decoding.controller",
    "DraftTree": "jaxspec.decoding.tree",
    "Drafter": "jaxspec.decoding.drafter",
    "Drafts": "jaxspec.decoding.drafts",
    "Engine": "jaxspec.engine.engine",
    "Frontier": "jaxspec.decoding.tree",
    "Generation": "jaxspec.engine.generation",
    "Method": "jaxspec.methods.method",
    "Models": "jaxspec.decoding.drafter",
    "Prefix": "jaxspec.decoding.drafter",
    "Propose": "jaxspec.decoding.rule",
    "RoundCounts": "jaxspec.decoding.round_counts",
    "SamplingParams": "jaxspec.decoding.request",
    "Selection": "jaxspec.decoding.tree",
    "TreeBuilder": "jaxspec.decoding.builder",
    "load": "jaxspec.checkpoint.loading",
    "make_mesh": "jaxspec.model.mesh",
    "parse_method": "jaxspec.methods.method",
}
"""What users and those who write strategies of their own need, loaded when it is first asked for."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxspec' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
