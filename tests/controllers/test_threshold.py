"""The thresholds of Draft & Verify: where they stop, and how the adaptive one moves, against a table made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.controllers.adaptive import Adaptive, AdaptiveState
from jaxspec.controllers.threshold import Threshold
from jaxspec.decoding.batch import restore_controller
from jaxspec.methods.method import parse_method
from tests.controllers.rounds import MODELS, keys_of, round_of, signals
from tests.lossless.harness import decoded, models, requests

# (accepted, levels) of a first round -> AR and gamma after it; both after another round with 4 of 4 accepted.
# By hand from arXiv:2309.08168, Eqs. 2 to 4, with the defaults: gamma 0.6, alpha 0.9, steps of 0.1 * 0.01.
TABLE = {
    "nothing accepted": ((0, 4), (0.0, 0.601), (0.5, 0.602)),
    "the only draft accepted": ((1, 1), (1.0, 0.599), (1.0, 0.598)),
    "partly accepted": ((3, 4), (0.75, 0.601), (0.875, 0.602)),
    "all accepted": ((4, 4), (1.0, 0.599), (1.0, 0.598)),
    "the cap reached, all accepted": ((12, 12), (1.0, 0.599), (1.0, 0.598)),
    "the cap reached, nothing accepted": ((0, 12), (0.0, 0.601), (0.5, 0.602)),
    "cut by EOS after two of them": ((2, 2), (1.0, 0.599), (1.0, 0.598)),
    "nothing drafted, or done": ((0, 0), (0.0, 0.6), (1.0, 0.599)),  # the round after it is the first
}


def pairs(state: AdaptiveState) -> np.ndarray:
    return np.stack([state.rate, state.gamma], axis=1)


def test_updates_are_the_tables():
    """All cases in one batch, one row each: so rows do not influence each other either."""
    controller = Adaptive()
    rounds, once, twice = zip(*TABLE.values(), strict=True)
    accepted, levels = zip(*rounds, strict=True)
    state = controller.update(controller.init(len(TABLE)), round_of(accepted, levels))
    np.testing.assert_allclose(pairs(state), once, atol=1e-6)
    assert state.begun.tolist() == [count > 0 for count in levels]
    four, none = ([count] * len(TABLE) for count in (4, 0))
    state = controller.update(state, round_of(four, four))
    np.testing.assert_allclose(pairs(state), twice, atol=1e-6)
    done = controller.update(state, round_of(none, none))
    assert pairs(done).tolist() == pairs(state).tolist()


def test_the_wanted_rate_itself_raises_the_threshold():
    """Eq. 3 has AR <= alpha."""
    for accepted, expected in ((3, 0.52), (4, 0.48)):
        controller = Adaptive(gamma=0.5, alpha=0.75, epsilon=0.04, beta2=0.5)
        state = controller.update(controller.init(1), round_of([accepted], [4]))
        assert state.gamma.item() == pytest.approx(expected)


def test_what_a_row_has_learnt_is_taken_up():
    """`--keep-state`: a row continues with the stored threshold and rate; other rows begin anew."""
    fresh = Adaptive().init(3)
    state = restore_controller(fresh, [None, [np.asarray(value) for value in (True, 0.25, 0.75)]])
    assert [leaf.tolist() for leaf in jax.tree.leaves(state)] == [
        [False, True, False],
        pytest.approx([0.6, 0.25, 0.6]),
        [0, 0.75, 0],
    ]
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(fresh)]


def test_a_draft_that_reaches_the_threshold_goes_on():
    seen = signals([0.5, 0.75, 0.25, jnp.nan], [0.5, 0.1, 0.25, jnp.nan])  # NaN: a drafter that abstained
    go_on = lambda controller: controller.keep_drafting(MODELS, keys_of(4), controller.init(4), seen).tolist()
    for kind in (Threshold, Adaptive):
        assert go_on(kind(gamma=0.5)) == [True, True, False, False]
        assert go_on(kind(gamma=0.5, confidence="token")) == [True, False, False, False]
        assert go_on(kind(gamma=0.0)) == [True, True, True, False]


def test_each_sequence_has_its_own_threshold():
    controller = Adaptive()
    state = AdaptiveState(gamma=jnp.array([0.4, 0.6]), rate=jnp.zeros(2), begun=jnp.ones(2, bool))
    seen = signals([0.5, 0.5], [0.5, 0.5])
    assert controller.keep_drafting(MODELS, keys_of(2), state, seen).tolist() == [True, False]


def test_the_draft_that_stopped_it_is_verified():
    """Of every round: all drafts but the last are confident enough; the last is not, or the chain is at its cap."""
    gamma, cap = 0.2, 4
    method = parse_method(f"draft-model+chain,length={cap}+threshold,gamma={gamma}")
    spec = method.speculation(True, record=True)
    state = decoded(spec, models(vocab_size=23), requests([[3, 1, 4, 1, 5], [9, 2, 6]], 40))
    assert state.trace is not None
    lengths, accepted_last = set(), False
    history = jax.tree.map(np.asarray, state.history)
    for row in range(2):
        for i in np.flatnonzero(history.committed[row])[:-1]:  # the last round was cut
            live = np.asarray(state.trace.live[row, i])
            confidence = np.exp(np.diff(np.asarray(state.trace.log_confidence[row, i])[live]))
            drafted = len(confidence)
            assert history.levels[row, i] == history.drafted[row, i] == history.verified[row, i] == drafted
            assert (confidence[:-1] >= gamma).all()
            assert confidence[-1] < gamma or drafted == cap
            lengths.add(drafted)
            accepted_last |= history.accepted[row, i] == drafted < cap
    assert len(lengths) > 2, "it never stopped at another length, so nothing was tested"
    assert accepted_last, "no draft that stopped a round was accepted"
