"""The decoding loop: draft, verify and commit in one `lax.while_loop`, without round trips to the host."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.decoding.batch import constrain_state
from jaxspec.decoding.controller import draft_signals
from jaxspec.decoding.decode_state import DecodeState, needs_room, select_rows, write_block
from jaxspec.decoding.drafter import Committed, Drafts, Models, Prefix, State, last_valid, run_if
from jaxspec.decoding.round_records import count_round, of_drafter, record_tree, write_round
from jaxspec.decoding.rule import Draws, Verdict, keep_probs
from jaxspec.decoding.sampling import Sampling, are_finite, fold, gumbel, log_prob_of
from jaxspec.decoding.speculation import Speculation
from jaxspec.decoding.tree import (
    DraftTree,
    Frontier,
    Rows,
    compaction,
    first_nodes,
    init_tree,
    root_frontier,
    smallest_size,
    subtree,
    take,
)
from jaxspec.model import kv_cache as kv
from jaxspec.model.backend import TPU_LOOP_OPTIONS, Jitted, time_grows_with_tokens

# Purposes of a round's random numbers; each has its own stream.
DRAFT, VERIFY, CONTROL, FIRST, BEGIN = range(5)

READ_TOGETHER = 320
"""Positions of a batch that a drafter reads first in `observe`; the others are often padding. An accelerator computes
about as many while it reads the weights. On a CPU each costs time, so there only one of each row is read first."""

DRAFTING, LEVEL, VERIFICATION = "draft", "level", "verify"
"""Named scopes of the parts of a round in traced and compiled programs: drafting, a level inside it, and verification
of n nodes (`verify8`). The rest is committing."""


@chex.dataclass(frozen=True)
class Verified:
    """The verdict, and the target's results on the accepted path: P = depth + 1 positions, padded with the last one."""

    verdict: Verdict
    next_token: Int[Array, "B P"]  # the token after each position: the accepted drafts, then the bonus token
    hidden: Float[Array, "B P D"]
    taps: tuple[Float[Array, "B P D"], ...]
    rows: tuple[kv.KV, ...]
    log_prob: Float[Array, "B P"] | None  # log p of `next_token`
    finite: Bool[Array, " B"]  # whether the logits on the path are finite


@partial(
    Jitted,
    dtype_of=lambda spec, models, *_: models.target.dtype,
    options=TPU_LOOP_OPTIONS,
    static_argnames="spec",
    donate_argnames="state",
)
def decode(
    spec: Speculation,
    models: Models,
    state: DecodeState,
    rounds: Int[Array, ""],
    enough: Int[Array, ""] | None = None,
) -> DecodeState:
    """Runs `rounds` rounds, fewer if `enough` rows (None: all) end or one needs a larger cache. Donates the state."""
    last = state.round + rounds
    most = jnp.int32(state.done.shape[0]) if enough is None else enough
    unfinished = lambda state: (state.round < last) & (state.done.sum() < most) & ~needs_room(spec, state)
    # Sharded as before, or the next call on a mesh would compile the loop again.
    return constrain_state(jax.lax.while_loop(unfinished, partial(one_round, spec, models), state))


def one_round(spec: Speculation, models: Models, state: DecodeState) -> DecodeState:
    """One round: drafts a tree, verifies it in one forward of the target, and commits the accepted path."""
    spec = spec.at_context(jnp.where(state.done, 0, state.length).max())
    keys = fold(state.keys, state.length)  # by position, so that draws do not depend on the batch
    with jax.named_scope(DRAFTING):
        grown, state = draft(spec, models, state, keys)
    selection = spec.builder.prune(grown) if spec.rule.may_prune else None
    if selection is None and len(spec.verify_sizes) > 1 and not spec.builder.is_chain:
        selection = compaction(grown)
    tree = grown if selection is None else subtree(grown, selection)
    slots = jnp.broadcast_to(jnp.arange(spec.builder.size), grown.token.shape) if selection is None else selection.node
    branches = [jax.named_scope(f"{VERIFICATION}{size}")(partial(verify, spec, size)) for size in spec.verify_sizes]
    arguments = (models, state.prefix, state.keys, state.sampling, tree, state.drafter, slots)
    verified = jax.lax.switch(smallest_size(tree, spec.verify_sizes), branches, *arguments)
    return commit(spec, models, state, grown, tree, verified)


def draft(
    spec: Speculation, models: Models, state: DecodeState, keys: Key[Array, " B"]
) -> tuple[DraftTree, DecodeState]:
    """Grows the tree level by level, until no row of the batch drafts another level."""
    builder, prefix = spec.builder, state.prefix
    last = jnp.take_along_axis(prefix.token, prefix.length[:, None] - 1, axis=1)[:, 0]
    vocab_size = models.target.config.vocab_size if spec.rule.keeps_probs and builder.depth else None
    tree = init_tree(last, builder.size, vocab_size)
    if builder.depth == 0:
        return tree, state
    draft_keys, control_keys = fold(keys, DRAFT), fold(keys, CONTROL)
    begun, drafts_now = spec.controller.begin(models, fold(keys, BEGIN), state.controller, ~state.done, builder)
    controller = select_rows(state.done, state.controller, begun)

    begins = ~state.done & drafts_now
    root = lambda drafter: spec.drafter.root(models, drafter, dataclasses.replace(prefix, unfinished=begins), tree)
    # A pass that verification reuses is not skipped, and neither is a search for earlier text.
    if spec.controller.goes_plain and not (spec.drafter.reuses_drafting or spec.drafter.copies):
        drafts, drafter = run_if(begins.any(), root, state.drafter)
    else:
        drafts, drafter = root(state.drafter)
    copied = spec.drafter.from_history(drafter, len(last))
    grow = partial(grow_level, spec, models, state, draft_keys, control_keys, copied)

    @jax.named_scope(LEVEL)
    def level(carry):
        tree, frontier, active, controller, drafter = carry
        drafts, drafter = spec.drafter.expand(models, drafter, prefix, tree, frontier)
        return *grow(tree, frontier, active, controller, drafts), drafter

    def drafting(carry):
        _, frontier, active, *_ = carry
        return (frontier.level < builder.depth) & active.any()

    first = grow(tree, root_frontier(len(last)), begins | (~state.done & copied), controller, drafts)
    wide = spec.drafter.widen(drafter, first[1].node.shape[1])
    tree, _, _, controller, drafter = jax.lax.while_loop(drafting, level, (*first, wide))
    return tree, dataclasses.replace(state, drafter=drafter, controller=controller)


def grow_level(
    spec: Speculation,
    models: Models,
    state: DecodeState,
    draft_keys: Key[Array, " B"],
    control_keys: Key[Array, " B"],
    copied: Rows,
    tree: DraftTree,
    frontier: Frontier,
    active: Rows,
    controller: State,
    drafts: Drafts,
) -> tuple[DraftTree, Frontier, Rows, State]:
    """Adds a level: the rule proposes children from `drafts`, the builder adds them, and the controller may stop rows.

    `copied` are rows that copy earlier text, which the controller neither stops nor learns from. Returns the tree, the
    nodes to expand next, the rows that draft another level, and the controller's state.
    """
    width = frontier.node.shape[1]
    if (admitted := spec.controller.admits(drafts)) is not None:
        frontier = dataclasses.replace(frontier, live=frontier.live & (admitted | copied[:, None]))
    level_noise = noise(models, state.keys, state.length + frontier.level)
    level_keys, stop_keys = fold(draft_keys, frontier.level), fold(control_keys, frontier.level)
    draws = Draws(sampling=state.sampling, keys=level_keys, noise=level_noise, level=frontier.level)
    tree, reached = spec.builder.grow(partial(spec.rule.propose, draws, drafts, width), tree, frontier, active)
    if spec.rule.keeps_probs:
        tree = keep_probs(tree, frontier, spec.rule.draft_probs(state.sampling, drafts), drafts.token)
    active &= reached.live.any(axis=1)
    signals = draft_signals(tree, reached, frontier, drafts, state.feature)
    signals = dataclasses.replace(signals, drafted=signals.drafted & ~copied, active=signals.active & ~copied)
    controller = select_rows(signals.drafted, spec.controller.on_level(controller, signals), controller)
    active &= copied | spec.controller.keep_drafting(models, stop_keys, controller, signals)
    expand = reached.live & active[:, None]  # a drafter may skip a pass that only stopped rows would need
    return tree, dataclasses.replace(reached, live=expand), active, controller


def noise(models: Models, keys: Key[Array, " B"], position: Int[Array, " B"]) -> Float[Array, "B V"]:
    """Gumbel noise of one position of each text, with which plain decoding samples the token there."""
    return gumbel(fold(fold(keys, position), VERIFY), (models.target.config.vocab_size,))


def verify(
    spec: Speculation,
    size: int,
    models: Models,
    prefix: Prefix,
    keys: Key[Array, " B"],
    sampling: Sampling,
    tree: DraftTree,
    drafter: State,
    slots: Int[Array, "B M"],
) -> Verified:
    """Verifies a tree whose live nodes are among the first `size`. It reads the cache and does not return it."""
    tree, slots = first_nodes(tree, size), slots[:, :size]
    leaves = 1 if spec.builder.is_chain else max(1, size - 1)  # the root is always expanded
    out = spec.drafter.target_forward(models, drafter, prefix, tree, slots, leaves)
    logits = models.target.logits(out.hidden)
    depths = jnp.arange(min(spec.builder.depth + 1, size))
    path_noise = jax.vmap(lambda depth: noise(models, keys, prefix.length + depth), out_axes=1)(depths)
    draws = Draws(sampling=sampling, keys=fold(fold(keys, prefix.length), VERIFY), noise=path_noise)
    verdict = spec.rule.verify(draws, tree, logits, spec.builder.depth)
    path, new = verdict.path, path_tokens(tree, verdict)
    return Verified(
        verdict=verdict,
        next_token=new,
        hidden=take(out.hidden, path),
        taps=tuple(take(tap, path) for tap in out.taps),
        rows=tuple(kv.gather_path(layer, path) for layer in out.nodes),
        log_prob=log_prob_of(take(logits, path), new) if spec.log_probs else None,
        finite=take(are_finite(logits), path).all(axis=1),
    )


def commit(
    spec: Speculation, models: Models, state: DecodeState, grown: DraftTree, tree: DraftTree, verified: Verified
) -> DecodeState:
    """Appends the accepted path and the bonus token, cut at the first EOS and at the budget."""
    verdict, new = verified.verdict, verified.next_token
    room = jnp.where(state.done, 0, state.limit - state.length)
    count, ended = cut(new, verdict.accepted, state.eos, room)
    length = state.length + count
    committed = Committed(
        start=state.length - 1,
        count=count,
        token=take(tree.token, verdict.path),
        next_token=new,
        hidden=verified.hidden,
        taps=verified.taps,
    )
    log_prob, trace = state.log_prob, state.trace
    if log_prob is not None and verified.log_prob is not None:
        log_prob = write_block(log_prob, verified.log_prob, state.length)
    counts = count_round(state.done, grown, tree, verdict, count)
    copied = spec.drafter.from_history(state.drafter, len(count))
    learnt = spec.controller.update(state.controller, of_drafter(counts, copied))
    with jax.named_scope(DRAFTING):
        drafter = observe(spec, models, state.drafter, committed)
    return dataclasses.replace(
        state,
        tokens=write_block(state.tokens, new, state.length),
        length=length,
        done=state.done | ended | (length >= state.limit),
        finite=state.finite & (state.done | verified.finite),
        cache=kv.append(state.cache, verified.rows, state.length - 1, after=verdict.next_token),
        feature=last_valid(committed.hidden, count),
        drafter=drafter,
        controller=select_rows(copied, state.controller, learnt),
        round=state.round + 1,
        history=write_round(state.history, counts, state.round),
        log_prob=log_prob,
        trace=None if trace is None else record_tree(trace, state.round, tree, verdict, count),
    )


def observe(spec: Speculation, models: Models, drafter: State, committed: Committed) -> State:
    """The drafter's state after a round's tokens.

    With a controller that `goes_plain`, most positions of a path are often padding, which costs time in a large batch.
    Then the drafter reads the first positions of each row, and the others only if one of them is valid.
    """
    batch, width = committed.token.shape
    few = 1 if time_grows_with_tokens() else max(1, READ_TOGETHER // batch)
    if not spec.controller.goes_plain or few >= width or spec.drafter.copies:
        return spec.drafter.observe(models, drafter, committed)

    def read(first: int, end: int, drafter: State) -> State:
        names = ("token", "next_token", "hidden", "taps")
        part = {name: jax.tree.map(lambda values: values[:, first:end], getattr(committed, name)) for name in names}
        count = jnp.clip(committed.count - first, 0, end - first)
        return spec.drafter.observe(models, drafter, Committed(start=committed.start + first, count=count, **part))

    # A loop of at most one step, not a branch, because XLA would copy a cache that a branch returns.
    more = (committed.count > few).any().astype(jnp.int32)
    return jax.lax.fori_loop(0, more, lambda _, drafter: read(few, width, drafter), read(0, few, drafter))


def path_tokens(tree: DraftTree, verdict: Verdict) -> Int[Array, "B P"]:
    """The token after each position of the accepted path: the accepted drafts, then the bonus token."""
    drafted = jnp.roll(take(tree.token, verdict.path), -1, axis=1)
    at_end = jnp.arange(drafted.shape[1]) >= verdict.accepted[:, None]
    return jnp.where(at_end, verdict.next_token[:, None], drafted)


def cut(
    next_token: Int[Array, "B P"], accepted: Int[Array, " B"], eos: Int[Array, " eos"], room: Int[Array, " B"]
) -> tuple[Int[Array, " B"], Rows]:
    """The number of a round's tokens that are committed, and whether the last of them is an EOS.

    Args:
        next_token: the accepted drafts, then the bonus token; the rest has no meaning.
        accepted: number of accepted drafts; the round has `accepted` + 1 tokens.
        eos: token ids that end a text, padded with -1.
        room: tokens left in the budget; 0 commits nothing.
    """
    offset = jnp.arange(next_token.shape[1])
    ends = (next_token[..., None] == eos).any(axis=-1) & (offset <= accepted[:, None])
    until_eos = jnp.where(ends.any(axis=1), ends.argmax(axis=1) + 1, accepted + 1)
    count = jnp.minimum(until_eos, room).astype(jnp.int32)
    return count, (ends & (offset < count[:, None])).any(axis=1)
