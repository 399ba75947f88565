"""A smaller LLaMA with the target's vocabulary drafts (Leviathan et al., arXiv:2211.17192)."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.checkpoint.config_json import read_config
from jaxspec.checkpoint.loading import Checkpoint, check_same_vocabulary
from jaxspec.checkpoint.memory import check_fits
from jaxspec.checkpoint.parameters import abstract, load_params, restore
from jaxspec.decoding.tree import take
from jaxspec.model import kv_cache as kv
from jaxspec.model.llama import Llama, forward, unembed
from jaxspec.model.placement import place_head


@chex.dataclass(frozen=True)
class DraftModelState:
    """The draft model's own cache of committed tokens, the root included, and what it says after the root."""

    cache: tuple[kv.KV, ...]
    logits: Float[Array, "B V"]
    hidden: Float[Array, "B E"]
    nodes: tuple[kv.KV, ...] | None  # keys and values of this round's nodes, while drafting


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """Drafts with the LLaMA in `Models.draft`. What it computed for drafted nodes is dropped after the round."""

    abstains: ClassVar[bool] = False

    @staticmethod
    def load_head(target: Checkpoint, path: Path, dtype: jnp.dtype) -> Llama:
        """Restores the draft model at `path`; raises CheckpointError where its vocabulary is not the target's."""
        check_same_vocabulary(target, path)
        config = read_config(path)
        if target.mesh is None:
            check_fits(config.model, dtype, quantize=config.quantize)
            return restore(path, dtype)
        whole = abstract(config.model, config.quantize)
        return load_params(path / "params", place_head(whole, target.mesh, dtype), dtype)

    def taps(self, models) -> tuple[int, ...]:
        return ()

    def reuse(self, state) -> None:
        return None

    def init(self, models, batch, rows) -> DraftModelState:
        config, dtype = models.draft.config, models.draft.norm[...].dtype
        return DraftModelState(
            cache=kv.allocate(config, batch, rows, dtype),
            logits=jnp.zeros((batch, config.vocab_size), jnp.float32),
            hidden=jnp.zeros((batch, config.hidden_size), dtype),
            nodes=None,
        )

    def grow(self, state, rows) -> DraftModelState:
        return dataclasses.replace(state, cache=kv.grow(state.cache, rows))

    def observe(self, models, state, committed) -> DraftModelState:
        # From the token at `start` on, although it may be known already: so position 0 needs no case of its own.
        tokens = jnp.concatenate([committed.token[:, :1], committed.next_token], axis=1)
        width = tokens.shape[1]
        positions = committed.start[:, None] + jnp.arange(width)
        causal = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (tokens.shape[0], width, width))
        out = forward(models.draft, tokens, positions, causal, state.cache, committed.start)
        root = jnp.take_along_axis(out.hidden, committed.count[:, None, None], axis=1)[:, 0]
        logits = unembed(models.draft, root)
        news = (committed.count > 0)[:, None]
        start = committed.start + jnp.minimum(logits.argmax(-1), 0)  # after the reads, so in place: see cache.py
        return DraftModelState(
            cache=tuple(kv.append(old, new, start) for old, new in zip(state.cache, out.nodes, strict=True)),
            logits=jnp.where(news, logits, state.logits),
            hidden=jnp.where(news, root, state.hidden),
            nodes=None,
        )

    def root(self, models, state, prefix, tree):
        batch, size = tree.token.shape
        nodes = kv.allocate(models.draft.config, batch, size, state.hidden.dtype)
        return state.logits, state.hidden, dataclasses.replace(state, nodes=nodes)

    def expand(self, models, state, prefix, tree, frontier):
        node = frontier.node
        above = take(tree.ancestors, node) & (jnp.arange(tree.token.shape[1]) > 0)  # the root is in the cache
        positions = prefix.length[:, None] - 1 + take(tree.depth, node)
        slots = jnp.where(frontier.live, node, tree.token.shape[1])
        out = forward(
            models.draft, take(tree.token, node), positions, above, state.cache, prefix.length,
            nodes=state.nodes, slots=slots,
        )  # fmt: skip
        return unembed(models.draft, out.hidden), out.hidden, dataclasses.replace(state, nodes=out.nodes)
