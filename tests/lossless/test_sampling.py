"""Above temperature 0 the joint distribution of the first three tokens is the target's own, by exact enumeration.

That of plain decoding, that of every method with rejection sampling, and, once more, that of a few whose text is plain
decoding's anyway (`test_coupling.py`).

The test is Pearson's chi-square over all sequences; it raises a false alarm once in a million runs. That it has the
power to see a wrong rule is shown in `test_wrong_rules.py`.
"""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxspec.decoding.drafter import Models
from jaxspec.decoding.loop import decode
from jaxspec.decoding.request import Request
from jaxspec.drafters.early_exit import EarlyExit
from jaxspec.methods.method import parse_method
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import forward, unembed
from tests.lossless import combinations
from tests.lossless.harness import begun, models, requests, run, speculation, weights, with_kept_blocks

FALSE_ALARM = 1e-6
VOCAB = 5
TOKENS = 3
PROMPT = [3, 1, 4, 1, 2, 3, 1]  # tokens repeat, so that prompt lookup finds something
BATCH = 8192
BATCHES = 4
ROWS = 32
WORTH_OPTIMISING: dict[str, str | bool] = {"xla_backend_optimization_level": "1"}  # unlike what runs on few rows


@pytest.fixture(scope="module")
def target() -> Models:
    return models(VOCAB, num_layers=1)


@pytest.fixture(scope="module")
def deeper() -> Models:
    """A target that has a layer to exit before."""
    return models(VOCAB, num_layers=2)


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


def enumerate_joint(models: Models, temperature: float, top_p: float) -> np.ndarray:
    """[V, V, V] exact probabilities of the first tokens after PROMPT."""
    texts = np.array(list(itertools.product(range(VOCAB), repeat=TOKENS)))
    tokens = np.concatenate([np.tile(PROMPT, (len(texts), 1)), texts], axis=1)
    width = tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(width), tokens.shape)
    causal = causal_mask(len(texts), width)
    empty = kv.allocate(models.target.config, len(texts), 1, jnp.dtype("float32"))
    none = jnp.zeros(len(texts), jnp.int32)
    out = jax.jit(forward)(models.target, jnp.asarray(tokens), positions, causal, empty, none)
    logits = np.asarray(unembed(models.target, out.hidden))
    joint = np.ones(len(texts))
    for i in range(TOKENS):
        at = len(PROMPT) - 1 + i
        joint *= [reference(logits[j, at], temperature, top_p)[texts[j, i]] for j in range(len(texts))]
    return joint.reshape((VOCAB,) * TOKENS)


@cache
def asked(seed: int, temperature: float, top_p: float) -> list[Request]:
    """A batch of requests whose texts are longer than the compared tokens, so that no cut has an influence."""
    return requests([PROMPT] * BATCH, TOKENS + 1, seed=seed, temperature=temperature, top_p=top_p)


def sample(spec, models: Models, temperature: float, top_p: float) -> np.ndarray:
    """[V, V, V] counts over BATCH × BATCHES texts."""
    counts, models, loop = np.zeros((VOCAB,) * TOKENS, int), weights(spec, models), None
    rounds = jnp.int32(ROWS)
    for seed in range(BATCHES):
        state = begun(spec, models, asked(seed, temperature, top_p), (), ROWS)
        loop = loop or decode.lower(spec, models, state, rounds).compile(WORTH_OPTIMISING)
        texts = np.asarray(loop(models, state, rounds).tokens)[:, len(PROMPT) :]
        np.add.at(counts, tuple(texts[:, :TOKENS].T), 1)
    return counts


def p_value(counts: np.ndarray, joint: np.ndarray) -> float:
    """Of Pearson's chi-square; sequences expected fewer than five times are pooled. 0 if an impossible one came up."""
    observed, expected = counts.ravel(), joint.ravel() * counts.sum()
    if observed[expected == 0].any():
        return 0.0
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(scipy.stats.chi2.sf(statistic, len(expected) - 1))


@pytest.mark.parametrize("row", combinations.sampled())
def test_joint_distribution_is_the_targets(row: combinations.Sampled, target, deeper):
    target = deeper if isinstance(row.method.drafter, EarlyExit) else target
    joint = enumerate_joint(target, row.temperature, row.top_p)
    counts = sample(speculation(row.method, False), target, row.temperature, row.top_p)
    assert p_value(counts, joint) > FALSE_ALARM


@pytest.mark.parametrize("name", [name for name in combinations.WITH_KEPT_BLOCKS if not combinations.is_coupled(name)])
def test_with_a_skip_set_that_has_weights_of_its_own(name: str, target):
    counts = sample(speculation(parse_method(name), False), with_kept_blocks(target), 0.7, 0.8)
    assert p_value(counts, enumerate_joint(target, 0.7, 0.8)) > FALSE_ALARM


@pytest.mark.parametrize("name", ["plain", "draft-model+static", "eagle+eagle2,total=12,depth=4,width=3"])
def test_coupled_text_has_the_targets_distribution(name: str, target):
    assert combinations.is_coupled(name)
    counts = sample(speculation(parse_method(name), False), target, 0.7, 0.8)
    assert p_value(counts, enumerate_joint(target, 0.7, 0.8)) > FALSE_ALARM


@pytest.mark.parametrize(
    "method",
    [
        "draft-model+chain",
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
