"""The sound combinations of drafter, builder and controller: rows of the battery. A new part adds its line here."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
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
BY_MUTANTS = (  # the last: the rule; `tests/mutants` runs the tests of these
    ("draft-model", "chain,length=4", "threshold,gamma=0.2,confidence=token", "greedy"),
    ("eagle", "chain,length=4", "beta-ts,prior_alpha=1", "greedy"),
    ("eagle3", "eagle2,total=12,depth=4,width=3", "fixed", "greedy"),
    ("draft-model", "uniform,width=2,depth=3,total=8", "fixed", "coupled"),
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
    return _params(methods(), _method, usual("greedy"))


def coupled() -> list[Any]:
    """Every method whose sampled text is plain decoding's; those outside the covering set only with --soak."""
    return _params([row for row in methods() if is_coupled("+".join(row))], _method, usual("coupled"))


def refilled(coupled: bool) -> list[Any]:
    """The same; those outside a set that has each part once only with --soak.

    They are taken from the covering set, whose programs are compiled anyway.
    """
    rows = [row for row in methods() if not coupled or is_coupled("+".join(row))]
    return _params(rows, _method, covering(usual("coupled" if coupled else "greedy"), 1))


def sampled() -> list[Any]:
    """Every other method with every temperature and top-p; those outside the covering set only with --soak."""
    others = [row for row in methods() if not is_coupled("+".join(row))]
    rows = [(*method, *how) for method in others for how in itertools.product(TEMPERATURES, TOP_P)]
    return _params(rows, lambda d, b, c, t, p: Sampled(parse_method("+".join((d, b, c))), t, p), usual("sampled"))


@functools.cache
def usual(rule: str) -> list[tuple]:
    """Methods verified by one of the three rules, such that every pair of drafter, builder, controller and rule occurs.

    Those that are sampled have a temperature and top-p, each of which occurs with every drafter and controller too.
    """
    every: list[tuple] = []
    for i, row in enumerate(row for row in methods() if row[1] not in SETTINGS):
        sampling = itertools.product(TEMPERATURES, TOP_P)
        other = [("coupled",)] if is_coupled("+".join(row)) else [("sampled", *how) for how in sampling]
        rules = [("greedy",), *other]
        every += [(*row, *how) for how in (rules if i % 2 else reversed(rules))]  # so that each rule has its share
    return [(*row[:3], *row[4:]) for row in covering(every, 2, BY_MUTANTS) if row[3] == rule]


_parsed = functools.cache(parse_method)  # each occurs in several sets


def _method(*parts: str) -> Method:
    return _parsed("+".join(parts))


def is_coupled(method: str) -> bool:
    """Whether the method's sampled text is plain decoding's for the same seed."""
    return isinstance(_parsed(method).rule(greedy=False), GumbelCoupling)


def covering(rows: Sequence[tuple], columns: int, begin: Sequence[tuple] = ()) -> list[tuple]:
    """A small subset of `rows` in which all values of so many columns that occur together in `rows` still do.

    It begins with the rows `begin`.
    """
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


def some(names: Iterable[str], *usual: str) -> list[Any]:
    """Names as parameters of a test; those outside `usual` only with --soak."""
    return [pytest.param(name, marks=() if name in usual else pytest.mark.soak) for name in names]


def _params(rows: list[tuple], build: Any, few: Sequence[tuple]) -> list[Any]:
    quick = set(few)
    marks = lambda row: () if row in quick else pytest.mark.soak
    name = lambda row: "+".join(map(str, row))
    return [pytest.param(build(*row), id=name(row), marks=marks(row)) for row in rows]
