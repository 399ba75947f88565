"""The public names, for users and for authors of strategies and of drafters that are trained. All else is private.

This is their only list: type checkers read it, and so does `__init__.py`, which imports a name when it is first used.
"""

from jaxspec.checkpoint.loading import Checkpoint as Checkpoint
from jaxspec.checkpoint.loading import load as load
from jaxspec.decoding.builder import TreeBuilder as TreeBuilder
from jaxspec.decoding.controller import Controller as Controller
from jaxspec.decoding.controller import DraftSignals as DraftSignals
from jaxspec.decoding.drafter import Committed as Committed
from jaxspec.decoding.drafter import Drafter as Drafter
from jaxspec.decoding.drafter import Drafts as Drafts
from jaxspec.decoding.drafter import HeadShape as HeadShape
from jaxspec.decoding.drafter import Models as Models
from jaxspec.decoding.drafter import Prefix as Prefix
from jaxspec.decoding.drafter import last_valid as last_valid
from jaxspec.decoding.drafter import slots_of as slots_of
from jaxspec.decoding.request import Request as Request
from jaxspec.decoding.request import SamplingParams as SamplingParams
from jaxspec.decoding.round_records import RoundCounts as RoundCounts
from jaxspec.decoding.rule import Proposal as Proposal
from jaxspec.decoding.rule import Propose as Propose
from jaxspec.decoding.strategy import CostTable as CostTable
from jaxspec.decoding.tree import DraftTree as DraftTree
from jaxspec.decoding.tree import Frontier as Frontier
from jaxspec.decoding.tree import Selection as Selection
from jaxspec.decoding.tree import add_nodes as add_nodes
from jaxspec.decoding.tree import take as take
from jaxspec.engine.engine import Engine as Engine
from jaxspec.engine.generation import Generation as Generation
from jaxspec.methods.method import Method as Method
from jaxspec.methods.method import parse_method as parse_method
from jaxspec.methods.method import register as register
from jaxspec.model.config import LlamaConfig as LlamaConfig
from jaxspec.model.sharding import make_mesh as make_mesh
from jaxspec.options.by_command import Bench as Bench
from jaxspec.train.data.text import Windows as Windows
from jaxspec.train.hyperparameters import Recipe as Recipe
from jaxspec.train.options import DataMixture as DataMixture
from jaxspec.train.options import HeadSettings as HeadSettings
from jaxspec.train.run.heads import train_head as train_head
from jaxspec.train.run.packed import Summed as Summed
from jaxspec.train.run.packed import cross_entropy as cross_entropy
from jaxspec.train.run.packed import target_features as target_features

__version__: str
