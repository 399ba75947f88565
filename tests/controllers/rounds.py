"""A round, as controllers see it."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxspec.decoding.controller import DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama

_CONFIG = LlamaConfig(
    vocab_size=2, hidden_size=2, intermediate_size=2, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2
)
MODELS = Models(target=nnx.eval_shape(lambda: Llama(_CONFIG, rngs=nnx.Rngs(0))), draft=None)
"""Models of which nothing is asked: they have no arrays."""


def keys_of(batch: int, seed: int = 0) -> jax.Array:
    """One key per row."""
    return jax.random.split(jax.random.key(seed), batch)


def round_of(accepted: Sequence[int] | jax.Array, levels: Sequence[int] | jax.Array) -> RoundCounts:
    """Counts of a round of chains, one row each, with these numbers of levels and accepted drafts."""
    accept, drafted = jnp.asarray(accepted, jnp.int32), jnp.asarray(levels, jnp.int32)
    nodes = dict.fromkeys(("levels", "drafted", "verified"), drafted)
    return RoundCounts(committed=accept + 1, accepted=accept, uncut=accept + 1, **nodes)


def signals(
    top: Any, token: Any, level: int = 1, target: Sequence[float] = (0, 0), draft: Sequence[float] = (0, 0)
) -> DraftSignals:
    """Signals of a drafted level, one value per row; the hidden states are the same for all rows."""
    wide = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (len(top), len(x)))
    return DraftSignals(
        level=jnp.int32(level), drafted=jnp.ones(len(top), bool), active=jnp.ones(len(top), bool),
        top_prob=jnp.asarray(top), token_prob=jnp.asarray(token), log_confidence=jnp.log(jnp.asarray(token)),
        log_coverage=jnp.log(jnp.asarray(token)), draft_hidden=wide(draft), target_hidden=wide(target),
    )  # fmt: skip
