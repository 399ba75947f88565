"""The draft tree: padded arrays, one row per sequence, grown level by level inside the jitted loop."""

import dataclasses
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

NO_PARENT = -1

Rows = Bool[Array, " B"]
"""A subset of a batch's rows: True for each row in it."""


@chex.dataclass(frozen=True)
class DraftTree:
    """Padded draft tree of N nodes. Node 0 is the root (the last committed token); a parent precedes its children.

    Siblings are in the order of their proposal: by confidence, or if they were sampled, in the order of sampling.
    """

    token: Int[Array, "B N"]
    parent: Int[Array, "B N"]  # NO_PARENT for the root and for padding
    depth: Int[Array, "B N"]
    log_confidence: Float[Array, "B N"]  # log confidence of the whole path
    live: Bool[Array, "B N"]  # False: padding
    ancestors: Bool[Array, "B N N"]  # [i, j]: j is i or above i; what node i attends to
    draft_probs: Float[Array, "B N V"] | None  # distribution q of each node's children; None: they were not sampled


@chex.dataclass(frozen=True)
class Frontier:
    """The nodes that the drafter expands next."""

    node: Int[Array, "B W"]
    live: Bool[Array, "B W"]
    level: Int[Array, ""]  # depth of these nodes, the same for every row


@chex.dataclass(frozen=True)
class Selection:
    """Some nodes of a tree, in the order of verification: the root first, parents before children."""

    node: Int[Array, "B M"]  # any index if not live
    live: Bool[Array, "B M"]


def init_tree(root: Int[Array, " B"], size: int, vocab_size: int | None) -> DraftTree:
    """A tree with only the root, and room for `size` nodes. `vocab_size` is given if draft probabilities are stored."""
    batch = root.shape[0]
    first = jnp.broadcast_to(jnp.arange(size) == 0, (batch, size))
    return DraftTree(
        token=jnp.where(first, root[:, None], 0),
        parent=jnp.full((batch, size), NO_PARENT, jnp.int32),
        depth=jnp.zeros((batch, size), jnp.int32),
        log_confidence=jnp.where(first, jnp.float32(0), -jnp.inf),
        live=first,
        ancestors=jnp.broadcast_to(jnp.eye(size, dtype=bool), (batch, size, size)),
        draft_probs=None if vocab_size is None else jnp.zeros((batch, size, vocab_size), jnp.float32),
    )


def root_frontier(batch: int) -> Frontier:
    """The frontier before the first level: the root of every row."""
    return Frontier(
        node=jnp.zeros((batch, 1), jnp.int32), live=jnp.ones((batch, 1), bool), level=jnp.zeros((), jnp.int32)
    )


def take(values: Array, node: Int[Array, "B W"]) -> Array:
    """values[b, node[b, w]] for values [B N ...]; NO_PARENT reads the root."""
    index = jnp.maximum(node, 0).reshape(node.shape + (1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1, mode="promise_in_bounds")


def add_nodes(
    tree: DraftTree,
    slots: Int[Array, " C"],
    token: Int[Array, "B C"],
    parent: Int[Array, "B C"],
    log_confidence: Float[Array, "B C"],
    live: Bool[Array, "B C"],
) -> DraftTree:
    """Writes C nodes to `slots`, the same for every row. Slots past the end are dropped; nodes not live are padding."""
    put = lambda values, new: put_at(values, slots, new)
    own = slots[:, None] == jnp.arange(tree.token.shape[1])
    return DraftTree(
        token=put(tree.token, jnp.where(live, token, 0)),
        parent=put(tree.parent, jnp.where(live, parent, NO_PARENT)),
        depth=put(tree.depth, jnp.where(live, take(tree.depth, parent) + 1, 0)),
        log_confidence=put(tree.log_confidence, jnp.where(live, log_confidence, -jnp.inf)),
        live=put(tree.live, live),
        ancestors=put(tree.ancestors, own | (take(tree.ancestors, parent) & live[..., None])),
        draft_probs=tree.draft_probs,
    )


def put_at(values: Array, slots: Int[Array, " C"], new: Array) -> Array:
    """Writes new [B C ...] to `slots` of values [B N ...], the same for every row. Slots past the end are dropped."""
    new = new.astype(values.dtype)
    if len(slots) > 1:
        return values.at[:, slots].set(new, mode="drop")
    is_slot = slots == jnp.arange(values.shape[1])  # cheaper than a scatter, which is a loop on a CPU
    return jnp.where(is_slot.reshape(-1, *[1] * (values.ndim - 2)), new, values)


def subtree(tree: DraftTree, selection: Selection) -> DraftTree:
    """The tree of the selected nodes, in the selection's order."""
    node, live = selection.node, selection.live
    size = tree.token.shape[1]
    rows = jnp.arange(node.shape[0])[:, None]
    new_of_old = jnp.full((node.shape[0], size), NO_PARENT, jnp.int32)
    place = jnp.arange(node.shape[1], dtype=jnp.int32)
    new_of_old = new_of_old.at[rows, jnp.where(live, node, size)].set(place, mode="drop")
    parent = take(tree.parent, node)
    parent = jnp.where(live & (parent >= 0), take(new_of_old, parent), NO_PARENT)
    ancestors = jnp.take_along_axis(take(tree.ancestors, node), node[:, None, :], axis=2)
    own = jnp.eye(node.shape[1], dtype=bool)
    return DraftTree(
        token=jnp.where(live, take(tree.token, node), 0),
        parent=parent,
        depth=jnp.where(live, take(tree.depth, node), 0),
        log_confidence=jnp.where(live, take(tree.log_confidence, node), -jnp.inf),
        live=live,
        ancestors=own | (ancestors & live[:, :, None] & live[:, None, :]),
        draft_probs=None if tree.draft_probs is None else take(tree.draft_probs, node),
    )


def compaction(tree: DraftTree) -> Selection:
    """A selection with the live nodes first, in their order, so that verification can use a smaller tree."""
    order = jnp.argsort(~tree.live, axis=1, stable=True)
    return Selection(node=order, live=jnp.take_along_axis(tree.live, order, axis=1))


def first_nodes(tree: DraftTree, size: int) -> DraftTree:
    """The tree of the first `size` nodes."""
    first = jax.tree.map(lambda values: values[:, :size], tree)
    return dataclasses.replace(first, ancestors=tree.ancestors[:, :size, :size])


def levels(tree: DraftTree) -> Int[Array, " B"]:
    """Number of drafted levels: the depth of the deepest live node."""
    return jnp.where(tree.live, tree.depth, 0).max(axis=1)


def path_to(tree: DraftTree, node: Int[Array, " B"], length: int) -> Int[Array, "B P"]:
    """Node ids from the root down to `node`, padded with `node` to P = `length` entries."""
    above = take(tree.ancestors, node[:, None])[:, 0] & tree.live
    on_path = above[:, None] & (tree.depth[:, None] == jnp.arange(length)[:, None])
    return jnp.where(on_path.any(-1), on_path.argmax(-1), node[:, None]).astype(jnp.int32)


def sizes_up_to(size: int, steps: Sequence[int]) -> tuple[int, ...]:
    """Tree sizes to compile verification for: `size`, and those of `steps` that are at most 3/4 of it."""
    return (*(s for s in steps if s * 4 <= size * 3), size)


def smallest_size(tree: DraftTree, offered: tuple[int, ...]) -> Int[Array, ""]:
    """Index of the smallest offered size that holds the live nodes of every row."""
    needed = jnp.where(tree.live, jnp.arange(1, tree.live.shape[1] + 1), 0).max()
    return jnp.minimum((needed > jnp.array(offered)).sum(dtype=jnp.int32), len(offered) - 1)


def tree_mask(tree: DraftTree, node: Int[Array, "B W"], *, root_is_cached: bool = False) -> Bool[Array, "B W N"]:
    """Each of W nodes sees itself and its ancestors, without the root if its keys and values are in the cache."""
    seen = take(tree.ancestors, node)
    return seen & (jnp.arange(tree.token.shape[1]) > 0) if root_is_cached else seen
