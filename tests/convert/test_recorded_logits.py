"""EAGLE-3 in NumPy, to which our drafter is held, and our block heads compute what other projects' code computed."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint import loading
from jaxspec.convert import heads
from jaxspec.decoding import tree as trees
from jaxspec.decoding.drafter import Committed, Models, Prefix
from jaxspec.drafters.dflash import Dflash, of_level
from jaxspec.engine.head_weights import restore_head
from tests.convert import record_deepspec, record_speculators
from tests.convert.published_heads import BLOCK, DFLASH_TAPS, write
from tests.convert.record_speculators import COUNT, FLAGS, STEPS, TAPS, head, hidden_of, text
from tests.convert.test_eagle3_oracle import Case, Setup, expected

PROJECTS = {"speculators": record_speculators, "deepspec": record_deepspec}
BLOCKS = [(project, name) for project, recorder in PROJECTS.items() for name in recorder.BLOCKS]


@pytest.mark.parametrize("name", FLAGS)
def test_eagle3_is_what_speculators_computed(name: str):
    flags = FLAGS[name]
    case = Case(
        config={},
        taps=tuple(TAPS),
        tap_norm="all" if flags.get("norm_before_fc") else "each" if flags.get("fc_norm") else "none",
        normed_residual=flags.get("norm_before_residual", False),
        fed_back_normed=flags.get("norm_output", False),
    )
    _, hidden = text()
    assert_drafts(case, head(flags), hidden, record(record_speculators)["logits"][name])


def test_eagle3_is_what_deepspec_computed():
    taps, (_, hidden) = tuple(record_deepspec.EAGLE3_TAPS), text()
    there = [hidden_of(hidden, tap) for tap in range(max(taps) + 1)]
    assert_drafts(Case({}, taps=taps), record_deepspec.eagle3_head(), there, record(record_deepspec)["eagle3"])


def record(recorder: ModuleType) -> dict[str, Any]:
    return json.loads(recorder.RECORD.read_text())


def assert_drafts(case: Case, found: dict[str, np.ndarray], hidden: list[np.ndarray], recorded: list) -> None:
    """The rendering's log-probabilities after the committed tokens and some drafts are those of recorded logits."""
    (tokens, _), nothing = text(), cast(Any, None)  # the rendering reads the published tensors alone
    setup = Setup(case, nothing, found, tokens, hidden, ())
    assert len(recorded) == STEPS
    for step, logits in enumerate(recorded):
        path = tokens[COUNT : COUNT + step].tolist()
        wanted = np.array(logits) - np.log(np.exp(logits).sum())
        np.testing.assert_allclose(expected(setup, COUNT, path), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("project", "name"), BLOCKS)
def test_blocks_are_those_that_were_computed(project: str, name: str, target: Path, tmp_path: Path):
    """A round after COUNT - 1 tokens, decoded; the drafts of each level follow the text's own tokens.

    That an export has the same tensors and config is shown in `test_dflash.py`.
    """
    recorder = PROJECTS[project]
    path = write(tmp_path / "published", recorder.block_head(name), recorder.block_config(name))
    heads.convert(path, tmp_path / "head", target / "ckpt")
    model = loading.load(target / "ckpt", "float32")
    draft = restore_head(model, Dflash(), tmp_path / "head")
    models, drafter = Models(target=model.target, draft=draft), Dflash(block=BLOCK + draft.options.anchor)
    tokens, hidden = text()
    anchor, given = COUNT - 1, jnp.asarray(tokens[None], jnp.int32)
    taps = tuple(jnp.asarray(hidden_of(hidden, tap)[None, :anchor]) for tap in DFLASH_TAPS)
    committed = Committed(
        start=jnp.array([0]), count=jnp.array([anchor]), token=given[:, :anchor], next_token=given[:, 1 : anchor + 1],
        hidden=taps[0], taps=taps,
    )  # fmt: skip
    prefix = Prefix(token=given, length=jnp.array([anchor + 1]), cache=())
    with jax.default_matmul_precision("highest"):
        state = drafter.observe(models, drafter.init(models, 1, 32), committed)
        _, state = drafter.root(models, state, prefix, trees.init_tree(given[:, anchor], 2, None))
        levels = [
            of_level(draft, state, level, given[:, anchor + level, None]) for level in range(draft.options.levels)
        ]
    wanted = record(recorder)["blocks"][name]
    rows = slice(0 if draft.options.anchor else 1, None)
    found = np.stack([np.asarray(each.logits[0, 0]) for each in levels])
    np.testing.assert_allclose(found, np.array(wanted["logits"])[rows], atol=1e-4)
    if "odds" in wanted:
        chance = np.exp([float(jnp.asarray(each.log_accept)[0, 0]) for each in levels])
        np.testing.assert_allclose(np.log(chance) - np.log1p(-chance), np.array(wanted["odds"])[rows], atol=1e-4)
