"""docs/extending.md: its strategies are short, run as the page says, and are as lossless as jaxspec's own."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxspec
from jaxspec.methods.method import parse_method
from tests.lossless.distribution import FALSE_ALARM, VOCAB, p_value
from tests.lossless.harness import models, requests, run, speculation

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NEW = 24


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page's code defines, that of the first block apart, which uses them."""
    names: dict[str, Any] = {}
    for block in BLOCKS[1:]:
        exec(compile(block, "extending.md", "exec", dont_inherit=True), names)
    return names


@pytest.fixture(scope="module")
def methods(page) -> list[jaxspec.Method]:
    """Each strategy beside jaxspec's own, and all three together."""
    drafter, builder, controller = page["Bigram"](), page["Comb"](), page["OneMore"]()
    model = parse_method("draft-model+chain")
    return [
        jaxspec.Method(drafter=drafter),
        jaxspec.Method(drafter=model.drafter, builder=builder),
        jaxspec.Method(drafter=model.drafter, controller=controller),
        jaxspec.Method(drafter=drafter, builder=parse_method("eagle+eagle2,total=8,depth=3,width=2").builder),
        jaxspec.Method(drafter=drafter, builder=builder, controller=controller),
    ]


@pytest.mark.parametrize("block", BLOCKS[1:], ids=("drafter", "builder", "controller"))
def test_each_is_short(block: str):
    assert len(block.strip().splitlines()) <= 60


def test_greedy_text_is_plain_decodings(methods):
    target, rng = models(vocab_size=11), np.random.default_rng(0)
    prompts = [rng.integers(0, 11, size=n).tolist() for n in (1, 7, 12)]
    plain, _ = run(speculation(parse_method("plain"), True), target, requests(prompts, NEW))
    for method in methods:
        texts, history = run(speculation(method, True), target, requests(prompts, NEW))
        assert texts == plain, method
        assert np.asarray(history.accepted).sum() > 0, f"{method}: no draft was accepted, so nothing was tested"


def test_sampled_text_is_the_targets(methods):
    target = models(VOCAB, num_layers=1)
    for method in methods[1:]:  # some with children that may be pruned, some with children that were drawn
        assert p_value(speculation(method, False), target, 1.0, 0.8) > FALSE_ALARM, method


def test_the_page_runs_as_it_says(page):
    found = eval(BLOCKS[0].partition("=")[2].strip(), {"jaxspec": jaxspec, **page})
    plain = jaxspec.Engine("builtin", "plain")
    prompt = "import os\nimport sys\n\n\ndef main(args):\n    print("
    ours, theirs = (each.generate(prompt, max_new_tokens=24)[0] for each in (found, plain))
    assert ours.tokens == theirs.tokens
    assert str(found.method) == "bigram+comb,length=3,width=2+one-more,first=2"
