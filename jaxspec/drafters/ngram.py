"""Prompt lookup: what followed the last time these tokens stood together (no weights, no forward)."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from jaxspec.decoding.drafter import Drafter, Models, Prefix, State
from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.tree import DraftTree, Frontier, take

CANDIDATES = 10  # different tokens that a node may be followed by


@final
@dataclasses.dataclass(frozen=True)
class Ngram(Drafter):
    """Matches the last tokens against everything committed; the longest match wins, then the most recent.

    Attributes:
        longest: most tokens compared.
        shortest: fewest that must match before anything is proposed; with no match a row drafts nothing.
        sharpness: nats between a match and one that is a token shorter, where the draft is sampled.
    """

    name: ClassVar[str] = "ngram"
    abstains: ClassVar[bool] = True
    longest: int = 3
    shortest: int = 1
    sharpness: float = 4.0

    def __post_init__(self) -> None:
        self.require(most=64, shortest=1, longest=0)  # each is a pass over the text
        if self.shortest > self.longest:
            raise ValueError(f"ngram: 1 <= shortest <= longest, not {self.shortest} and {self.longest}")
        if not 1 < self.sharpness < float("inf"):
            raise ValueError(f"ngram: sharpness must exceed 1, the weight of recency, not {self.sharpness}")

    def expand(
        self, models: Models, state: State, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, State]:
        history, rows = prefix.token, jnp.arange(prefix.token.shape[1])
        node, back = frontier.node, jnp.zeros_like(frontier.node)
        matched = jnp.zeros((*node.shape, history.shape[1]), jnp.int32)  # tokens that agree, ending at each position
        unbroken = jnp.ones(matched.shape, bool)
        for i in range(self.longest):  # the path to the node read backwards: drafted tokens, then committed ones
            at = prefix.length[:, None] - 1 - back
            token = jnp.where(
                node >= 0, take(tree.token, node), jnp.take_along_axis(history, jnp.maximum(at, 0), axis=1)
            )
            unbroken &= (jnp.roll(history, i, axis=1)[:, None] == token[..., None]) & (rows >= i) & (at >= 0)[..., None]
            matched += unbroken
            node = jnp.where(node >= 0, take(tree.parent, node), node)
            back += node < 0
        usable = (matched >= self.shortest) & (rows < prefix.length[:, None] - 1)[:, None]
        follows, size = jnp.roll(history, -1, axis=1)[:, None], history.shape[1]
        place = jnp.where(usable, matched * size + rows, -1)  # the longest match, then the most recent
        tokens, best = [], []
        for _ in range(CANDIDATES):  # the best, then the best that another token follows
            best.append(place.max(axis=-1))
            tokens.append(jnp.take_along_axis(follows[:, 0], best[-1] % size, axis=1))
            place = jnp.where(follows == tokens[-1][..., None], -1, place)
        found = jnp.stack(best, axis=-1)
        score = jnp.where(found >= 0, self.sharpness * (found // size) + found % size / size, -jnp.inf)
        total = jax.nn.logsumexp(score, axis=-1, keepdims=True)
        logits = score - jnp.where(jnp.isneginf(total), 0.0, total)
        return Drafts(logits=logits, token=jnp.stack(tokens, axis=-1)), state
