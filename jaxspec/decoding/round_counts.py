"""The counts of each round: committed tokens, accepted drafts, drafted levels and nodes, verified nodes."""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxspec.decoding.rule import Verdict
from jaxspec.decoding.tree import DraftTree, levels


@chex.dataclass(frozen=True)
class RoundCounts:
    """Counts of rounds, after the cut at EOS and budget except `uncut`; all 0 where a row was done.

    Of one round the axes are [B], of a generation on the device [B R], of a text on the host [rounds].

    `uncut` is EAGLE's count, its accept_length + 1: what the round would have committed had nothing cut it, neither
    EOS, nor a stop string, nor the budget. EAGLE's code looks for an EOS after it has counted the whole round. It is
    more than `committed` in the last round of a text only.
    """

    committed: Int[Array | np.ndarray, "*rounds"]  # tokens, the bonus token included
    accepted: Int[Array | np.ndarray, "*rounds"]  # drafts
    levels: Int[Array | np.ndarray, "*rounds"]  # drafted: the deepest live path, before pruning
    drafted: Int[Array | np.ndarray, "*rounds"]  # nodes, before pruning
    verified: Int[Array | np.ndarray, "*rounds"]  # nodes, without the root
    uncut: Int[Array | np.ndarray, "*rounds"] | None = None  # tokens; None in logs of earlier versions


FIELDS = ("committed", "accepted", "levels", "drafted", "verified", "uncut")
"""In the order of a row of the logs; those of earlier versions end before `uncut`."""


def no_rounds(batch: int, rounds: int) -> RoundCounts:
    """Room for the counts of `rounds` rounds."""
    return RoundCounts(**{name: jnp.zeros((batch, rounds), jnp.int32) for name in FIELDS})


def count_round(
    done: Bool[Array, " B"], grown: DraftTree, verified: DraftTree, verdict: Verdict, count: Int[Array, " B"]
) -> RoundCounts:
    """The counts of one round that committed `count` tokens. A cut inside the accepted run hides the levels beyond."""
    accepted = jnp.minimum(verdict.accepted, count)
    depth = jnp.where(count <= accepted, jnp.minimum(levels(grown), count), levels(grown))

    def nodes(tree):
        return tree.live.sum(axis=1) - 1

    def seen(values: Array) -> Array:
        return jnp.where(done, 0, values).astype(jnp.int32)

    return RoundCounts(
        committed=seen(count),
        accepted=seen(accepted),
        levels=seen(depth),
        drafted=seen(nodes(grown)),
        verified=seen(nodes(verified)),
        uncut=seen(verdict.accepted + 1),
    )


def write_round(history: RoundCounts, counts: RoundCounts, at: Int[Array, ""]) -> RoundCounts:
    """The history [B R] with the counts of round `at`, [B]."""
    return jax.tree.map(lambda rows, new: write_column(rows, new, at), history, counts)


def write_column(rows: Array, new: Array, at: Int[Array, ""]) -> Array:
    """rows [B R ...] with new [B ...] as that of round `at`, in column at % R: no text has more than R rounds."""
    return jax.lax.dynamic_update_slice_in_dim(rows, new[:, None].astype(rows.dtype), at % rows.shape[1], 1)


def more_columns(rows: Array, columns: int, before: Int[Array, ""]) -> Array:
    """rows [B R ...] with more columns; of the rounds below `before`, those that it still has are where they belong."""
    latest = before - 1 - (before - 1 - jnp.arange(columns)) % columns  # the last round of each new column
    known = (latest >= 0) & (latest >= before - rows.shape[1])
    moved = jnp.take(rows, latest % rows.shape[1], axis=1)
    return jnp.where(known.reshape(1, -1, *[1] * (rows.ndim - 2)), moved, jnp.zeros((), rows.dtype))


# --- on the host


def to_rows(counts: RoundCounts) -> list[list[int]]:
    """[rounds][6], as logs have it; [rounds][5] where `uncut` is not known."""
    return np.stack(list(known(counts).values()), axis=-1).tolist()


def from_rows(rows: Sequence[Sequence[int]]) -> RoundCounts:
    """Inverse of `to_rows`."""
    width = len(rows[0]) if rows else len(FIELDS)
    columns = np.array(rows, int).reshape(-1, width).T
    return RoundCounts(**dict(zip(FIELDS[:width], columns, strict=True)))


def known(counts: RoundCounts) -> dict[str, np.ndarray]:
    """The columns by name, without `uncut` where it is not known."""
    columns = ((name, getattr(counts, name)) for name in FIELDS)
    return {name: np.asarray(column) for name, column in columns if column is not None}


def join(several: Sequence[RoundCounts]) -> RoundCounts:
    """The rounds of several texts, those in which a row was done left out; `uncut` only where all texts have it."""
    texts = [known(one) for one in several]
    shared = [name for name in FIELDS if all(name in text for text in texts)]
    whole = {name: np.concatenate([np.zeros(0, int), *(text[name] for text in texts)]) for name in shared}
    live = whole["committed"] > 0
    return RoundCounts(**{name: values[live] for name, values in whole.items()})


def first_tokens(counts: RoundCounts, tokens: int) -> RoundCounts:
    """The rounds that led to the first `tokens` tokens (the first of which prefill gave), the last one cut to fit.

    Its `uncut` stays, as its name says.
    """
    before = 1 + np.cumsum(counts.committed) - counts.committed
    kept = (counts.committed > 0) & (before < tokens)
    found = {name: column[kept] for name, column in known(counts).items()}
    if len(found["committed"]) and (excess := 1 + found["committed"].sum() - tokens) > 0:
        committed = found["committed"][-1] - excess
        if committed <= found["accepted"][-1]:
            found["levels"][-1] = min(found["levels"][-1], committed)
        found["accepted"][-1] = min(found["accepted"][-1], committed)
        found["committed"][-1] = committed
    return RoundCounts(**found)
