"""A record of every round's verified tree, for inspection."""

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.round_counts import write_column
from jaxspec.decoding.rule import Verdict
from jaxspec.decoding.tree import DraftTree


@chex.dataclass(frozen=True)
class Trace:
    """The verified trees of R rounds, with N nodes each."""

    token: Int[Array, "B R N"]
    parent: Int[Array, "B R N"]
    live: Bool[Array, "B R N"]
    log_confidence: Float[Array, "B R N"]
    on_path: Bool[Array, "B R N"]  # accepted, the root included


def empty_trace(batch: int, rounds: int, nodes: int) -> Trace:
    """A trace without rounds."""
    shape = (batch, rounds, nodes)
    return Trace(
        token=jnp.zeros(shape, jnp.int32),
        parent=jnp.full(shape, -1, jnp.int32),
        live=jnp.zeros(shape, bool),
        log_confidence=jnp.zeros(shape, jnp.float32),
        on_path=jnp.zeros(shape, bool),
    )


def record_tree(trace: Trace, at: Int[Array, ""], tree: DraftTree, verdict: Verdict, count: Int[Array, " B"]) -> Trace:
    """Adds the tree of a round that committed `count` tokens."""
    offset = jnp.arange(verdict.path.shape[1])
    path = jnp.where(offset <= jnp.minimum(verdict.accepted, count)[:, None], verdict.path, 0)
    on_path = (jnp.arange(tree.token.shape[1]) == path[..., None]).any(axis=1)

    def put(rows: Array, new: Array) -> Array:
        return write_column(rows, new, at)

    return Trace(
        token=put(trace.token, tree.token),
        parent=put(trace.parent, tree.parent),
        live=put(trace.live, tree.live),
        log_confidence=put(trace.log_confidence, tree.log_confidence),
        on_path=put(trace.on_path, on_path),
    )
