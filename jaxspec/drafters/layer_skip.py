"""Draft & Verify: the target drafts for itself, with some of its blocks left out (arXiv:2309.08168).

A block is the attention or the MLP of a layer; where it is left out, the residual stream goes by. There are no new
weights: all that is kept on disk is which blocks these are. Drafting reads the target's keys and values of the prefix,
and those that it computes itself, of the root and the drafted nodes, are dropped after the round.

Where many blocks are left out, those that stay can be trained further (Appendix E). Then they are on disk too, and
draft in place of the target's, still on the target's keys and values of the prefix.
"""

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.heads import HeadConfig, check_same_shape, load_head, read_head, write_config, write_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.tree import take
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import Attend, attend_to
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Layer, Llama, attention_block, embed, mlp_block, rms_norm, unembed

NAME = "layer-skip"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class SkipSet:
    """Whether each of L layers leaves out its attention, and its MLP. Static: every set is a program of its own."""

    attention: tuple[bool, ...]
    mlp: tuple[bool, ...]

    def switches(self) -> "Switches":
        """The same, traced."""
        return Switches(attention=jnp.asarray(self.attention), mlp=jnp.asarray(self.mlp))


@chex.dataclass(frozen=True)
class Switches:
    """What a `SkipSet` says, traced: one program serves all sets, which a search tries by the hundred."""

    attention: Bool[Array, " L"]
    mlp: Bool[Array, " L"]


class KeptBlocks(nnx.Module):
    """Weights of their own for the blocks that a set keeps, each with its norm, and for the final norm.

    The parameters are named as the target's are. Embedding and LM head stay the target's.
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, skips: SkipSet, dtype: jnp.dtype = jnp.dtype("float32")):
        self.config, self.skips = config, skips
        layers = [Layer(rngs, config, dtype) for _ in range(config.num_layers)]
        for layer, no_attention, no_mlp in zip(layers, skips.attention, skips.mlp, strict=True):
            if no_attention:
                del layer.attention, layer.attention_norm
            if no_mlp:
                del layer.mlp, layer.mlp_norm
        self.layers = nnx.List(layers)
        self.norm = nnx.Param(jnp.ones((config.hidden_size,), dtype), axes=("embed",))


@chex.dataclass(frozen=True)
class LayerSkipState:
    """Keys and values of this round's root and expanded nodes, while drafting; one a layer, left out or not."""

    nodes: tuple[kv.KV, ...] | None


def skip(num_layers: int, attention: Collection[int], mlp: Collection[int]) -> SkipSet:
    """The set that leaves out the attention and the MLP of these layers, counted from 0."""
    among = lambda chosen: tuple(i in chosen for i in range(num_layers))
    return SkipSet(attention=among(attention), mlp=among(mlp))


def numbers(switches: Collection[bool]) -> list[int]:
    """The layers whose switch is on."""
    return [i for i, skipped in enumerate(switches) if skipped]


def layers_of(skips: SkipSet) -> dict[str, list[int]]:
    """The layers whose attention and whose MLP are left out."""
    return {"attention": numbers(skips.attention), "mlp": numbers(skips.mlp)}


def write_skip_set(path: Path, target: CheckpointConfig, skips: SkipSet) -> None:
    """Writes a set into the folder `path`; `read_skip_set` reads it."""
    write_config(path, HeadConfig(NAME, target.model, target.dtype, target.source_dtype, layers_of(skips)))


def write_kept_blocks(path: Path, blocks: KeptBlocks, dtype: str) -> None:
    """Writes a set with trained weights into the folder `path`, in `dtype`; `LayerSkip.load_head` reads it."""
    settings = {**layers_of(blocks.skips), "trained": True}
    write_head(path, HeadConfig(NAME, blocks.config, dtype, dtype, settings), blocks)


def is_trained(config: HeadConfig) -> bool:
    """Whether a set has weights of its own beside it."""
    return config.settings.get("trained", False)


def read_skip_set(path: Path, target: CheckpointConfig) -> SkipSet:
    """Reads config.json of a set, trained or not. Raises CheckpointError where it is none, or another target's."""
    config = read_head(path, NAME)
    check_same_shape(path, config.model, target.model)
    if (theirs := config.model.num_layers) != (ours := target.model.num_layers):
        raise CheckpointError(f"the skip set at {path} is for a target of {theirs} layers, and this one has {ours}")
    found = {"trained": False, **config.settings}
    sets = [found.get(name) for name in ("attention", "mlp")]
    if len(found) != 3 or not all(_are_layers(some, ours) for some in sets) or type(found["trained"]) is not bool:
        raise CheckpointError(
            f"the settings in {path / 'config.json'} must be `attention` and `mlp`, lists of layers from 0 to "
            f"{ours - 1}, and `trained` where the set has weights, and are {config.settings}"
        )
    return skip(ours, found["attention"], found["mlp"])


def _are_layers(found: Any, num_layers: int) -> bool:
    return isinstance(found, list) and all(type(i) is int and 0 <= i < num_layers for i in found)


def unless(skipped: bool | Array, block: Callable[..., tuple], *stream: Any) -> tuple:
    """What the block makes of the stream, or the stream as it is. A bool is decided now, an array when it runs."""
    if isinstance(skipped, bool):
        return stream if skipped else block(*stream)
    return jax.lax.cond(skipped, lambda *stream: stream, block, *stream)


def run_layer(
    layer: Layer,
    config: LlamaConfig,
    skipped: tuple[bool | Array, bool | Array],
    x: Float[Array, "B W D"],
    attend: Attend,
    prefix: kv.KV,
    nodes: kv.KV,
) -> tuple[Float[Array, "B W D"], kv.KV]:
    """A layer on the residual stream, its attention, its MLP left out or not; `prefix` and `nodes` hold it alone."""
    no_attention, no_mlp = skipped
    x, nodes = unless(no_attention, lambda x, nodes: attention_block(layer, config, x, attend, prefix, nodes), x, nodes)
    (x,) = unless(no_mlp, lambda x: (mlp_block(layer, config, x),), x)
    return x, nodes


@dataclasses.dataclass(frozen=True)
class LayerSkip:
    """Drafts with the target itself, some attention and MLP blocks left out (Draft & Verify).

    What drafts (`models.draft`) is a set, static or traced, or a set's blocks with weights of their own.
    """

    abstains: ClassVar[bool] = False

    @staticmethod
    def load_head(target: Checkpoint, path: Path, dtype: jnp.dtype) -> SkipSet | KeptBlocks:
        """Reads the set at `path`, with weights if it has any; raises CheckpointError where it is another target's."""
        skips = read_skip_set(path, target.config)
        if not is_trained(read_head(path, NAME)):
            return skips
        make = lambda: KeptBlocks(target.config.model, rngs=nnx.Rngs(0), skips=skips)
        return load_head(path, make, dtype, target.mesh)

    def taps(self, models) -> tuple[int, ...]:
        return ()

    def reuse(self, state) -> None:
        return None

    def init(self, models, batch, rows) -> LayerSkipState:
        return LayerSkipState(nodes=None)

    def grow(self, state, rows) -> LayerSkipState:
        return state

    def observe(self, models, state, committed) -> LayerSkipState:
        return LayerSkipState(nodes=None)

    def root(self, models, state, prefix, tree):
        batch, size = tree.token.shape
        target = models.target
        begun = LayerSkipState(nodes=kv.allocate(target.config, batch, size, target.norm[...].dtype))
        node = jnp.zeros((batch, 1), jnp.int32)
        logits, hidden, state = self._run(models, begun, prefix, tree, node, node)
        return logits[:, 0], hidden[:, 0], state

    def expand(self, models, state, prefix, tree, frontier):
        slots = jnp.where(frontier.live, frontier.node, tree.token.shape[1])
        return self._run(models, state, prefix, tree, frontier.node, slots)

    def _run(self, models, state: LayerSkipState, prefix, tree, node: Int[Array, "B W"], slots: Int[Array, "B W"]):
        """Runs nodes through what is not left out; keeps their keys and values at `slots`."""
        assert state.nodes is not None, "root comes before expand"
        target: Llama = models.target
        config, draft = target.config, models.draft
        blocks, skips = (draft, draft.skips) if isinstance(draft, KeptBlocks) else (target, draft)
        positions, cached = prefix.length[:, None] - 1 + take(tree.depth, node), prefix.length - 1
        rows = kv.capacity(prefix.cache)
        attend = attend_to(config, positions, take(tree.ancestors, node), cached, rows, slots)
        x, nodes = embed(target, take(tree.token, node)), []
        for i, (layer, cache, mine) in enumerate(zip(blocks.layers, prefix.cache, state.nodes, strict=True)):
            x, new = run_layer(layer, config, (skips.attention[i], skips.mlp[i]), x, attend, cache, mine)
            nodes.append(new)
        hidden = rms_norm(x, blocks.norm[...], config.norm_eps)
        return unembed(target, hidden), hidden, LayerSkipState(nodes=tuple(nodes))
