"""docs/extending.md: its examples are short, run as the page says, and are as lossless as jaxspec's own."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx

import jaxspec
from jaxspec.builders import BUILDERS, Chain
from jaxspec.decoding.strategy import Strategy
from jaxspec.drafters import DRAFTERS
from jaxspec.methods.method import parse_method
from jaxspec.train.data import records
from tests.lossless.distribution import FALSE_ALARM, VOCAB, p_value
from tests.lossless.harness import models, requests, run, speculation

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NEW = 24
TRAINED = slice(4, 7)  # module, drafter and loss; the last two blocks train and run it


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page's code defines. The first block and the last two, which use them, are left out."""
    names: dict[str, Any] = {}
    for block in BLOCKS[1 : TRAINED.stop]:
        execute(block, names)
    return names


def execute(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "extending.md", "exec", dont_inherit=True), names)


@pytest.fixture(scope="module")
def methods(page) -> list[jaxspec.Method]:
    """The drafter, and the other two, beside jaxspec's own; and all three together."""
    drafter, builder, controller = page["Bigram"](), page["Comb"](), page["OneMore"]()
    model = parse_method("draft-model+chain")
    return [
        jaxspec.Method(drafter=model.drafter, builder=builder, controller=controller),
        jaxspec.Method(drafter=drafter, builder=parse_method("eagle+eagle2,total=8,depth=3,width=2").builder),
        jaxspec.Method(drafter=drafter, builder=builder, controller=controller),
    ]


@pytest.fixture
def registered():
    """Strategies that a test registers are forgotten."""
    before = dict(DRAFTERS)
    yield
    DRAFTERS.clear()
    DRAFTERS.update(before)


@pytest.mark.parametrize("block", BLOCKS[1:4], ids=("drafter", "builder", "controller"))
def test_each_is_short(block: str):
    assert len(block.strip().splitlines()) <= 60


def test_the_trained_drafter_is_short():
    section = PAGE[PAGE.index("## A trained drafter") : PAGE.index("## Adding it")]
    assert len(section.splitlines()) <= 150


def test_greedy_text_is_plain_decodings(methods):
    target, rng = models(vocab_size=11), np.random.default_rng(0)
    prompts = [rng.integers(0, 11, size=n).tolist() for n in (1, 7, 12)]
    plain, _ = run(speculation(parse_method("plain"), True), target, requests(prompts, NEW))
    for method in methods:
        texts, history = run(speculation(method, True), target, requests(prompts, NEW))
        assert texts == plain, method
        assert np.asarray(history.accepted).sum() > 0, f"{method}: no draft was accepted, so nothing was tested"


@pytest.mark.soak
def test_sampled_text_is_the_targets(methods):
    target = models(VOCAB, num_layers=1)
    for method in methods[:2]:  # one with children that were drawn, one with children that may be pruned
        assert p_value(speculation(method, False), target, 1.0, 0.8) > FALSE_ALARM, method


def test_a_head_of_random_weights_is_lossless_too(page):
    drafter = page["Recurrent"]()
    method = jaxspec.Method(drafter=drafter, builder=parse_method("eagle+eagle2,total=8,depth=3,width=2").builder)
    target = models(VOCAB, num_layers=1)
    head = drafter.build_head(drafter.head_for(target.target.config), nnx.Rngs(0))
    target = dataclasses.replace(target, draft={page["Recurrent"]: head})
    assert p_value(speculation(method, False), target, 1.0, 0.8) > FALSE_ALARM


def test_settings_of_modules_with_postponed_annotations_are_read(monkeypatch):
    monkeypatch.setitem(BUILDERS, "mine", Chain)
    del BUILDERS["mine"]  # so that it is forgotten afterwards
    text = """from __future__ import annotations
import dataclasses
from jaxspec.builders import Chain
@dataclasses.dataclass(frozen=True)
class Mine(Chain):
    name = "mine"
    most: TYPE = 3"""
    named: dict[str, Any] = {}
    exec(text.replace("TYPE", "int"), named)
    jaxspec.register(named["Mine"])
    assert str(parse_method("ngram+mine,length=4,most=2")).endswith("most=2+fixed")
    exec(text.replace("TYPE", "int | None"), named)
    with pytest.raises(ValueError, match=r"most of mine has the type int \| None, which is not read from text"):
        jaxspec.register(named["Mine"])
    with pytest.raises(ValueError, match="is not a class derived from Drafter"):
        jaxspec.register(Strategy)


@pytest.mark.parametrize(
    ("base", "fields", "words"),
    [
        ("Chain", {"name": "ngram"}, "jaxspec.drafters.ngram has a strategy named 'ngram'"),
        ("Chain", {"name": "a+b"}, "needs a `name` of letters, digits"),
        ("Chain", {"name": None}, "needs a `name` of letters, digits"),
        ("Drafter", {}, "is not a dataclass"),
        ("Ngram", {"name": "mine", "count": dataclasses.field(kw_only=True)}, "setting count of mine has no default"),
    ],
)
def test_a_strategy_that_no_method_could_name_is_refused(base: str, fields: dict[str, Any], words: str):
    bases = {"Chain": Chain, "Drafter": jaxspec.Drafter, "Ngram": DRAFTERS["ngram"]}
    annotations = {name: int for name in fields if name != "name"}
    kind = type("Mine", (bases[base],), {**fields, "__annotations__": annotations})
    with pytest.raises(ValueError, match=re.escape(words)):
        jaxspec.register(kind if base == "Drafter" else dataclasses.dataclass(frozen=True)(kind))


def test_a_chain_of_ones_own_stays_with_a_block_drafter():
    mine = dataclasses.dataclass(frozen=True)(type("Mine", (Chain,), {"name": "mine"}))
    method = dataclasses.replace(parse_method("dflash,block=4+chain"), builder=mine(length=9))
    shape = method.drafter.head_for(models(11).target.config)
    head = nnx.eval_shape(lambda: method.drafter.build_head(shape, nnx.Rngs(0)))
    assert method.fitted(head).builder == mine(length=3)


@pytest.mark.usefixtures("quick_runs", "registered")
def test_the_trained_drafter_is_trained_restored_by_name_and_benched(page, tmp_path, monkeypatch):
    """On the files of the standard library whose names begin with s, some of which are held out."""
    some_files = [file for file in records.standard_library() if file.name.startswith("s")]
    monkeypatch.setattr(records, "standard_library", lambda: some_files)
    monkeypatch.chdir(tmp_path)
    names, (train, use) = dict(page), BLOCKS[TRAINED.stop :]
    execute(train, names)
    steps = [json.loads(line) for line in Path("recurrent.run/metrics.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert losses[-1] < 0.8 * losses[0]
    quick = (
        "limit=1, sampling=jaxspec.SamplingParams(max_new_tokens=24), repeats=1, prices=False, json=Path('out.json')"
    )
    execute(use.replace("limit=2", quick), names)
    found = json.loads(Path("out.json").read_text())["methods"]["recurrent@./recurrent+chain,length=3+fixed"]
    assert found["unexplained_divergences"] == 0
    assert found["tau"] > 1.05, "no draft was accepted, so nothing was tested"


def test_the_page_runs_as_it_says(page):
    found = eval(BLOCKS[0].partition("=")[2].strip(), {"jaxspec": jaxspec, **page})
    plain = jaxspec.Engine("builtin", "plain")
    prompt = "import os\nimport sys\n\n\ndef main(args):\n    print("
    ours, theirs = (each.generate(prompt, max_new_tokens=24)[0] for each in (found, plain))
    assert ours.tokens == theirs.tokens
    assert str(found.method) == "bigram+comb,length=3,width=2+one-more,first=2"
