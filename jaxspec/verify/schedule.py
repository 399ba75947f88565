"""What is checked, and in which order: methods, with `all` as every drafter of a checkpoint with many builders and
controllers, and their cases."""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxspec.builders import BUILDERS
from jaxspec.controllers import CONTROLLERS
from jaxspec.engine.head_weights import estimates, heads_of
from jaxspec.evaluate.all_methods import ALL, has_predictor
from jaxspec.methods.method import HISTORY, Method, default_method, parse_method, typed
from jaxspec.verify import verdict
from jaxspec.verify.cases import Case, Result, kinds
from jaxspec.verify.workloads import DISTRIBUTION, GREEDY, PLAIN

COSTS = "verify=1:1/2:1.2/4:1.4/8:1.6"
# Trees are small, because on a CPU every node costs time, and controllers stop often. Costs are fixed, so that cases do
# not depend on measurements. A part that is not listed here has its default settings.
BUILDER_SETTINGS = {
    "chain": ("chain,length=4", "chain,length=1", "chain,length=8"),
    "static": ("static,paths=0:1:2:00:01:10:000", "static"),
    "uniform": ("uniform,width=2,depth=3,total=8",),
    "cape": ("cape,depth=3",),
    "eagle2": ("eagle2,total=12,depth=4,width=3",),
    "pruned": ("pruned,width=3,depth=4,leaf=0.02,cost=0.1,total=12",),
    "budgeted": (f"budgeted,width=2,depth=4,cost=0.1,{COSTS},total=8",),
}
CONTROLLER_SETTINGS = {
    "threshold": ("threshold,gamma=0.2,confidence=token",),
    "adaptive": ("adaptive,gamma=0.3,alpha=0.5,epsilon=1.0",),
    "beta-ts": ("beta-ts,prior_alpha=1",),
    "length-ts": (f"length-ts,prior_alpha=1,cost=0.1,{COSTS}",),
    "expected-gain": (f"expected-gain,cost=0.2,{COSTS}",),
}
REFERENCE_EVERY = 8  # methods for a further case of plain decoding
MATCH = 3
"""Tokens that must match for history beside a head: few, so that texts of some dozen tokens have matches."""


def expand_methods(target: Path, methods: Sequence[str], seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The methods that a user named, with `all` expanded, in the order of checking.

    Returns those that are checked even if the time is spent, `plain` first, and all others. Raises ValueError if there
    is no method, or a name is not a method.
    """
    if not methods:
        raise ValueError("name at least one method, or `all`")
    named = [PLAIN, *(name for name in methods if name != ALL)]
    for name in named:
        parse_method(name)
    few, rest = combinations(target, seed) if ALL in methods else ((), ())
    first = tuple(dict.fromkeys((*named, *few)))
    return first, tuple(name for name in rest if name not in first)


def combinations(target: Path, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sound combinations of a checkpoint's drafters with builders and controllers, in an order drawn by the seed: first
    a few that together contain every part, then all others."""
    rows = sound(target)
    rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    missing, few = {part for row in rows for part in row}, []
    while missing:
        best = max(rows, key=lambda row: len(missing.intersection(row)))
        few.append(best)
        missing.difference_update(best)
    join = lambda several: tuple("+".join(row) for row in several)
    return join(few), join(row for row in rows if row not in few)


def sound(target: Path) -> list[tuple[str, str, str]]:
    """(drafter, builder, controller), with settings, of all methods that the checkpoint can run.

    History works the same with every head, so it is combined only with the first in the order of preference.
    """
    by_head, _ = heads_of(target)
    drafters, best = ["ngram", *by_head.values()], default_method(by_head.values())
    if best.head is not None:
        drafters.append(f"{typed(best.drafter.name, best.head)},{HISTORY}={MATCH}")
    builders = itertools.chain(*(BUILDER_SETTINGS.get(name, (name,)) for name in BUILDERS))
    controllers = itertools.chain(*(CONTROLLER_SETTINGS.get(name, (name,)) for name in CONTROLLERS))
    rows = itertools.product(drafters, builders, controllers)
    estimating = {name for name in drafters if estimates(target, parse_method(name))}
    return [row for row in rows if _runs(target, row, row[0] in estimating)]


def _runs(target: Path, row: tuple[str, str, str], estimating: bool) -> bool:
    """Whether these parts fit together and the target has what they need; `estimating`: `head_weights.estimates`."""
    try:
        method = parse_method("+".join(row))
    except ValueError:
        return False
    if method.controller.needs_estimates and not estimating:
        return False
    return not method.controller.needs_weights or (method.head is not None and has_predictor(target, method.head))


def in_order(
    names: Sequence[str],
    first: int,
    done: dict[Case, Result],
    exact: bool,
    kinds_of: Callable[[Method], tuple[str, ...]] = kinds,
) -> Iterator[Case]:
    """Yields cases without end: those of every method in turn. A case may be yielded twice.

    After each method follows one further case of a distribution test that has too few tokens. Tests of the `first`
    methods take precedence. Where near-ties are tested, plain decoding has further cases, because the others' rates are
    compared with its own.

    Args:
        first: number of methods at the start of `names`; further distribution cases wait until these were checked once.
        done: results of the cases yielded before. They determine which tests need more tokens.
        exact: as for `tests_of`.
        kinds_of: the kinds of a method's cases.
    """
    has = {name: kinds_of(parse_method(name)) for name in names}
    for position in itertools.count():
        name = names[position % len(names)]
        yield from (Case(name, kind, position // first) for kind in has[name])
        if not exact and position % REFERENCE_EVERY == 0:
            yield Case(PLAIN, GREEDY, position // REFERENCE_EVERY)
        if position + 1 < first:
            continue
        reached = names[: position + 1]
        needed = verdict.tokens_needed(tests_of(reached, exact))
        failed = {case.method for case, result in done.items() if result.error is not None}
        placed = [one for one in reached if DISTRIBUTION in has[one] and one not in failed]
        cases = {one: [case for case in done if (case.method, case.kind) == (one, DISTRIBUTION)] for one in placed}
        tokens = {one: sum(done[case].tokens for case in cases[one]) for one in placed}
        if few := [one for one in placed if tokens[one] < needed]:
            next_one = min(few, key=lambda one: (one not in names[:first], tokens[one]))
            numbers = {case.number for case in cases[next_one]}
            yield Case(next_one, DISTRIBUTION, next(n for n in itertools.count() if n not in numbers))


def tests_of(names: Collection[str], exact: bool) -> int:
    """Number of statistical tests of these methods: of distributions, and of the rate of near-ties.

    With an `exact` (float32) target near-ties are too rare to test.
    """
    distributions = sum(DISTRIBUTION in kinds(parse_method(name)) for name in names)
    return distributions + (0 if exact else len(names) - 1)
