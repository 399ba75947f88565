"""DSpark heads: nodes of a level have different drafts, of which the head estimates the acceptance; the text is the
target's."""

import pytest

from jaxspec.decoding.drafter import Models
from jaxspec.methods.method import parse_method
from tests.lossless import combinations
from tests.lossless.harness import NEW, check_texts, models, requests, run, run_refilled, speculation, with_dspark

QUICK = ("chain,length=4", "eagle2,total=12,depth=4,width=3")
METHODS = [
    *(pytest.param(f"dflash+{b}", marks=() if b in QUICK else pytest.mark.soak) for b in combinations.BUILDERS),
    pytest.param("dflash+chain,length=3+threshold,gamma=0.2", marks=pytest.mark.soak),
    "dflash+chain,length=4+confidence,threshold=0.5",
    f"dflash+{combinations.BUILDERS[-1]}+confidence,threshold=0.5",
    pytest.param("dflash+eagle2,total=12,depth=4,width=3+confidence,threshold=0.5", marks=pytest.mark.soak),
    pytest.param(f"dflash+{combinations.BUILDERS[-1]}+{combinations.CONTROLLERS[-1]}", marks=pytest.mark.soak),
    pytest.param("dflash,history=2+eagle2,total=8,depth=3,width=2", marks=pytest.mark.soak),  # as of DFlash
]
KINDS = [
    ("every token", True),
    ("half of the tokens", False),
    pytest.param("every token", False, marks=pytest.mark.soak),
    pytest.param("half of the tokens", True, marks=pytest.mark.soak),
]


@pytest.fixture(scope="module")
def target(tokens: str) -> Models:
    """The harness's models with a DSpark head, which drafts every token or half of them."""
    return with_dspark(models(vocab_size=23), None if tokens == "every token" else range(0, 23, 2))


@pytest.mark.parametrize(("tokens", "greedy"), KINDS, scope="module")
@pytest.mark.parametrize("name", METHODS)
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
