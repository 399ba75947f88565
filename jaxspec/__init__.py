"""jaxspec: LLaMA models that generate text several times faster, without changing one token of what they say."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

# Of our own former name an old checkout may keep an egg-info: only the other project is meant.
if any("X-ray" in (one.metadata["Summary"] or "") for one in importlib.metadata.distributions(name="jaxspec")):
    raise ImportError(
        "the distribution `jaxspec`, a library of X-ray astronomy, is installed beside `jax-specdec`, and both are "
        "imported as jaxspec: run `pip uninstall jaxspec`, then `pip install --force-reinstall --no-deps jax-specdec`"
    )

try:
    __version__ = importlib.metadata.version("jax-specdec")
except importlib.metadata.PackageNotFoundError:  # on the path, but not installed
    __version__ = "checkout"

if TYPE_CHECKING:
    from jaxspec.checkpoint.loading import Checkpoint, load
    from jaxspec.decoding.builder import TreeBuilder
    from jaxspec.decoding.controller import Controller
    from jaxspec.decoding.cost_table import CostTable
    from jaxspec.decoding.draft_signals import DraftSignals
    from jaxspec.decoding.drafter import Committed, Drafter, HeadShape, Models, Prefix
    from jaxspec.decoding.drafts import Drafts
    from jaxspec.decoding.request import Request, SamplingParams
    from jaxspec.decoding.round_counts import RoundCounts
    from jaxspec.decoding.rule import Proposal, Propose
    from jaxspec.decoding.tree import DraftTree, Frontier, Selection
    from jaxspec.engine.engine import Engine
    from jaxspec.engine.generation import Generation
    from jaxspec.methods.method import Method, parse_method
    from jaxspec.model.sharding import make_mesh

__all__ = [
    "Checkpoint", "Committed", "Controller", "CostTable", "DraftSignals", "DraftTree", "Drafter", "Drafts", "Engine",
    "Frontier", "Generation", "HeadShape", "Method", "Models", "Prefix", "Proposal", "Propose", "Request",
    "RoundCounts", "SamplingParams", "Selection", "TreeBuilder", "__version__", "load", "make_mesh", "parse_method",
]  # fmt: skip

_HOMES = {
    "checkpoint.loading": ("Checkpoint", "load"),
    "decoding.builder": ("TreeBuilder",),
    "decoding.controller": ("Controller",),
    "decoding.draft_signals": ("DraftSignals",),
    "decoding.cost_table": ("CostTable",),
    "decoding.drafter": ("Committed", "Drafter", "HeadShape", "Models", "Prefix"),
    "decoding.drafts": ("Drafts",),
    "decoding.request": ("Request", "SamplingParams"),
    "decoding.round_counts": ("RoundCounts",),
    "decoding.rule": ("Proposal", "Propose"),
    "decoding.tree": ("DraftTree", "Frontier", "Selection"),
    "engine.engine": ("Engine",),
    "engine.generation": ("Generation",),
    "methods.method": ("Method", "parse_method"),
    "model.sharding": ("make_mesh",),
}
"""The public names, for users and for authors of strategies, by module. A module is imported on first use."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'jaxspec' has no attribute {name!r}")
    return getattr(importlib.import_module(f"jaxspec.{home}"), name)
