"""The sound combinations of drafter, builder and controller: rows of the battery. A new part adds its line here."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from jaxspec.methods.method import Method, parse_method
from jaxspec.rules import GumbelCoupling

DRAFTERS = ("ngram", "draft-model", "dflash", "eagle", "eagle3", "early-exit", "edd", "medusa", "layer-skip")
BUILDERS = (
    "chain,length=4",
    "static,paths=0:1:2:00:01:10:000",
    "uniform,width=2,depth=3,total=8",
    "cape,depth=3",
    "eagle2,total=12,depth=4,width=3",
    "pruned,width=3,depth=4,leaf=0.02,cost=0.1,total=12",
    "budgeted,width=2,depth=4,cost=0.1,verify=1:1/2:1.2/4:1.4/8:1.6,total=8",
)
SETTINGS = ("chain,length=1", "static")  # the same builders otherwise set: only with --soak
CONTROLLERS = (  # where they stop, they stop often: chance 1/2 or so
    "fixed",
    "threshold,gamma=0.2,confidence=token",  # which depends on what was drawn
    "adaptive,gamma=0.3,alpha=0.5,epsilon=1.0",
    "beta-ts,prior_alpha=1",
    "cali-ts",
    "length-ts,prior_alpha=1,cost=0.1,verify=1:1/2:1.2/4:1.4/8:1.6",
    "expected-gain,cost=0.2,verify=1:1/2:1.2/4:1.4/8:1.6",
)
UNSOUND = {("ngram", "cali-ts")}  # drafter, controller: refused by parse_method, as ngram has no hidden states
WITH_KEPT_BLOCKS = (  # how a skip set drafts that has weights of its own
    "layer-skip+static,paths=0:1:2:00:01:10:000+threshold,gamma=0.2,confidence=token",
    "layer-skip+chain,length=4+adaptive,gamma=0.3,alpha=0.5,epsilon=1.0",
    "layer-skip+eagle2,total=12,depth=4,width=3+cali-ts",
)
BY_MUTANTS = (  # the last: whether it is coupled; `tests/mutants` runs the tests of these
    ("draft-model", "chain,length=4", "threshold,gamma=0.2,confidence=token", False),
    ("eagle", "chain,length=4", "beta-ts,prior_alpha=1", False),
    ("eagle3", "eagle2,total=12,depth=4,width=3", "fixed", False),
    ("draft-model", "uniform,width=2,depth=3,total=8", "fixed", True),
)
TEMPERATURES = (0.7, 1.0)
TOP_P = (1.0, 0.8)


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A method with sampling settings."""

    method: Method
    temperature: float
    top_p: float


def greedy() -> list[Any]:
    """Every method, to be verified greedily; those outside the covering set only with --soak."""
    return _params(methods(), _method, usual(coupled=False))


def coupled() -> list[Any]:
    """Every method whose sampled text is plain decoding's; those outside the covering set only with --soak."""
    return _params([row for row in methods() if is_coupled("+".join(row))], _method, usual(coupled=True))


def refilled(coupled: bool) -> list[Any]:
    """The same; those outside a set that has each part once only with --soak.

    They are taken from the covering set, whose programs are compiled anyway.
    """
    rows = [row for row in methods() if not coupled or is_coupled("+".join(row))]
    return _params(rows, _method, covering(usual(coupled), 1))


@functools.cache
def usual(coupled: bool) -> list[tuple[str, str, str]]:
    """Methods verified by one of both rules, such that every pair of drafter, builder, controller and rule occurs."""
    rows = [row for row in methods() if row[1] not in SETTINGS]
    both = lambda i: (False, True) if i % 2 else (True, False)  # so that each rule has about half of them
    every = [(*row, rule) for i, row in enumerate(rows) for rule in both(i) if not rule or is_coupled("+".join(row))]
    return [row[:3] for row in covering(every, 2, BY_MUTANTS) if row[3] == coupled]


def sampled() -> list[Any]:
    """Every other method with every temperature and top-p; those outside a pairwise covering set only with --soak."""
    others = [row for row in methods() if not is_coupled("+".join(row))]
    rows = [(*method, *how) for method in others for how in itertools.product(TEMPERATURES, TOP_P)]
    return _params(rows, lambda d, b, c, t, p: Sampled(parse_method("+".join((d, b, c))), t, p))


def _method(*parts: str) -> Method:
    return parse_method("+".join(parts))


def is_coupled(method: str) -> bool:
    """Whether the method's sampled text is plain decoding's for the same seed."""
    return isinstance(parse_method(method).rule(greedy=False), GumbelCoupling)


def pairwise(rows: Sequence[tuple]) -> list[tuple]:
    """A small subset of `rows` in which every pair of values of two columns that occurs in `rows` still occurs."""
    return covering(rows, 2)


def covering(rows: Sequence[tuple], columns: int, begin: Sequence[tuple] = ()) -> list[tuple]:
    """The same for the values of so many columns; the subset begins with these rows."""
    values = lambda row: {(at, tuple(row[i] for i in at)) for at in itertools.combinations(range(len(row)), columns)}
    found = [values(row) for row in rows]
    missing, chosen = set().union(*found).difference(*map(values, begin)), [*begin]
    while missing:
        best = max(range(len(rows)), key=lambda at: len(found[at] & missing))
        chosen.append(rows[best])
        missing -= found[best]
    return chosen


def methods() -> list[tuple[str, str, str]]:
    """Every sound (drafter, builder, controller)."""
    rows = itertools.product(DRAFTERS, BUILDERS + SETTINGS, CONTROLLERS)
    return [row for row in rows if (row[0], row[2]) not in UNSOUND]


def _params(rows: list[tuple], build: Any, few: Sequence[tuple] | None = None) -> list[Any]:
    few = pairwise([row for row in rows if row[1] not in SETTINGS]) if few is None else few
    quick = set(few)
    marks = lambda row: () if row in quick else pytest.mark.soak
    name = lambda row: "+".join(map(str, row))
    return [pytest.param(build(*row), id=name(row), marks=marks(row)) for row in rows]
