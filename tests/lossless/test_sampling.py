"""Above temperature 0 the joint distribution of the first three tokens is the target's own, by exact enumeration.

That of plain decoding, that of every method with rejection sampling, and, once more, that of a few whose text is plain
decoding's anyway (`test_coupling.py`). That the test has the power to see a wrong rule is shown in
`test_wrong_rules.py`.
"""

import pytest

from jaxspec.decoding.drafter import Models
from jaxspec.drafters.early_exit import EarlyExit
from jaxspec.methods.method import parse_method
from tests.lossless import combinations
from tests.lossless.distribution import FALSE_ALARM, PROMPT, VOCAB, p_value
from tests.lossless.harness import models, requests, run, speculation, with_kept_blocks


@pytest.fixture(scope="module")
def target() -> Models:
    return models(VOCAB, num_layers=1)


@pytest.fixture(scope="module")
def deeper() -> Models:
    """A target that has a layer to exit before."""
    return models(VOCAB, num_layers=2)


@pytest.mark.parametrize("row", combinations.sampled())
def test_joint_distribution_is_the_targets(row: combinations.Sampled, target, deeper):
    target = deeper if isinstance(row.method.drafter, EarlyExit) else target
    assert p_value(speculation(row.method, False), target, row.temperature, row.top_p) > FALSE_ALARM


@pytest.mark.parametrize("name", [name for name in combinations.WITH_KEPT_BLOCKS if not combinations.is_coupled(name)])
def test_with_a_skip_set_that_has_weights_of_its_own(name: str, target):
    assert p_value(speculation(parse_method(name), False), with_kept_blocks(target), 0.7, 0.8) > FALSE_ALARM


@pytest.mark.parametrize(
    "name",
    ["plain", pytest.param("draft-model+static", marks=pytest.mark.soak), "eagle+eagle2,total=12,depth=4,width=3"],
)
def test_coupled_text_has_the_targets_distribution(name: str, target):
    assert combinations.is_coupled(name)
    assert p_value(speculation(parse_method(name), False), target, 0.7, 0.8) > FALSE_ALARM


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("draft-model+chain", marks=pytest.mark.soak),
        "draft-model+chain,length=6+threshold,gamma=0.4",  # alone a row may draft fewer levels than its batch does
    ],
)
def test_a_seed_gives_the_same_text_in_any_batch(method: str, target):
    spec = speculation(parse_method(method), False)
    prompts = [[1, 2], PROMPT, [4, 4, 4], [0]]
    together = requests(prompts, 20, seed=7, temperature=0.9, top_p=0.9)
    texts, _ = run(spec, target, together)
    assert [run(spec, target, [request])[0][0] for request in together] == texts
    other, _ = run(spec, target, requests(prompts, 20, seed=8, temperature=0.9, top_p=0.9))
    assert other != texts
