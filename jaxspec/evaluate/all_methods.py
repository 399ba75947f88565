"""The methods that `--methods all` stands for: those of the papers' tables that the checkpoint can run."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from jaxspec.builders import BUILDERS
from jaxspec.checkpoint.heads import find_head
from jaxspec.controllers import CONTROLLERS, ExpectedGain
from jaxspec.controllers.cali_ts import FOLDER
from jaxspec.engine.default_method import named_by_head
from jaxspec.engine.head_weights import estimates, fitted, heads_of
from jaxspec.methods.method import HISTORY, default_method, parse_method, typed

ALL = "all"
CHAIN = "chain,length=5"  # as EAGLE's n-α and EDD's Table 1
LENGTHS = (2, 8)  # of further chains
MATCH = 5  # `history`: tokens that must match before a draft is copied from the text (SAM decoding, arXiv:2411.10666)


def all_methods(target: Path) -> tuple[str, ...]:
    """Methods of a checkpoint, `plain` first.

    Each usable head and prompt lookup run as a chain. The best head also runs with the method that its config.json
    names (and with it and `expected-gain`, which drafts only where that pays), with every other builder and controller,
    with history, and as a shorter and a longer chain. Heads with an acceptance predictor also run with `beta-ts` and
    `cali-ts`. Of methods that are the same for a head, because it drafts short blocks, only the first is listed.
    """
    first: dict[str, str] = {}
    for name in _methods(target):
        first.setdefault(str(fitted(target, parse_method(name))), name)
    return tuple(first.values())


def has_predictor(target: Path, head: str) -> bool:
    """Whether a head has an acceptance predictor, which some controllers need."""
    return (find_head(target, head) / FOLDER / "config.json").exists()


def _methods(target: Path) -> Iterator[str]:
    yield "plain"
    by_head, _ = heads_of(target)
    yield from (f"{drafter}+{CHAIN}" for drafter in (*by_head.values(), "ngram"))
    best = default_method(by_head.values())
    if (named := named_by_head(target, best)) != best:
        yield str(named)
        yield str(dataclasses.replace(named, controller=ExpectedGain()))
    drafter = typed(best.drafter.name, best.head)
    yield from (f"{drafter}+{builder}" for builder in BUILDERS if builder != "chain")
    for name, controller in CONTROLLERS.items():
        possible = not controller.needs_estimates or estimates(target, best)
        if name != "fixed" and not controller().needs_weights and possible:
            yield f"{drafter}+chain+{name}"
    if best.head is not None:
        yield f"{drafter},{HISTORY}={MATCH}+chain"
    for head, learned in by_head.items():
        if has_predictor(target, head):
            yield from (f"{learned}+chain+{name}" for name in ("beta-ts", "cali-ts"))
    yield from (f"{drafter}+chain,length={length}" for length in LENGTHS)
