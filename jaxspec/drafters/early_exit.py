"""Early exit: the target's first layers, then a trained layer, norm and LM head, draft (EESD, arXiv:2406.03853).

The first layers are the target's own, keys and values included: drafting reads the target's cache for the prefix, and
verification goes on from what drafting computed (see `reuse`). The exit layers keep keys and values of their own.
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import check_same_shape, load_head, read_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.drafter import Reuse
from jaxspec.decoding.tree import take
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import attend_to
from jaxspec.model.config import LlamaConfig
from jaxspec.model.linear import Linear, linear
from jaxspec.model.llama import Layer, decoder_layer, embed, keys_and_values, rms_norm, run_layers

NAME = "early-exit"


class EarlyExitHead(nnx.Module):
    """Weights of an exit after the target's first `first` layers: decoder layers, norm and LM head of its own."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, first: int, dtype: jnp.dtype = jnp.dtype("float32")):
        """`config.num_layers` is the number of exit layers, mostly one."""
        self.config, self.first = config, first
        width, vocab = config.hidden_size, config.vocab_size
        self.layers = nnx.List([Layer(rngs, config, dtype) for _ in range(config.num_layers)])
        self.norm = nnx.Param(jnp.ones((width,), dtype), axes=("embed",))
        self.head = Linear(rngs, (width, vocab), ("embed", "vocab"), bias=False, dtype=dtype)


@chex.dataclass(frozen=True)
class EarlyExitState:
    """The exit layers' cache of committed tokens, the root not included, and this round's nodes while drafting."""

    cache: tuple[kv.KV, ...]  # one an exit layer
    nodes: tuple[kv.KV, ...] | None  # of expanded nodes, one an exit layer
    reuse: Reuse | None  # of expanded nodes, in the target's first layers


def default_first(num_layers: int) -> int:
    """Layers of the target before the exit: 7 % of them, as the paper finds 5 to 10 % best (§5.4), at least one."""
    return max(1, round(0.07 * num_layers))


def predict(head: EarlyExitHead, x: Float[Array, "B W D"]) -> tuple[Float[Array, "B W V"], Float[Array, "B W D"]]:
    """Logits, float32, and the hidden states that gave them, from the exit layers' output (Eq. 1)."""
    hidden = rms_norm(x, head.norm[...], head.config.norm_eps)
    return linear(hidden, head.head).astype(jnp.float32), hidden


@dataclasses.dataclass(frozen=True)
class EarlyExit:
    """Drafts with the target's first layers and one trained layer after them (EESD)."""

    abstains: ClassVar[bool] = False

    @staticmethod
    def load_head(target: Checkpoint, path: Path, dtype: jnp.dtype) -> EarlyExitHead:
        """Restores the head at `path`; raises CheckpointError where it was trained for another target."""
        config, model = read_head(path, NAME), target.config.model
        check_same_shape(path, config.model, model)
        if not 0 < (first := config.settings["first"]) < model.num_layers:
            raise CheckpointError(
                f"the head at {path} comes after layer {first} and this target has {model.num_layers}: it is another's"
            )
        return load_head(
            path, lambda: EarlyExitHead(config.model, rngs=nnx.Rngs(0), **config.settings), dtype, target.mesh
        )

    def taps(self, models) -> tuple[int, ...]:
        return (models.draft.first,)

    def reuse(self, state) -> Reuse | None:
        return state.reuse

    def init(self, models, batch, rows) -> EarlyExitState:
        head, dtype = models.draft, models.target.norm[...].dtype
        return EarlyExitState(cache=kv.allocate(head.config, batch, rows, dtype), nodes=None, reuse=None)

    def grow(self, state, rows) -> EarlyExitState:
        return dataclasses.replace(state, cache=kv.grow(state.cache, rows))

    def observe(self, models, state, committed) -> EarlyExitState:
        head: EarlyExitHead = models.draft
        batch, width = committed.token.shape
        positions = committed.start[:, None] + jnp.arange(width)
        causal = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (batch, width, width))
        attend = attend_to(head.config, positions, causal, committed.start, kv.capacity(state.cache))
        (x,), news = committed.taps, []
        for layer, old in zip(head.layers[:-1], state.cache, strict=False):
            x, new = decoder_layer(layer, head.config, x, attend, old, None)
            news.append(new)
        # Of the last exit layer nothing but keys and values will be asked for.
        news.append(keys_and_values(head.layers[-1], head.config, x, positions))
        start = committed.start + jnp.minimum(x[:, 0].argmax(-1), 0)  # after the reads, so in place: see cache.py
        cache = tuple(kv.append(old, new, start) for old, new in zip(state.cache, news, strict=True))
        return EarlyExitState(cache=cache, nodes=None, reuse=None)

    def root(self, models, state, prefix, tree):
        head: EarlyExitHead = models.draft
        batch, size = tree.token.shape
        config, dtype = models.target.config, models.target.norm[...].dtype
        begun = EarlyExitState(
            cache=state.cache,
            nodes=kv.allocate(head.config, batch, size, dtype),
            reuse=Reuse(
                nodes=kv.allocate(config, batch, size, dtype, num_layers=head.first),
                hidden=jnp.zeros((batch, size, config.hidden_size), dtype),
                known=jnp.zeros((batch, size), bool),
            ),
        )
        node = jnp.zeros((batch, 1), jnp.int32)
        logits, hidden, state = self._run(models, begun, prefix, tree, node, node)
        return logits[:, 0], hidden[:, 0], state

    def expand(self, models, state, prefix, tree, frontier):
        slots = jnp.where(frontier.live, frontier.node, tree.token.shape[1])
        return self._run(models, state, prefix, tree, frontier.node, slots)

    def _run(self, models, state: EarlyExitState, prefix, tree, node: Int[Array, "B W"], slots: Int[Array, "B W"]):
        """Runs nodes through the first layers and the exit; keeps what both computed, at `slots`."""
        head: EarlyExitHead = models.draft
        old = state.reuse
        assert old is not None and state.nodes is not None, "root comes before expand"
        positions, cached = prefix.length[:, None] - 1 + take(tree.depth, node), prefix.length - 1
        rows = kv.capacity(prefix.cache)
        attend = attend_to(models.target.config, positions, take(tree.ancestors, node), cached, rows, slots)
        start = embed(models.target, take(tree.token, node))
        x, known, _ = run_layers(models.target, range(head.first), start, attend, prefix.cache, old.nodes)
        put = jax.vmap(lambda values, at, new: values.at[at].set(new, mode="drop"))
        reuse = Reuse(
            nodes=known,
            hidden=put(old.hidden, slots, x),
            known=put(old.known, slots, jnp.ones(slots.shape, bool)),
        )
        nodes = []
        for layer, mine, cache in zip(head.layers, state.nodes, state.cache, strict=True):
            x, new = decoder_layer(layer, head.config, x, attend, cache, mine)
            nodes.append(new)
        logits, hidden = predict(head, x)
        return logits, hidden, EarlyExitState(cache=state.cache, nodes=tuple(nodes), reuse=reuse)
