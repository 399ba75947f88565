"""The counts that controllers get after a round: of each sequence, after its cut at EOS and budget."""

import jax
import numpy as np
import pytest

from jaxspec.controllers.beta_ts import BetaState
from jaxspec.decoding.drafter import Models
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.methods.method import parse_method
from tests.lossless.harness import decoded, models, requests, run, speculation

ALPHA, BETA = 2.0**20, 0.5  # so sure that every round drafts to its cap, whatever the first rounds say
CAP = 4
GAMMA = 0.2  # about what the drafts have here
READINGS = ("compared", "printed", "bonus")
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6]]


@pytest.fixture(scope="module")
def target() -> Models:
    return models(vocab_size=23)


@pytest.fixture(scope="module")
def oracle(target) -> Models:
    """Drafts by the target itself: every draft is accepted."""
    return Models(target=target.target, draft={DraftModel: target.target})


@pytest.fixture(scope="module")
def contrarian(target) -> Models:
    """Drafts the target's least likely tokens: no draft is accepted."""
    return Models(target=target.target, draft={DraftModel: jax.tree.map(lambda x: -x, target.target)})


@pytest.fixture(scope="module")
def texts(oracle):
    return run(speculation(method(READINGS[0]), True), oracle, requests(PROMPTS, 40))[0]


def method(reading: str):
    return parse_method(
        f"draft-model+chain,length={CAP}+beta-ts,prior_alpha={ALPHA},prior_beta={BETA},reading={reading}"
    )


def learnt(state) -> list[tuple[float, float]]:
    """The increments of alpha and beta, one row each."""
    found: BetaState = state.controller
    return list(zip((found.alpha - ALPHA).tolist(), (found.beta - BETA).tolist(), strict=True))


def columns(state, rounds: int, *names: str) -> list[list[int]]:
    """Some counts of the first rounds of the first row."""
    return [[int(getattr(state.history, name)[0, i]) for name in names] for i in range(rounds)]


@pytest.mark.parametrize("reading", READINGS)
class TestRounds:
    """Prefill gives the first token. Then a round commits the accepted drafts and the bonus token."""

    def test_cap_reached(self, reading: str, oracle):
        # 1 + 5 + 5 tokens: two rounds, in each 4 of 4 accepted.
        state = decoded(speculation(method(reading), True), oracle, requests(PROMPTS, 11))
        assert columns(state, 2, "accepted", "levels", "uncut") == [[4, 4, 5], [4, 4, 5]]
        assert learnt(state) == [{"compared": (8, 0), "printed": (6, 2), "bonus": (8, 0)}[reading]] * 2

    def test_nothing_accepted(self, reading: str, contrarian):
        # 1 + 1 + 1 + 1 tokens: three rounds, in each 0 of 4; the last one cut by the budget, after its only token.
        state = decoded(speculation(method(reading), True), contrarian, requests(PROMPTS, 4))
        assert columns(state, 3, "committed", "accepted", "levels") == [[1, 0, 4]] * 3
        assert learnt(state) == [{"compared": (0, 3), "printed": (-3, 6), "bonus": (0, 6)}[reading]] * 2

    def test_cut_by_eos(self, reading: str, oracle, texts):
        # EOS is a draft of the first round: those up to it are accepted, the levels after it were never there. EAGLE
        # counts the whole round, of four drafts and the bonus token.
        at = next(i for i in (3, 2) if texts[0][i] not in texts[0][:i])
        state = decoded(speculation(method(reading), True), oracle, requests(PROMPTS, 40), [texts[0][at]])
        assert columns(state, 1, "committed", "accepted", "levels", "uncut") == [[at, at, at, 5]]
        assert learnt(state)[0] == {"compared": (at, 0), "printed": (at - 1, 1), "bonus": (at, 0)}[reading]

    def test_a_sequence_that_is_done_learns_no_more(self, reading: str, oracle):
        # The first row stops inside its first round, after 2 tokens; the second goes through two whole ones.
        short, long = requests(PROMPTS[:1], 3)[0], requests(PROMPTS, 11)[1]
        state = decoded(speculation(method(reading), True), oracle, [short, long])
        assert int(state.round) == 2
        assert np.asarray(state.history.uncut)[:2, :2].tolist() == [[5, 0], [5, 5]]
        first = {"compared": (2, 0), "printed": (1, 1), "bonus": (2, 0)}[reading]
        assert learnt(state) == [first, {"compared": (8, 0), "printed": (6, 2), "bonus": (8, 0)}[reading]]


def beta_ts(accepted: np.ndarray, levels: np.ndarray) -> list[float]:
    compared = np.minimum(accepted + 1, levels).sum()
    return [2 + accepted.sum(), 1 + compared - accepted.sum()]


def cali_ts(accepted: np.ndarray, levels: np.ndarray) -> list[float]:
    compared = np.minimum(accepted + 1, levels).sum()
    return [(0.75 + accepted.sum()) / (1 + compared), (levels > 0).sum(), compared]  # leaves go by name


def adaptive(accepted: np.ndarray, levels: np.ndarray) -> list[float]:
    gamma, rate = GAMMA, None
    for of_round in accepted[levels > 0] / levels[levels > 0]:
        rate = of_round if rate is None else (rate + of_round) / 2
        gamma += 0.1 * (0.05 if rate <= 0.9 else -0.05)
    assert rate is not None
    return [True, gamma, rate]


@pytest.mark.parametrize(
    ("controller", "expected"),
    [("beta-ts,prior_alpha=2", beta_ts), ("cali-ts", cali_ts), (f"adaptive,gamma={GAMMA},epsilon=0.05", adaptive)],
)
def test_what_is_learnt_follows_from_the_history(controller: str, expected, target):
    """Recounted by hand from rounds of every kind; rows of a batch stop at different levels."""
    spec = speculation(parse_method(f"draft-model+{controller}"), True)
    state = decoded(spec, target, requests(PROMPTS, 40))
    history = jax.tree.map(np.asarray, state.history)
    assert len(set(zip(history.accepted.ravel().tolist(), history.levels.ravel().tolist(), strict=True))) > 5
    for row in range(len(PROMPTS)):
        accepted, levels = history.accepted[row], history.levels[row]
        found = [leaf[row].item() for leaf in jax.tree.leaves(state.controller)]
        assert found == pytest.approx(expected(accepted, levels), abs=1e-5)


def test_stops_are_the_same_in_any_batch(target):
    """Draws depend on seed, position and level only, not on the batch or the row's place in it."""
    spec = speculation(parse_method("draft-model+chain,length=3+cali-ts"), False)
    together = requests([*PROMPTS, [7], [1, 2]], 30, seed=5, temperature=0.9)
    texts, history = run(spec, target, together)
    others = requests([[8] * 5] * 4, 30, seed=6, temperature=0.9)
    elsewhere, there = run(spec, target, [others[0], together[3], together[0], others[3]])
    rounds = min(there.committed.shape[1], history.committed.shape[1])
    for row, place in ((3, 1), (0, 2)):
        assert elsewhere[place] == texts[row]
        first = lambda counts, at: jax.tree.map(lambda column: column[at, :rounds].tolist(), counts)
        assert first(there, place) == first(history, row)
    assert elsewhere[0] != elsewhere[3]
