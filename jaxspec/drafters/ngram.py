"""Prompt lookup: drafts the tokens that followed an earlier match of the last tokens, without weights.

After Saxena's prompt lookup decoding (2023) and LLMA (arXiv:2304.04487), but with several candidates after each node.
"""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxspec.decoding.drafter import Committed, Drafter, Drafts, Models, Prefix
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take
from jaxspec.drafters import suffix_match
from jaxspec.drafters.suffix_match import MatchState

CANDIDATES = 10  # most different tokens that are proposed after a node


@final
@dataclasses.dataclass(frozen=True)
class Ngram(Drafter):
    """Prompt lookup: drafts the tokens that followed an earlier match of the last tokens.

    It compares the last tokens with all committed tokens. The longest match is taken, and of equal ones the latest. All
    candidates of a node together have the success rate of its longest match: the state counts, for each match length,
    how often the text continued as before.

    Attributes:
        longest: most tokens that are compared.
        shortest: fewest tokens that must match; a row without such a match drafts nothing.
        sharpness: for sampled drafts, the difference in nats between a match and one that is a token shorter.
    """

    name: ClassVar[str] = "ngram"
    abstains: ClassVar[bool] = True
    longest: int = 16
    shortest: int = 1
    sharpness: float = 4.0

    def __post_init__(self) -> None:
        self.require(most=64, shortest=1, longest=0)  # limited, because each token is a pass over the text
        if self.shortest > self.longest:
            raise ValueError(f"ngram: 1 <= shortest <= longest, not {self.shortest} and {self.longest}")
        self.require_that(lambda value: 1 < value < float("inf"), "exceed 1, the weight of recency", "sharpness")

    def init(self, models: Models, batch: int, cache_len: int) -> MatchState:
        return suffix_match.unmatched(batch, self.longest)

    def observe(self, models: Models, state: MatchState, committed: Committed) -> MatchState:
        return suffix_match.learn(state, committed.next_token, committed.count)

    def root(self, models: Models, state: MatchState, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, MatchState]:
        ahead = suffix_match.continuation(prefix.token, prefix.length, self.longest, tree.token.shape[1])
        begun = dataclasses.replace(state, ahead=ahead)
        return self.expand(models, begun, prefix, tree, root_frontier(tree.token.shape[0]))

    def expand(
        self, models: Models, state: MatchState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, MatchState]:
        history = prefix.token
        ends = path_ends(tree, frontier.node, suffix_match.last_tokens(history, prefix.length, self.longest))
        matched = suffix_match.match_lengths(history, prefix.length, ends)
        size = history.shape[1]
        place = jnp.where(matched >= self.shortest, matched * size + jnp.arange(size), -1)
        follows, tokens, best = jnp.roll(history, -1, axis=1)[:, None], [], []
        for _ in range(CANDIDATES):  # the longest, then latest match; then the next one with another next token
            best.append(place.max(axis=-1))
            tokens.append(jnp.take_along_axis(follows[:, 0], best[-1] % size, axis=1))
            place = jnp.where(follows == tokens[-1][..., None], -1, place)
        hits = jnp.stack(best, axis=-1)  # matched tokens * size + position; -1: none
        score = jnp.where(hits >= 0, self.sharpness * (hits // size) + hits % size / jnp.float32(size), -jnp.inf)
        total = jax.nn.logsumexp(score, axis=-1, keepdims=True)
        chance = suffix_match.chance(state, jnp.maximum(hits[..., :1] // size, 0))
        logits = score + jnp.where(hits[..., :1] >= 0, jnp.log(chance) - total, 0.0)
        return Drafts(logits=logits, token=jnp.stack(tokens, axis=-1)), state


def path_ends(
    tree: DraftTree, node: Int[Array, "B W"], committed: Int[Array, "B 1 longest"]
) -> Int[Array, "B W longest"]:
    """The last tokens of each node's path, last first: drafted ones, then `committed`, which starts with the root."""
    place = jnp.arange(committed.shape[-1])
    drafted = take(tree.depth, node)[..., None]
    back = drafted - tree.depth[:, None]  # [B, W, N]: depth of node w minus that of each tree node
    on_path = jnp.take_along_axis(tree.ancestors, node[..., None], axis=1)
    at_place = on_path[..., None] & (back[..., None] == place)
    own = jnp.where(at_place, tree.token[:, None, :, None], 0).sum(axis=2)
    before = jnp.take_along_axis(committed, jnp.maximum(place - drafted, 0), axis=2)
    return jnp.where(place < drafted, own, before)
