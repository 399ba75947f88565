"""EAGLE-3's training: its unrolled steps give the logits that decoding drafts from, and its loss is the paper's."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import heads
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding.drafter import Committed, Models, Prefix
from jaxspec.drafters.draft_vocabulary import ids_of
from jaxspec.drafters.eagle3 import Eagle3, Eagle3Head
from jaxspec.engine.head_weights import restore_head
from jaxspec.model.llama import Llama
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Eagle3Objective
from jaxspec.train.methods import eagle3
from jaxspec.train.run.packed import target_features
from tests.drafters.chain import chain
from tests.train.command import QUICK, command, trained
from tests.train.windows import shape, two_windows

CONFIG = shape(4)
LENGTH, STEPS = 12, 3
IDS = (0, 2, 3, 5, 7, 8, 9, 11, 12)
OBSERVE = jax.jit(lambda drafter, *arguments: drafter.observe(*arguments), static_argnums=0)
FEATURES = jax.jit(target_features, static_argnums=2)


@pytest.fixture(scope="module")
def target() -> Llama:
    return Llama(CONFIG, rngs=nnx.Rngs(0))


WIDE = {"width": 2 * CONFIG.hidden_size, "window": 4, "tap_norm": "each"}


@pytest.fixture(scope="module", params=[{}, WIDE], ids=["usual", "wide"])
def head(request: pytest.FixtureRequest, target: Llama) -> Eagle3Head:
    """One as usual, and one wider than the target, with a sliding window, normed taps and an embedding of its own."""
    found = Eagle3().build_head(Eagle3().head_for(CONFIG, ids=IDS, **request.param), nnx.Rngs(1))
    return eagle3.initial(target, found) if request.param else found


@pytest.fixture(scope="module")
def batch() -> Windows:
    return two_windows(7, 5, 13)


@pytest.fixture(scope="module")
def steps(target: Llama, head: Eagle3Head, batch: Windows) -> list[jax.Array]:
    """What each step makes of each row."""
    _, taps = FEATURES(target, batch, head.options.taps)
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    unroll = jax.jit(lambda: eagle3.unroll(head, target, tokens, head.fuse(taps), segment, STEPS))
    return unroll()


def test_trains_what_decodes(target, head, batch, steps):
    """A row of each document: the logits after its root and along the text, drafted by the decoder."""
    _, taps = FEATURES(target, batch, head.options.taps)
    models, drafter = Models(target=target, draft=head), Eagle3()
    for row, begin, end, pair in ((0, 0, 7, 3), (0, 7, LENGTH, 8), (1, 0, LENGTH, 0), (1, 0, LENGTH, 8)):
        whole = lambda x, row=row, begin=begin: jnp.roll(x[row : row + 1], -begin, axis=1)
        tokens, pairs = whole(jnp.asarray(batch.tokens)), pair - begin + 1  # true ones, of which the last is the row
        committed = Committed(
            start=jnp.array([0]),
            count=jnp.array([pairs]),
            token=tokens,
            next_token=jnp.roll(tokens, -1, axis=1),
            hidden=jnp.zeros((1, LENGTH, CONFIG.hidden_size)),
            taps=tuple(map(whole, taps)),
        )
        state = OBSERVE(drafter, models, drafter.init(models, 1, 32), committed)
        prefix = Prefix(token=jnp.pad(tokens, [(0, 0), (0, 20)]), length=jnp.array([pairs + 1]), cache=())
        found = chain(drafter, models, state, prefix, STEPS - 1)
        for k in range(min(STEPS, end - pair - 1)):
            expected = jax.nn.log_softmax(head.logits(target, steps[k][row, pair]))
            np.testing.assert_allclose(found[0, k], expected, atol=1e-4)


def test_loss_is_the_papers(target, head, batch, steps):
    """Cross-entropy with the target over the draft vocabulary, where the target's first choice can be drafted."""
    features, _ = FEATURES(target, batch, head.options.taps)
    says, total, counts, right = np.asarray(target.logits(features)), 0.0, [0] * STEPS, [0] * STEPS
    for k, row, i in np.ndindex(STEPS, 2, LENGTH):
        drafted, said = i + 2 + k, i + 1 + k
        if drafted >= LENGTH or not batch.counted[row, drafted] or batch.segment[row, i] != batch.segment[row, drafted]:
            continue
        if (best := says[row, said].argmax()) not in IDS:
            continue
        weight = np.exp(says[row, said][list(IDS)])
        logits = np.asarray(head.logits(target, steps[k][row, i]), np.float64)
        log_q = logits - np.log(np.exp(logits).sum())
        total -= 0.8**k * (weight / weight.sum() * log_q).sum()
        counts[k] += 1
        right[k] += IDS[logits.argmax()] == best
    objective = Eagle3Objective(draft_steps=STEPS, decay=0.8)
    found, sums = jax.jit(partial(eagle3.loss, objective=objective))(head, target, batch, None)
    assert float(found) == pytest.approx(total, rel=1e-4)
    assert float(sums["count"]) == counts[0] > 0
    for k in range(STEPS):
        assert (float(sums[f"alpha_{k}"]), float(sums[f"alpha_{k}/rows"])) == (right[k], counts[k])


def test_gradients_reach_every_weight(target, head, batch):
    """Through all steps: none is cut off, and none overflows where a row counts for nothing."""
    objective = Eagle3Objective(draft_steps=STEPS)
    slopes = jax.jit(jax.grad(lambda head: eagle3.loss(head, target, batch, None, objective)[0]))(head)
    for name, slope in module_to_dict(slopes).items():
        assert np.isfinite(slope).all() and np.abs(slope).max() > 0, name


def test_a_head_begins_with_the_targets_lm_head(target):
    head = eagle3.initial(target, Eagle3().build_head(Eagle3().head_for(CONFIG, ids=IDS), nnx.Rngs(0)))
    np.testing.assert_array_equal(head.ids, IDS)
    assert target.lm_head is not None and head.lm_head is not None
    np.testing.assert_array_equal(head.lm_head.kernel[...], target.lm_head.kernel[...][:, np.array(IDS)])
    assert head.lm_head.kernel[...] is not target.lm_head.kernel[...]


def test_a_head_is_trained_used_and_trained_on(ckpt, data, tmp_path):
    engine, lines = trained("eagle3", ckpt, "--data", data, "--draft-vocab", 64, "--draft-steps", 3)
    assert {"alpha_0", "alpha_1", "alpha_2"} <= lines[0].keys()
    assert str(engine.method).startswith("eagle3+chain")
    config = heads.read_head(ckpt / "heads/eagle3", "eagle3")
    ids = {*ids_of(config.settings["draft_vocabulary"], config.model.vocab_size).tolist()}
    assert len(ids) == 64
    assert {*engine.model.tokenizer.encode("def f1(x):\n    return", add_special_tokens=False)} <= ids
    assert {*engine.model.config.eos} <= ids

    def go_on(*options: object) -> tuple[int, str]:
        again = (*QUICK, "--steps", 1, "--learning-rate", 1e-9, "--data", data, "--draft-steps", 3, "--init", "eagle3")
        return command("eagle3", "--target", ckpt, *again, "--out", tmp_path / "next", *options)

    for options, words in {
        ("--taps", 0): "eagle3, has taps = [0, 0, 0], and the options of this training give [0]",
        ("--draft-vocab", 64): "--draft-vocab has no effect with --init, whose head has a draft vocabulary",
        ("--init", "medusa"): "no head 'medusa' under",
    }.items():
        code, err = go_on(*options)
        assert (code, words in err, (tmp_path / "next").exists()) == (2, True, False), err
    file = ckpt / "heads/eagle3/config.json"
    values = json.loads(file.read_text())
    assert values["settings"].pop("window") == 0  # as in heads of earlier versions, which have the default
    file.write_text(json.dumps(values))
    code, err = go_on()
    assert code == 0, err
    assert heads.read_head(tmp_path / "next", "eagle3") == config
    ours, theirs = (restore_head(engine.model, Eagle3(), path) for path in (tmp_path / "next", ckpt / "heads/eagle3"))
    for name, weights in module_to_dict(theirs).items():
        np.testing.assert_allclose(module_to_dict(ours)[name], weights, atol=1e-6, err_msg=name)
