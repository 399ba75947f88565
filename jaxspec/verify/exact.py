"""The target's own probabilities in NumPy and float64: a second implementation, to reveal faults in the library's
sampling. It also decides whether rounding explains that a text differs from plain decoding's.

Plain decoding selects the token with the largest logit. Above temperature 0, it selects the token with the largest
log p + g, where the seed and the position determine the Gumbel noise g. Two evaluations of the logits differ in their
last bits. So a near-tie can flip, and one evaluation may keep a token at the edge of top-k or top-p that the other cuts
off. Rounding explains a difference if logits within the noise of the target's own could select either token.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.batch import data_parts
from jaxspec.decoding.loop import FIRST, VERIFY
from jaxspec.decoding.prefill_buckets import SMALLEST_CACHE, power_of_two
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.sampling import row_key
from jaxspec.engine.engine import Engine
from jaxspec.evaluate import divergence
from jaxspec.evaluate.divergence import Divergence, Text
from jaxspec.host.processes import fetch
from jaxspec.model.llama import Llama
from jaxspec.verify.workloads import GREEDY, Source

TENTHS = 10  # of [0, 1], in which the places of tokens are counted
TOGETHER = 8  # texts in one forward


@dataclasses.dataclass(frozen=True)
class Kept:
    """A distribution over the vocabulary.

    Attributes:
        probability: [V] float64; 0 for tokens removed by top-k or top-p.
        surely: [V] bool, tokens that are kept for all logits within the noise.
        maybe: [V] bool, tokens that are kept for some logits within the noise.
    """

    probability: np.ndarray
    surely: np.ndarray
    maybe: np.ndarray


def kept(logits: np.ndarray, sampling: SamplingParams, noise: float) -> Kept:
    """The distribution from which a token is sampled: temperature (above 0), then top-k, then top-p.

    Args:
        logits: [V], float32.
        noise: largest difference of a logit in another evaluation.
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    slack = 2 * noise / sampling.temperature
    everything = np.ones(len(scaled), bool)
    inside, surely, maybe = everything, everything, everything
    if 0 < sampling.top_k < len(scaled):
        least = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        inside, surely, maybe = scaled >= least, scaled >= least + slack, scaled >= least - slack
        surely = surely | (inside & (inside.sum() == sampling.top_k) & (scaled > np.max(scaled[~inside]) + slack))
    weight = np.where(inside, np.exp(scaled - scaled.max()), 0.0)
    if (top_p := sampling.top_p) < 1:
        order = np.argsort(-scaled, kind="stable")
        ordered = weight[order]
        before = np.empty_like(weight)
        before[order] = (np.cumsum(ordered) - ordered) / ordered.sum()
        # Equal logits are kept or removed together: the probability before the first of them decides.
        _, group = np.unique(-scaled[order], return_inverse=True)
        before[order] = np.minimum.reduceat(before[order], np.flatnonzero(np.diff(group, prepend=-1)))[group]
        spread = np.expm1(2 * slack)
        best = scaled == scaled.max()
        surely, maybe = surely & ((before < top_p - spread) | best), maybe & (before < top_p + spread)
        weight = np.where((before < top_p) | best, weight, 0.0)
    return Kept(weight / weight.sum(), surely, maybe)


def places(
    model: Checkpoint, texts: Sequence[Text], params: Sequence[SamplingParams], noise: float, draw: np.random.Generator
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The places of every generated token of some texts in the target's probabilities (see `verdict`).

    Args:
        params: sampling parameters of each text, with temperatures above 0.
        noise: rounding noise of the target's logits.
        draw: generator of the share of a token's own probability that is part of its place.

    Returns:
        The number of places in each tenth of [0, 1], and (text, position) of tokens that the target cannot generate.
    """
    counts, impossible = np.zeros(TENTHS, int), []
    for begin in range(0, len(texts), TOGETHER):
        batch = texts[begin : begin + TOGETHER]
        for row, logits in enumerate(_logits(model, batch)):
            tokens, sampling = batch[row][1], params[begin + row]
            shares = draw.random(len(tokens))
            for position, (token, before, share) in enumerate(zip(tokens, logits, shares, strict=True)):
                target = kept(before, sampling, noise)
                if not target.probability[token]:
                    if not target.maybe[token]:
                        impossible.append((begin + row, position))
                    share = 1.0  # after the last kept token
                counts[int(TENTHS * min(place(target.probability, token, share), 1 - 1e-12))] += 1
    return tuple(counts.tolist()), tuple(impossible)


def place(probability: np.ndarray, token: int, share: float) -> float:
    """The probability of all tokens before this one (by falling probability, then id), plus a `share` of its own."""
    own = probability[token]
    before = probability[probability > own].sum() + own * np.count_nonzero(probability[:token] == own)
    return float(before + share * own)


def _logits(model: Checkpoint, texts: Sequence[Text]) -> list[np.ndarray]:
    """[tokens, V] for each text: the logits before each generated token, computed in the target's dtype, as float32."""
    longest = max(len(prompt) + len(tokens) for prompt, tokens in texts)
    with model.context():
        size = -(-TOGETHER // data_parts()) * data_parts()
        block = np.zeros((size, power_of_two(longest, SMALLEST_CACHE)), np.int32)
        for row, (prompt, tokens) in zip(block, texts, strict=False):
            row[: len(prompt) + len(tokens)] = [*prompt, *tokens]
        hidden, _ = divergence.read_texts(model.target, block, longest)
        by_text = []
        for row, (prompt, tokens) in enumerate(texts):
            logits = fetch(_unembed_row(model.target, hidden, row))
            by_text.append(logits[len(prompt) - 1 : len(prompt) + len(tokens) - 1].astype(np.float32))
    return by_text


@jax.jit
def _unembed_row(target: Llama, hidden: Float[Array, "B T D"], row: Int[Array, ""] | int) -> Float[Array, "T V"]:
    return target.logits(jax.lax.dynamic_index_in_dim(hidden, row, keepdims=False))


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
    results = plain.generate(prompts, max_new_tokens=budget, batch_size=NOISE_TEXTS)
    texts = [(result.prompt_tokens, result.tokens) for result in results]
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
    target = kept(logits, request.sampling, noise)
    scores = logits.astype(np.float64) + request.sampling.temperature * gumbel(request, position, len(logits))
    second, best = np.sort(scores[target.maybe])[-2:].tolist() if target.maybe.sum() > 1 else (-np.inf, 0.0)
    behind = None
    if position < min(len(expected), len(tokens)):
        both = [expected[position], tokens[position]]
        if target.maybe[both].all():
            behind = max(0.0, float(scores[target.surely].max() - scores[both].min()))
    gap = best - second if np.isfinite(second) else float(best)
    return Divergence(prompt=prompt, turn=0, position=position, gap=gap, behind=behind)


def gumbel(request: Request, position: int, vocab_size: int) -> np.ndarray:
    """[V] float64, the Gumbel noise with which plain decoding samples the token at this position (from 0) of a text."""
    own = row_key(request.sampling.seed, request.index)
    at = jax.random.fold_in(own, len(request.tokens) + position)
    key = jax.random.fold_in(at, VERIFY if position else FIRST)
    return np.asarray(jax.random.gumbel(key, (vocab_size,), np.float32)).astype(np.float64)
