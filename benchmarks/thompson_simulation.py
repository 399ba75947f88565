"""Compares every controller with every fixed length on simulated drafts, accepted as often as in the paper.

    python benchmarks/thompson_simulation.py

The log-odds that a drafted token is accepted are a sum: a mean, a deviation of the text (spread over texts) and a
deviation of the token (spread over tokens). The draft model's confidence is these log-odds plus an error. All
controllers use it except Beta-TS and Length-TS; the predictor of Cali-TS sees it too. The controllers are the
library's, and each text is a batch of one. The speedup is Eq. 14 of EESD (arXiv:2406.03853), in which verification
costs the same for every number of tokens. For each kind of text, the mean is set such that Beta-TS has the paper's r_d
for LLaMA-2 13B on Gsm8k (Table 10: 0.67; its v_d is 0.50). Alpha follows from the paper's Table 8: 3.66 s of drafting
and 7.99 s of verification, with about four drafts per round.
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders import Chain
from jaxspec.checkpoint.parameters import dict_to_module
from jaxspec.controllers import Adaptive, BetaTS, CaliTS, ExpectedGain, LengthTS, Threshold
from jaxspec.controllers.acceptance_predictor import AcceptancePredictor
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.decode_state import select_rows
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.round_counts import RoundCounts

TEXTS, ROUNDS, CAP, ALPHA = 1000, 150, 12, 0.113
PAPER_SHARE = 0.67  # r_d of Beta-TS


def oracle_predictor() -> AcceptancePredictor:
    """A predictor whose theta is the sigmoid of the draft's hidden state, which has one dimension."""
    weights = {"target": jnp.zeros((10, 1, 2)), "draft.kernel": jnp.array([[0.0, 1.0]])}
    return dict_to_module(CaliTS().build_weights(1, 1), weights)


FLAT: Any = {"cost": ALPHA, "verify": ((1, 1.0),)}
CONTROLLERS: dict[str, Controller] = {
    **{f"threshold, {gamma}": Threshold(gamma=gamma) for gamma in (0.2, 0.4, 0.6)},
    "adaptive": Adaptive(),
    "beta-ts": BetaTS(),
    **{f"cali-ts, {prediction}": CaliTS(prediction=prediction) for prediction in ("both", "model", "sampled")},
    "length-ts": LengthTS(**FLAT),
    "expected-gain": ExpectedGain(**FLAT),
}

nothing: Any = None
MODELS = Models(target=nothing, draft=None, control=oracle_predictor())  # a controller reads only `control`


def simulate(
    controller: Controller | None, length: int, odds: np.ndarray, error: float, seed: int
) -> tuple[float, float, float]:
    """Simulates all texts; returns v_d, r_d and the speedup by Eq. 14.

    Args:
        controller: None: every round drafts `length` tokens.
        length: used only without a controller.
        odds: log-odds that each draft is accepted, float [texts, rounds, cap].
        error: standard deviation of the confidence's error.
    """
    texts, rounds, _ = odds.shape
    rng = np.random.default_rng(seed)
    right = rng.random(odds.shape) < 1 / (1 + np.exp(-odds))
    seen = (odds + error * rng.normal(size=odds.shape)).astype(np.float32)
    if controller is None:
        drafted = np.full((texts, rounds), length)
    else:
        keys = jax.random.split(jax.random.key(seed), texts)
        drafted = np.asarray(_lengths(controller, jnp.asarray(seen), jnp.asarray(right), keys))
    run = np.cumprod(right, axis=2).sum(axis=2)
    accepted = np.minimum(run, drafted).sum()
    tokens = accepted + texts * rounds
    v, r = accepted / drafted.sum(), accepted / tokens
    return v, r, v / ((ALPHA - v) * r + v)


@partial(jax.jit, static_argnums=0)
@partial(jax.vmap, in_axes=(None, 0, 0, 0))
def _lengths(controller: Controller, seen: jax.Array, right: jax.Array, key: jax.Array) -> jax.Array:
    """Draft length of each round, int [texts, rounds]; each text is a batch of one."""
    rounds, cap = seen.shape
    everything = jnp.ones(1, bool)
    log_prob = jax.nn.log_sigmoid(seen)
    path = jnp.cumsum(log_prob, axis=1)

    def one_round(state: Any, at: jax.Array) -> tuple[Any, jax.Array]:
        keys = jax.random.fold_in(key, at)[None]
        state, drafts = controller.begin(MODELS, keys, state, everything, Chain(cap))

        def level(carry: tuple[Any, jax.Array, jax.Array], i: jax.Array) -> tuple[tuple, None]:
            state, active, length = carry
            probability = jnp.exp(log_prob[at, i])[None]
            signals = DraftSignals(
                level=i + 1,
                drafted=active,
                active=active,
                top_prob=probability,
                token_prob=probability,
                log_confidence=path[at, i][None],
                log_coverage=path[at, i][None],
                draft_hidden=seen[at, i, None, None],
                target_hidden=jnp.zeros((1, 1)),
            )
            state = select_rows(active, controller.note(state, signals), state)
            keys = jax.random.fold_in(jax.random.fold_in(key, at), i + 1)[None]
            return (state, active & controller.keep_drafting(MODELS, keys, state, signals), length + active), None

        start = (state, drafts, jnp.zeros(1, jnp.int32))
        (state, _, length), _ = jax.lax.scan(level, start, jnp.arange(cap))
        accepted = jnp.minimum(jnp.cumprod(right[at]).sum(), length)
        nodes = dict.fromkeys(("levels", "drafted", "verified"), length)
        counts = RoundCounts(committed=accepted + 1, accepted=accepted, uncut=accepted + 1, **nodes)
        return controller.update(state, counts), length[0]

    return jax.lax.scan(one_round, controller.init(1), jnp.arange(rounds))[1]


def odds_of(mean: float, over_texts: float, over_tokens: float) -> np.ndarray:
    """Log-odds that each draft is accepted, float [texts, rounds, cap]."""
    rng = np.random.default_rng(1)
    text = mean + over_texts * rng.normal(size=(TEXTS, 1, 1))
    return text + over_tokens * rng.normal(size=(TEXTS, ROUNDS, CAP))


def fitted(over_texts: float, over_tokens: float) -> np.ndarray:
    """Log-odds [texts, rounds, cap] with which Beta-TS has the paper's r_d; the mean is found by bisection."""
    low, high = -2.0, 5.0
    for _ in range(10):
        mean = (low + high) / 2
        _, share, _ = simulate(BetaTS(), 0, odds_of(mean, over_texts, over_tokens), 0.0, 0)
        low, high = (mean, high) if share < PAPER_SHARE else (low, mean)
    return odds_of(mean, over_texts, over_tokens)


def main() -> None:
    """Prints one table for each kind of text."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    for over_texts, over_tokens in ((0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (1.0, 2.0)):
        odds = fitted(over_texts, over_tokens)
        print(f"\nspread over texts {over_texts}, over tokens {over_tokens}\n{'':22} v_d   r_d   speedup")
        fixed = {k: simulate(None, k, odds, 1.0, 0) for k in range(1, CAP + 1)}
        best = max(fixed, key=lambda k: fixed[k][2])
        rows = {f"K={best}, the best": fixed[best], "K=10": fixed[10]}
        rows |= {name: simulate(controller, 0, odds, 1.0, 0) for name, controller in CONTROLLERS.items()}
        for name, (v, r, speedup) in rows.items():
            print(f"{name:20} {v:5.2f} {r:5.2f} {speedup:7.2f}  {speedup / fixed[best][2] - 1:+.1%}")


if __name__ == "__main__":
    main()
