"""What is recorded of each round: its counts, and on request its verified tree."""

import dataclasses
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.rule import Verdict
from jaxspec.decoding.tree import DraftTree, Rows, levels


@chex.dataclass(frozen=True)
class RoundCounts:
    """Counts of rounds. A cut by EOS or the budget limits `committed`, `accepted`, `levels` only. Finished rows are 0.

    The axes are [B] for one round, [B R] for a generation on the device, [rounds] for a text on the host.

    `uncut` is EAGLE's count, its accept_length + 1: the tokens of the round without a cut by EOS, stop string or
    budget. EAGLE's code looks for EOS after it has counted the round. `uncut` can exceed `committed` only in the last
    round of a text.
    """

    committed: Int[Array | np.ndarray, "*rounds"]  # committed tokens, the bonus token included
    accepted: Int[Array | np.ndarray, "*rounds"]  # accepted drafts
    levels: Int[Array | np.ndarray, "*rounds"]  # drafted levels: depth of the deepest live node, before pruning
    drafted: Int[Array | np.ndarray, "*rounds"]  # drafted nodes, before pruning
    verified: Int[Array | np.ndarray, "*rounds"]  # verified nodes, without the root
    uncut: Int[Array | np.ndarray, "*rounds"]  # tokens without a cut


FIELDS = ("committed", "accepted", "levels", "drafted", "verified", "uncut")
"""The columns of a row in logs."""


def no_rounds(batch: int, rounds: int) -> RoundCounts:
    """Zeroed counts for `rounds` rounds."""
    return RoundCounts(**{name: jnp.zeros((batch, rounds), jnp.int32) for name in FIELDS})


def count_round(
    done: Rows, grown: DraftTree, verified: DraftTree, verdict: Verdict, count: Int[Array, " B"]
) -> RoundCounts:
    """The counts of one round that committed `count` tokens.

    If the round was cut inside the accepted path, `levels` excludes deeper levels; nodes are counted in full.
    """
    accepted = jnp.minimum(verdict.accepted, count)
    depth = jnp.where(count <= accepted, jnp.minimum(levels(grown), count), levels(grown))
    nodes = lambda tree: tree.live.sum(axis=1) - 1
    counts = RoundCounts(
        committed=count,
        accepted=accepted,
        levels=depth,
        drafted=nodes(grown),
        verified=nodes(verified),
        uncut=verdict.accepted + 1,
    )
    return jax.tree.map(lambda values: jnp.where(done, 0, values).astype(jnp.int32), counts)


def of_drafter(counts: RoundCounts, copied: Rows) -> RoundCounts:
    """The counts [B] of a round without the drafts of rows that copied earlier text, which took no pass of the drafter.

    Verification of these rows, and their tokens, still count.
    """
    drafts = {name: jnp.where(copied, 0, getattr(counts, name)) for name in ("accepted", "levels", "drafted")}
    return dataclasses.replace(counts, **drafts)


def write_round(history: RoundCounts, counts: RoundCounts, at: Int[Array, ""]) -> RoundCounts:
    """The history [B R] with the counts [B] of round `at`."""
    return jax.tree.map(lambda rows, new: write_column(rows, new, at), history, counts)


def write_column(rows: Array, new: Array, at: Int[Array, ""]) -> Array:
    """Writes new [B ...] to column at % R of rows [B R ...]. No text has more than R rounds."""
    return jax.lax.dynamic_update_slice_in_dim(rows, new[:, None].astype(rows.dtype), at % rows.shape[1], 1)


def more_columns(rows: Array, columns: int, before: Int[Array, ""]) -> Array:
    """rows [B R ...] with more columns. Each stored round before round `before` moves to its new column."""
    latest = before - 1 - (before - 1 - jnp.arange(columns)) % columns  # the latest round of each new column
    known = (latest >= 0) & (latest >= before - rows.shape[1])
    moved = jnp.take(rows, latest % rows.shape[1], axis=1)
    return jnp.where(known.reshape(1, -1, *[1] * (rows.ndim - 2)), moved, jnp.zeros((), rows.dtype))


# --- on the host


def to_rows(counts: RoundCounts) -> list[list[int]]:
    """The counts as rows of a log: [rounds][6]."""
    return np.stack(list(columns(counts).values()), axis=-1).tolist()


def from_rows(rows: Sequence[Sequence[int]]) -> RoundCounts:
    """Inverse of `to_rows`."""
    return RoundCounts(**dict(zip(FIELDS, np.array(rows, int).reshape(len(rows), len(FIELDS)).T, strict=True)))


def columns(counts: RoundCounts) -> dict[str, np.ndarray]:
    """The columns by name."""
    return {name: np.asarray(getattr(counts, name)) for name in FIELDS}


def join(several: Sequence[RoundCounts]) -> RoundCounts:
    """The rounds of several texts, without those after a text's end."""
    texts = [columns(one) for one in several]
    whole = {name: np.concatenate([np.zeros(0, int), *(text[name] for text in texts)]) for name in FIELDS}
    live = whole["committed"] > 0
    return RoundCounts(**{name: values[live] for name, values in whole.items()})


def first_tokens(counts: RoundCounts, tokens: int) -> RoundCounts:
    """The rounds of the first `tokens` tokens, the last one cut as in `RoundCounts`. Prefill gives the first token."""
    before = 1 + np.cumsum(counts.committed) - counts.committed
    inside = (counts.committed > 0) & (before < tokens)
    kept = {name: column[inside] for name, column in columns(counts).items()}
    if len(kept["committed"]) and (excess := 1 + kept["committed"].sum() - tokens) > 0:
        committed = kept["committed"][-1] - excess
        if committed <= kept["accepted"][-1]:
            kept["levels"][-1] = min(kept["levels"][-1], committed)
        kept["accepted"][-1] = min(kept["accepted"][-1], committed)
        kept["committed"][-1] = committed
    return RoundCounts(**kept)


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
    new = {name: getattr(tree, name) for name in ("token", "parent", "live", "log_confidence")} | {"on_path": on_path}
    return Trace(**{name: write_column(getattr(trace, name), values, at) for name, values in new.items()})
