"""EDD: a one-layer LLaMA of its own drafts, and reads the target's hidden states as a soft prompt.

After "Faster Speculative Decoding via Effective Draft Decoder with Pruned Candidate Tree", §3.1. A hidden state stands
where the token's embedding would: it goes through the layer's input norm, and keys and values are made of it at the
token's own position; the rest of the layer is not needed there. The newest token, the root, is committed but has no
hidden state yet. So every round begins with its embedding, and the cache holds none but the tokens before it.
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

import chex
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import check_same_shape, load_head, read_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.tree import root_frontier, take
from jaxspec.model import kv_cache as kv
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama, forward, keys_and_values, unembed

NAME = "edd"


class EddHead(nnx.Module):
    """Weights of a head: a whole LLaMA of one layer, which reads the output of layer `tap` of its target, from 0."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, tap: int, dtype: jnp.dtype = jnp.dtype("float32")):
        self.config, self.tap = config, tap
        self.decoder = Llama(config, rngs=rngs, dtype=dtype)


@chex.dataclass(frozen=True)
class EddState:
    """The layer's keys and values: of verified tokens, made of hidden states, and of this round's nodes meanwhile."""

    cache: tuple[kv.KV, ...]  # of one layer, a row a committed token, the root not included
    nodes: tuple[kv.KV, ...] | None  # of expanded nodes, the root among them


def default_tap(num_layers: int) -> int:
    """The fourth-to-last layer, the best one in the paper (§4.3.1); of fewer than four layers, the first.

    Layer 28 of LLaMA2-7B's 32, counted from 0: its output is Hugging Face's `hidden_states[-4]`.
    """
    return max(0, num_layers - 4)


def soft_prompt(head: EddHead, hidden: Float[Array, "B W D"], positions: Int[Array, "B W"]) -> kv.KV:
    """Keys and values of tokens whose hidden states are known."""
    return keys_and_values(head.decoder.layers[0], head.config, hidden, positions)


@dataclasses.dataclass(frozen=True)
class Edd:
    """Drafts with a one-layer LLaMA that sees the target's hidden states of verified tokens (EDD).

    Of the target's last layer, should that be tapped, it reads the features: after the final norm, as Hugging Face's
    `hidden_states[-1]` are.
    """

    abstains: ClassVar[bool] = False

    @staticmethod
    def load_head(target: Checkpoint, path: Path, dtype: jnp.dtype) -> EddHead:
        """Restores the head at `path`; raises CheckpointError where it was trained for another target."""
        config, model = read_head(path, NAME), target.config.model
        check_same_shape(path, config.model, model)
        if not 0 <= (tap := config.settings["tap"]) < model.num_layers:
            raise CheckpointError(
                f"the head at {path} reads layer {tap} (from 0) and this target has {model.num_layers}: it is another's"
            )
        return load_head(path, lambda: EddHead(config.model, rngs=nnx.Rngs(0), **config.settings), dtype, target.mesh)

    def taps(self, models) -> tuple[int, ...]:
        after = models.draft.tap + 1
        return (after,) if after < models.target.config.num_layers else ()

    def reuse(self, state) -> None:
        return None

    def init(self, models, batch, rows) -> EddState:
        dtype = models.target.norm[...].dtype
        return EddState(cache=kv.allocate(models.draft.config, batch, rows, dtype), nodes=None)

    def grow(self, state, rows) -> EddState:
        return dataclasses.replace(state, cache=kv.grow(state.cache, rows))

    def observe(self, models, state, committed) -> EddState:
        (hidden,) = committed.taps or (committed.hidden,)
        positions = committed.start[:, None] + jnp.arange(hidden.shape[1])
        new = soft_prompt(models.draft, hidden, positions)
        start = committed.start + jnp.minimum(hidden[:, 0].argmax(-1), 0)  # after the reads, so in place: see cache.py
        return EddState(cache=(kv.append(state.cache[0], new, start),), nodes=None)

    def root(self, models, state, prefix, tree):
        batch, size = tree.token.shape
        nodes = kv.allocate(models.draft.config, batch, size, models.target.norm[...].dtype)
        begun = dataclasses.replace(state, nodes=nodes)
        logits, hidden, state = self.expand(models, begun, prefix, tree, root_frontier(batch))
        return logits[:, 0], hidden[:, 0], state

    def expand(self, models, state, prefix, tree, frontier):
        decoder: Llama = models.draft.decoder
        node = frontier.node
        positions = prefix.length[:, None] - 1 + take(tree.depth, node)
        slots = jnp.where(frontier.live, node, tree.token.shape[1])
        out = forward(
            decoder, take(tree.token, node), positions, take(tree.ancestors, node), state.cache, prefix.length - 1,
            nodes=state.nodes, slots=slots,
        )  # fmt: skip
        return unembed(decoder, out.hidden), out.hidden, dataclasses.replace(state, nodes=out.nodes)
