"""The loop: draft, verify, commit, in one `lax.while_loop` that never asks the host anything."""

import dataclasses
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.builder import is_chain
from jaxspec.decoding.controller import DraftSignals
from jaxspec.decoding.decode_state import DecodeState, Trace, needs_room
from jaxspec.decoding.drafter import Committed, Models, Prefix, Reuse
from jaxspec.decoding.rule import Verdict
from jaxspec.decoding.sampling import Sampling, fold
from jaxspec.decoding.speculation import Speculation
from jaxspec.decoding.tree import (
    DraftTree,
    Frontier,
    compact,
    first_nodes,
    init_tree,
    levels,
    root_frontier,
    smallest_size,
    take,
)
from jaxspec.drafters.resume import resume
from jaxspec.model import kv_cache as kv
from jaxspec.model.llama import Output, forward, unembed
from jaxspec.model.mesh_rules import constrain

# What a round's random numbers are for; each purpose has its own stream.
DRAFT, VERIFY, CONTROL, FIRST = range(4)


DRAFTING, LEVEL, VERIFICATION = "draft", "level", "verify"
"""Scopes that name the parts of a round in traced and compiled programs: drafting, in it a level, and verification of n
nodes (`verify8`); the rest is committing."""


@chex.dataclass(frozen=True)
class Verified:
    """What the target accepted, and what it computed there: P = depth + 1 positions, padded with the last accepted."""

    verdict: Verdict
    next_token: Int[Array, "B P"]  # after each position: the accepted drafts, then the bonus token
    hidden: Float[Array, "B P D"]
    taps: tuple[Float[Array, "B P D"], ...]
    rows: tuple[kv.KV, ...]
    log_prob: Float[Array, "B P"] | None  # of `next_token`


@partial(jax.jit, static_argnames="spec", donate_argnames="state")
def decode(spec: Speculation, models: Models, state: DecodeState, rounds: Int[Array, ""]) -> DecodeState:
    """Runs up to `rounds` rounds; stops sooner when every row is done or a row needs a larger cache."""
    last = state.round + rounds

    def unfinished(state: DecodeState) -> Array:
        return (state.round < last) & ~state.done.all() & ~needs_room(spec, state)

    return jax.lax.while_loop(unfinished, partial(one_round, spec, models), state)


def one_round(spec: Speculation, models: Models, state: DecodeState) -> DecodeState:
    """Draft a tree, verify it in one forward of the target, commit the accepted path."""
    keys = fold(state.keys, state.length)  # by position: the same draws whatever the batch
    prefix = Prefix(token=state.tokens, length=state.length, cache=state.cache)
    with jax.named_scope(DRAFTING):
        grown, drafter = draft(spec, models, state, prefix, fold(keys, DRAFT), fold(keys, CONTROL))
    tree = spec.builder.prune(grown) if spec.rule.may_prune else grown
    has_gaps = not (is_chain(spec.builder) or (spec.builder.prunes and spec.rule.may_prune))
    if len(spec.verify_sizes) > 1 and has_gaps:
        tree = compact(tree)
    named = lambda size: jax.named_scope(f"{VERIFICATION}{size}")
    branches = [named(size)(partial(verify, spec, size)) for size in spec.verify_sizes]
    given = (models, prefix, fold(keys, VERIFY), state.sampling, tree, spec.drafter.reuse(drafter))
    verified = jax.lax.switch(smallest_size(tree, spec.verify_sizes), branches, *given)
    return commit(spec, models, dataclasses.replace(state, drafter=drafter), grown, tree, verified)


def draft(
    spec: Speculation, models: Models, state: DecodeState, prefix: Prefix, keys: Array, control_keys: Array
) -> tuple[DraftTree, Any]:
    """Grows the tree level by level, until no row of the batch drafts on."""
    builder, root = spec.builder, jnp.take_along_axis(prefix.token, prefix.length[:, None] - 1, axis=1)[:, 0]
    vocab_size = models.target.config.vocab_size if spec.rule.keeps_probs and builder.depth else None
    tree = init_tree(root, builder.size, vocab_size)
    if builder.depth == 0:
        return tree, state.drafter

    def grow(tree: DraftTree, frontier: Frontier, going: Array, logits: Array, hidden: Array):
        logits = constrain(logits, "batch", None, None)  # the likeliest of a cut axis would gather it several times
        level_keys = fold(keys, frontier.level)
        propose = lambda logits, count: spec.rule.propose(level_keys, state.sampling, logits, count)
        new, onward = builder.grow(propose, tree, frontier, logits, going)
        going &= onward.live.any(axis=1)
        evidence = draft_signals(new, onward, frontier, logits, hidden, state.feature)
        level_keys = fold(control_keys, frontier.level)
        going &= spec.controller.keep_drafting(models, level_keys, state.controller, evidence)
        return new, onward, going

    @jax.named_scope(LEVEL)
    def level(carry):
        tree, frontier, going, drafter = carry
        logits, hidden, drafter = spec.drafter.expand(models, drafter, prefix, tree, frontier)
        return *grow(tree, frontier, going, logits, hidden), drafter

    def drafting(carry):
        _, frontier, going, _ = carry
        return (frontier.level < builder.depth) & going.any()

    logits, hidden, drafter = spec.drafter.root(models, state.drafter, prefix, tree)
    first = grow(tree, root_frontier(root.shape[0]), ~state.done, logits[:, None], hidden[:, None])
    tree, _, _, drafter = jax.lax.while_loop(drafting, level, (*first, drafter))
    return tree, drafter


def draft_signals(
    tree: DraftTree, newest: Frontier, expanded: Frontier, logits: Array, hidden: Array, feature: Array
) -> DraftSignals:
    """What a level's drafting showed, along the likeliest path of each row that reaches it."""
    at_level = tree.live & (tree.depth == newest.level)
    tip = jnp.where(at_level, tree.log_confidence, -jnp.inf).argmax(axis=1)[:, None]
    parent = take(tree.parent, tip)
    slot = (expanded.node == parent).argmax(axis=1)[:, None]
    given = take(logits, slot)[:, 0]
    top = jnp.exp(given.max(axis=-1) - jax.nn.logsumexp(given, axis=-1))
    confidence = take(tree.log_confidence, tip)[:, 0]
    return DraftSignals(
        level=newest.level,
        top_prob=top,
        token_prob=jnp.exp(confidence - take(tree.log_confidence, parent)[:, 0]),
        log_confidence=confidence,
        draft_hidden=take(hidden, slot)[:, 0],
        target_hidden=feature,
    )


def verify(
    spec: Speculation,
    size: int,
    models: Models,
    prefix: Prefix,
    keys: Array,
    sampling: Sampling,
    tree: DraftTree,
    reuse: Reuse | None,
) -> Verified:
    """Judges a tree whose live nodes are among the first `size`. Reads the cache, returns none of it."""
    tree = first_nodes(tree, size)
    out, logits = target_forward(spec, models, prefix, tree, reuse)
    verdict = spec.rule.verify(keys, sampling, tree, logits, spec.builder.depth)
    path, new = verdict.path, path_tokens(tree, verdict)
    return Verified(
        verdict=verdict,
        next_token=new,
        hidden=take(out.hidden, path),
        taps=tuple(take(tap, path) for tap in out.taps),
        rows=tuple(kv.gather_path(layer, path) for layer in out.nodes),
        log_prob=log_prob_of(take(logits, path), new) if spec.log_probs else None,
    )


def target_forward(
    spec: Speculation, models: Models, prefix: Prefix, tree: DraftTree, reuse: Reuse | None
) -> tuple[Output, Float[Array, "B N V"]]:
    """The target over all nodes of a tree, and its logits."""
    taps = spec.drafter.taps(models)
    if reuse is None:
        positions, cached = prefix.length[:, None] - 1 + tree.depth, prefix.length - 1
        out = forward(models.target, tree.token, positions, tree.ancestors, prefix.cache, cached, taps=taps)
    else:
        leaves = 1 if is_chain(spec.builder) else max(1, tree.token.shape[1] - 1)  # the root is always expanded
        out = resume(models.target, reuse, prefix, tree, leaves, taps)
    return out, unembed(models.target, out.hidden)


def commit(
    spec: Speculation,
    models: Models,
    state: DecodeState,
    grown: DraftTree,
    tree: DraftTree,
    verified: Verified,
) -> DecodeState:
    """Appends the accepted path and the bonus token, cut at the first EOS and at the budget."""
    verdict, new = verified.verdict, verified.next_token
    offset = jnp.arange(new.shape[1])
    stops = (new[..., None] == state.eos).any(axis=-1) & (offset <= verdict.accepted[:, None])
    until_eos = jnp.where(stops.any(axis=1), stops.argmax(axis=1) + 1, verdict.accepted + 1)
    count = jnp.where(state.done, 0, jnp.minimum(until_eos, state.limit - state.length)).astype(jnp.int32)
    length = state.length + count
    ended = (stops & (offset < count[:, None])).any(axis=1)
    cut = dataclasses.replace(verdict, accepted=jnp.minimum(verdict.accepted, count))
    # The minimum is 0; it makes the write depend on the verdict, without which XLA copies the cache (see cache.py).
    start = state.length - 1 + jnp.minimum(verdict.next_token, 0)
    committed = Committed(
        start=state.length - 1,
        count=count,
        token=take(tree.token, verdict.path),
        next_token=new,
        hidden=verified.hidden,
        taps=verified.taps,
    )
    log_prob = state.log_prob
    if log_prob is not None and verified.log_prob is not None:
        log_prob = write_block(log_prob, verified.log_prob, state.length)
    with jax.named_scope(DRAFTING):
        drafter = spec.drafter.observe(models, state.drafter, committed)
    counts = count_round(state, grown, tree, cut, count)
    return DecodeState(
        tokens=write_block(state.tokens, new, state.length),
        length=length,
        limit=state.limit,
        done=state.done | ended | (length >= state.limit),
        keys=state.keys,
        eos=state.eos,
        sampling=state.sampling,
        cache=tuple(kv.append(layer, new, start) for layer, new in zip(state.cache, verified.rows, strict=True)),
        feature=take(committed.hidden, jnp.maximum(count - 1, 0)[:, None])[:, 0],
        drafter=drafter,
        controller=spec.controller.update(state.controller, counts[:, 1], counts[:, 2]),
        round=state.round + 1,
        history=jax.lax.dynamic_update_slice_in_dim(state.history, counts[:, None], state.round, 1),
        log_prob=log_prob,
        trace=None if state.trace is None else record_tree(state.trace, state.round, tree, cut),
    )


def path_tokens(tree: DraftTree, verdict: Verdict) -> Int[Array, "B P"]:
    """The tokens after each position of the accepted path: the accepted drafts, then the bonus token."""
    drafted = jnp.roll(take(tree.token, verdict.path), -1, axis=1)
    at_end = jnp.arange(drafted.shape[1]) >= verdict.accepted[:, None]
    return jnp.where(at_end, verdict.next_token[:, None], drafted)


def log_prob_of(logits: Float[Array, "B P V"], token: Int[Array, "B P"]) -> Float[Array, "B P"]:
    """log p(token) at temperature 1, whatever the text was drawn with."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), token[..., None], axis=-1)[..., 0]


def write_block(rows: Array, block: Array, start: Int[Array, " B"]) -> Array:
    """Writes block[b] at rows[b, start[b]:]; what lies past the new length is never read."""
    put = lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new.astype(row.dtype), at, 0)
    return jax.vmap(put)(rows, block, start)


def count_round(
    state: DecodeState, grown: DraftTree, tree: DraftTree, cut: Verdict, count: Int[Array, " B"]
) -> Int[Array, "B 5"]:
    """This round's row of the history. A cut inside the accepted run hides the levels beyond it."""
    inside = count <= cut.accepted
    depth = jnp.where(inside, jnp.minimum(levels(grown), count), levels(grown))
    nodes = lambda tree: tree.live.sum(axis=1) - 1
    row = jnp.stack([count, cut.accepted, depth, nodes(grown), nodes(tree)], axis=1)
    return jnp.where(state.done[:, None], 0, row).astype(jnp.int32)


def record_tree(trace: Trace, at: Int[Array, ""], tree: DraftTree, cut: Verdict) -> Trace:
    """Adds this round's tree to the trace."""
    offset = jnp.arange(cut.path.shape[1])
    path = jnp.where(offset <= cut.accepted[:, None], cut.path, 0)
    on_path = (jnp.arange(tree.token.shape[1]) == path[..., None]).any(axis=1)
    put = lambda rows, new: jax.lax.dynamic_update_slice_in_dim(rows, new[:, None].astype(rows.dtype), at, 1)
    return Trace(
        token=put(trace.token, tree.token),
        parent=put(trace.parent, tree.parent),
        live=put(trace.live, tree.live),
        log_confidence=put(trace.log_confidence, tree.log_confidence),
        on_path=put(trace.on_path, on_path),
    )
