"""Decides whether rounding explains that a text differs from plain decoding's, greedy or sampled with the same noise.

Plain decoding selects the token with the largest logit. Above temperature 0, it selects the token with the largest
log p + g, where the seed and the position determine the Gumbel noise g. Two evaluations of the logits differ in their
last bits. So a near-tie can flip, and one evaluation may keep a token at the edge of top-k or top-p that the other cuts
off. Rounding explains a difference if logits within the noise of the target's own could select either token.
"""

from collections.abc import Sequence

import jax
import numpy as np

from jaxspec.decoding.loop import FIRST, VERIFY
from jaxspec.decoding.request import Request
from jaxspec.engine.engine import Engine
from jaxspec.evaluate import divergence
from jaxspec.evaluate.divergence import Divergence
from jaxspec.verify.exact import kept
from jaxspec.verify.workloads import GREEDY, Source

NOISE_SIZES = (4, 32)  # tokens in one forward: those of a small and of a large tree
NOISE_TEXTS, NOISE_TOKENS = 8, 48


def measure_noise(plain: Engine, source: Source, seed: int) -> float:
    """Largest difference of this target's logits between two evaluations of the same texts.

    It compares forwards over one token and over several, and a batch of eight with batches of one. The number and
    length of the texts are fixed, so a longer run has the same tolerance.
    """
    drawn = source.workload(seed, GREEDY, 0).requests[:NOISE_TEXTS]
    prompts = [request.tokens for request in drawn]
    budget = min(NOISE_TOKENS, source.room - max(map(len, prompts)))
    found = plain.generate(prompts, max_new_tokens=budget, batch_size=NOISE_TEXTS)
    texts = [(one.prompt_tokens, one.tokens) for one in found]
    with plain.model.context():
        target = plain.model.target
        by_size = divergence.noise(target, [texts], NOISE_SIZES)
        return max(by_size, divergence.batch_noise(target, texts))


def explain(
    plain: Engine, request: Request, prompt: int, expected: Sequence[int], tokens: Sequence[int], noise: float
) -> Divergence | None:
    """The divergence of `tokens` from plain decoding's `expected`; None if they are equal.

    Args:
        prompt: number of the request in its case.
        noise: rounding noise of the target's logits.
    """
    with plain.model.context():
        if not request.sampling.temperature:
            return divergence.diverges(plain.model.target, prompt, 0, (request.tokens, expected), tokens)
        position = divergence.first_difference(expected, tokens)
        if position is None:
            return None
        logits = divergence.next_logits(plain.model.target, [*request.tokens, *expected[:position]])
    how, there = request.sampling, kept(logits, request.sampling, noise)
    scores = logits.astype(np.float64) + how.temperature * gumbel(request, position, len(logits))
    second, best = np.sort(scores[there.maybe])[-2:].tolist() if there.maybe.sum() > 1 else (-np.inf, 0.0)
    behind = None
    if position < min(len(expected), len(tokens)):
        both = [expected[position], tokens[position]]
        if there.maybe[both].all():
            behind = max(0.0, float(scores[there.surely].max() - scores[both].min()))
    gap = best - second if np.isfinite(second) else float(best)
    return Divergence(prompt=prompt, turn=0, position=position, gap=gap, behind=behind)


def gumbel(request: Request, position: int, vocab_size: int) -> np.ndarray:
    """[V] float64, the Gumbel noise with which plain decoding samples the token at this position (from 0) of a text."""
    own = jax.random.fold_in(jax.random.key(request.sampling.seed), request.index)
    at = jax.random.fold_in(own, len(request.tokens) + position)
    key = jax.random.fold_in(at, VERIFY if position else FIRST)
    return np.asarray(jax.random.gumbel(key, (vocab_size,), np.float32)).astype(np.float64)
