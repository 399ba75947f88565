"""Verification that begins where drafting left off: what early exit computed of the target is not computed again.

A drafter that runs the target's first layers knows, for every node that it expanded, keys and values in those layers
and the residual stream after them. Leaves were never expanded: they run the first layers at verification. So each live
node passes each layer once.
"""

import jax
import jax.numpy as jnp

from jaxspec.decoding.drafter import Prefix, Reuse
from jaxspec.decoding.tree import DraftTree, take
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import attend_to
from jaxspec.model.llama import Llama, Output, embed, final_norm, run_layers


def resume(
    model: Llama, reuse: Reuse, prefix: Prefix, tree: DraftTree, leaves: int, taps: tuple[int, ...] = ()
) -> Output:
    """The target over all nodes of a tree, as `llama.forward` computes it, from what is known of its first layers.

    Args:
        leaves: live nodes that are not known, at most, in any row.
        taps: layers whose input to return; none below those that are known.
    """
    first, config = len(reuse.nodes), model.config
    positions, cached, rows = prefix.length[:, None] - 1 + tree.depth, prefix.length - 1, kv.capacity(prefix.cache)
    missing = tree.live & ~take(reuse.known, tree.slot)
    found, leaf = jax.lax.top_k(missing.astype(jnp.float32), leaves)  # of equals it takes the first: an order
    slots = jnp.where(found > 0, leaf, tree.token.shape[1])
    known = tuple(kv.gather_path(layer, tree.slot) for layer in reuse.nodes)
    attend = attend_to(config, take(positions, leaf), take(tree.ancestors, leaf), cached, rows, slots)
    start = embed(model, take(tree.token, leaf))
    new, bottom, _ = run_layers(model, range(first), start, attend, prefix.cache, known)
    put = jax.vmap(lambda old, at, row: old.at[at].set(row, mode="drop"))
    hidden = put(take(reuse.hidden, tree.slot), slots, new)
    attend = attend_to(config, positions, tree.ancestors, cached, rows)
    upper = range(first, config.num_layers)
    x, top, tapped = run_layers(model, upper, hidden, attend, prefix.cache, None, taps)
    return Output(hidden=final_norm(model, x), nodes=(*bottom, *top), taps=tapped)
