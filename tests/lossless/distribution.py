"""The joint distribution of the first three tokens of a text, sampled and by exact enumeration, and their comparison.

Pearson's chi-square over all sequences; it raises a false alarm once in a million tests.
"""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from jaxspec.decoding.drafter import Models
from jaxspec.decoding.loop import decode
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import forward
from tests.lossless.harness import begun, requests, weights

FALSE_ALARM = 1e-6
VOCAB = 5
TOKENS = 3
PROMPT = [3, 1, 4, 1, 2, 3, 1]  # tokens repeat, so that prompt lookup finds something
TEXTS = 4096  # of them the wrong rules of `test_wrong_rules.py` have p-values below 1e-40
ROWS = 32


def p_value(spec: Speculation, models: Models, temperature: float = 1.0, top_p: float = 1.0) -> float:
    """The p-value of a method's texts, under the hypothesis that they have the target's distribution."""
    return chi_square(sample(spec, models, temperature, top_p), enumerate_joint(models, temperature, top_p))


def reference(logits: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    """The sampling distribution, written again from its definition in float64."""
    scaled = logits.astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    kept = np.zeros(len(probs), bool)
    kept[order[before < top_p]] = True
    return np.where(kept, probs, 0) / probs[kept].sum()


_forward = jax.jit(forward)


def enumerate_joint(models: Models, temperature: float, top_p: float) -> np.ndarray:
    """[V, V, V] exact probabilities of the first tokens after PROMPT."""
    texts = np.array(list(itertools.product(range(VOCAB), repeat=TOKENS)))
    tokens = np.concatenate([np.tile(PROMPT, (len(texts), 1)), texts], axis=1)
    width = tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(width), tokens.shape)
    causal = causal_mask(len(texts), width)
    empty = kv.allocate(models.target.config, len(texts), 1, models.target.dtype)
    none = jnp.zeros(len(texts), jnp.int32)
    out = _forward(models.target, jnp.asarray(tokens), positions, causal, empty, none)
    logits = np.asarray(models.target.logits(out.hidden))
    joint = np.ones(len(texts))
    for i in range(TOKENS):
        at = len(PROMPT) - 1 + i
        joint *= [reference(logits[j, at], temperature, top_p)[texts[j, i]] for j in range(len(texts))]
    return joint.reshape((VOCAB,) * TOKENS)


@cache
def asked(temperature: float, top_p: float) -> list[Request]:
    """Requests whose texts are longer than the compared tokens, so that no cut has an influence."""
    return requests([PROMPT] * TEXTS, TOKENS + 1, temperature=temperature, top_p=top_p)


def sample(spec: Speculation, models: Models, temperature: float, top_p: float) -> np.ndarray:
    """[V, V, V] counts over TEXTS texts."""
    counts, models = np.zeros((VOCAB,) * TOKENS, int), weights(spec, models)
    state = begun(spec, models, asked(temperature, top_p), (), ROWS)
    texts = np.asarray(decode(spec, models, state, jnp.int32(ROWS)).tokens)[:, len(PROMPT) :]
    np.add.at(counts, tuple(texts[:, :TOKENS].T), 1)
    return counts


def chi_square(counts: np.ndarray, joint: np.ndarray) -> float:
    """The p-value; sequences expected fewer than five times are pooled. 0 if an impossible one came up."""
    observed, expected = counts.ravel(), joint.ravel() * counts.sum()
    if observed[expected == 0].any():
        return 0.0
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(scipy.stats.chi2.sf(statistic, len(expected) - 1))
