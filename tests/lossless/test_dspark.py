"""DSpark heads: nodes of a level have different drafts, of which the head estimates the acceptance; the text is the
target's."""

import itertools

import pytest

from jaxspec.decoding.drafter import Models
from jaxspec.methods.method import parse_method
from tests.lossless import combinations
from tests.lossless.harness import NEW, check_texts, models, requests, run, run_refilled, speculation, with_dspark

CHAIN, TREE = "dflash+chain,length=4", "dflash+eagle2,total=12,depth=4,width=3"
BUDGETED, CONFIDENCE = f"dflash+{combinations.BUILDERS[-1]}", "confidence,threshold=0.5"
METHODS = [
    *(f"dflash+{builder}" for builder in combinations.BUILDERS),
    *(f"{method}+{CONFIDENCE}" for method in (CHAIN, BUDGETED, TREE)),
    "dflash+chain,length=3+threshold,gamma=0.2",
    f"{BUDGETED}+{combinations.CONTROLLERS[-1]}",
    "dflash,history=2+eagle2,total=8,depth=3,width=2",  # as of DFlash
]
KINDS = [*itertools.product(("every token", "half of the tokens"), (True, False))]
GREEDY, SAMPLED = KINDS[0], KINDS[-1]
QUICK = {  # each of these builders and controllers with both kinds
    CHAIN: [GREEDY],
    f"{CHAIN}+{CONFIDENCE}": [SAMPLED],
    TREE: [GREEDY, SAMPLED],
    f"{BUDGETED}+{CONFIDENCE}": [GREEDY, SAMPLED],
}
CASES = [
    pytest.param(name, *kind, marks=() if kind in QUICK.get(name, ()) else pytest.mark.soak)
    for kind, name in itertools.product(KINDS, METHODS)
]


@pytest.fixture(scope="module")
def target(tokens: str) -> Models:
    """The harness's models with a DSpark head, which drafts every token or half of them."""
    return with_dspark(models(vocab_size=23), None if tokens == "every token" else range(0, 23, 2))


@pytest.mark.parametrize(("name", "tokens", "greedy"), CASES, scope="module")
def test_text_is_plain_decodings(name: str, greedy: bool, target: Models, prompts: list[list[int]]):
    """Greedy, also in rows that are refilled, or sampled with the same seeds."""
    spec, plain = (speculation(parse_method(each), greedy) for each in (name, "plain"))
    asked = requests(prompts, NEW) if greedy else requests(prompts, NEW, seed=3, temperature=0.8)
    expected, _ = run(plain, target, asked)
    history = check_texts(spec, target, asked, expected)
    if "+confidence" in name:
        assert 0 < (history.levels == 0).sum() < (history.committed > 0).sum(), "no or all rounds were plain"
    if greedy:
        each = [(3, 9), (0, NEW), (1, 1), (2, 17), (0, 5), (3, NEW)]
        short = [request for i, budget in each for request in requests([prompts[i]], budget)]
        assert run_refilled(spec, target, short) == [expected[i][:budget] for i, budget in each]
