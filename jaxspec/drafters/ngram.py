"""Prompt lookup: drafts the tokens that followed the last tokens where they stood before, without any weights."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxspec.decoding.drafter import Committed, Drafter, Models, Prefix
from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take
from jaxspec.drafters import suffix_match
from jaxspec.drafters.suffix_match import MatchState

CANDIDATES = 10  # different tokens that a node may be followed by


@final
@dataclasses.dataclass(frozen=True)
class Ngram(Drafter):
    """Prompt lookup: drafts what followed an earlier match.

    It matches the last tokens against all committed ones. The longest match wins, and of equal ones the most recent.

    All candidates of a node together have the chance that its longest match has had in this text: its state counts for
    each length of a match how often the text went on as it did before.

    Attributes:
        longest: most tokens compared.
        shortest: fewest that must match before anything is proposed; with no match a row drafts nothing.
        sharpness: nats between a match and one that is a token shorter, where the draft is sampled.
    """

    name: ClassVar[str] = "ngram"
    abstains: ClassVar[bool] = True
    longest: int = 16
    shortest: int = 1
    sharpness: float = 4.0

    def __post_init__(self) -> None:
        self.require(most=64, shortest=1, longest=0)  # each is a pass over the text
        if self.shortest > self.longest:
            raise ValueError(f"ngram: 1 <= shortest <= longest, not {self.shortest} and {self.longest}")
        if not 1 < self.sharpness < float("inf"):
            raise ValueError(f"ngram: sharpness must exceed 1, the weight of recency, not {self.sharpness}")

    def init(self, models: Models, batch: int, rows: int) -> MatchState:
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
        for _ in range(CANDIDATES):  # the longest match, then the latest; then the best that another token follows
            best.append(place.max(axis=-1))
            tokens.append(jnp.take_along_axis(follows[:, 0], best[-1] % size, axis=1))
            place = jnp.where(follows == tokens[-1][..., None], -1, place)
        found = jnp.stack(best, axis=-1)
        score = jnp.where(found >= 0, self.sharpness * (found // size) + found % size / size, -jnp.inf)
        total = jax.nn.logsumexp(score, axis=-1, keepdims=True)
        chance = suffix_match.chance(state, jnp.maximum(found[..., :1] // size, 0))
        logits = score + jnp.where(found[..., :1] >= 0, jnp.log(chance) - total, 0.0)
        return Drafts(logits=logits, token=jnp.stack(tokens, axis=-1)), state


def path_ends(
    tree: DraftTree, node: Int[Array, "B W"], committed: Int[Array, "B 1 longest"]
) -> Int[Array, "B W longest"]:
    """The last tokens of each node's path, backwards: drafted ones, then `committed`, whose first is the root's."""
    drafted, longest = take(tree.depth, node), committed.shape[-1]
    tokens = []
    for i in range(longest):
        before = jnp.take_along_axis(committed[:, 0], jnp.maximum(i - drafted, 0), axis=1)
        tokens.append(jnp.where(i < drafted, take(tree.token, node), before))
        node = take(tree.parent, node)
    return jnp.stack(tokens, axis=-1)
