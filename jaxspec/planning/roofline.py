"""Roofline times on absent chips: of plain decoding, and the costs that builders need."""

import dataclasses
from collections.abc import Callable

from jaxspec.builders.eagle2 import Eagle2
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.decoding.cost_table import CostTable
from jaxspec.methods.method import Method, parse_method
from jaxspec.model.backend import ACCELERATOR_TREE_SIZES
from jaxspec.planning.chips import Slice
from jaxspec.planning.program import PlacedProgram

WIDTHS = (1, 4, 16)  # nodes expanded at once, the widths that `jaxspec calibrate` measures
DEPTH = 5

Compose = Callable[[Method], PlacedProgram]  # makes the loop of a method for the planned chips


def plain_seconds(where: Slice, compose: Compose) -> float:
    """Roofline seconds of a round of plain decoding."""
    program = compose(parse_method("plain"))
    return where.seconds(program.count(program.trace()).verification(1))


def with_costs(method: Method, where: Slice, compose: Compose, plain: float) -> Method:
    """The method with the costs of drafting and verification, computed instead of measured by `jaxspec calibrate`.

    Args:
        plain: seconds of a round of plain decoding.
    """
    tree = lambda width: Eagle2(total=max(ACCELERATOR_TREE_SIZES), depth=DEPTH, width=width)

    # With a controller that stops early, the loop contains verification of every size.
    def probe(width):
        return dataclasses.replace(method, builder=tree(width), controller=BetaTS(), history=0)

    whole = compose(probe(WIDTHS[-1]))
    parts = whole.count(whole.trace())
    levels = {width: compose(probe(width)).count_drafting().level for width in WIDTHS[:-1]} | {WIDTHS[-1]: parts.level}

    def of(works):
        return tuple((nodes, where.seconds(work)) for nodes, work in works.items())

    return method.with_costs(CostTable(plain=plain, verify=of(parts.verify), level=of(levels)))
