"""Draft & Verify: the target drafts for itself, with some of its blocks left out (arXiv:2309.08168).

A block is the attention or the MLP of a layer; where it is left out, the residual stream goes by. There are no new
weights: all that is kept on disk is which blocks these are. Drafting reads the target's keys and values of the prefix,
and those that it computes itself, of the root and the drafted nodes, are dropped after the round.
"""

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec import cache as kv
from jaxspec.checkpoint import CheckpointConfig, CheckpointError
from jaxspec.heads import HeadConfig, check_same_shape, read_head, write_config
from jaxspec.llama import Attend, Llama, attend_to, attention_block, embed, final_norm, mlp_block, unembed
from jaxspec.loading import Checkpoint
from jaxspec.tree import take

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


def write_skip_set(path: Path, target: CheckpointConfig, skips: SkipSet) -> None:
    """Writes a set into the folder `path`; `read_skip_set` reads it."""
    settings = {"attention": numbers(skips.attention), "mlp": numbers(skips.mlp)}
    write_config(path, HeadConfig(NAME, target.model, target.dtype, target.source_dtype, settings))


def read_skip_set(path: Path, target: CheckpointConfig) -> SkipSet:
    """Reads config.json of a set. Raises CheckpointError where it is none, or another target's."""
    config = read_head(path, NAME)
    check_same_shape(path, config.model, target.model)
    if (theirs := config.model.num_layers) != (ours := target.model.num_layers):
        raise CheckpointError(f"the skip set at {path} is for a target of {theirs} layers, and this one has {ours}")
    found = config.settings
    if found.keys() != {"attention", "mlp"} or not all(_are_layers(some, ours) for some in found.values()):
        raise CheckpointError(
            f"the settings in {path / 'config.json'} must be `attention` and `mlp`, lists of layers from 0 to "
            f"{ours - 1}, and are {found}"
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
    target: Llama,
    skips: SkipSet | Switches,
    i: int,
    x: Float[Array, "B W D"],
    attend: Attend,
    prefix: kv.KV,
    nodes: kv.KV,
) -> tuple[Float[Array, "B W D"], kv.KV]:
    """Layer i on the residual stream, without what is left out; `prefix` and `nodes` hold this layer alone."""
    layer, config = target.layers[i], target.config
    attention = lambda x, nodes: attention_block(layer, config, x, attend, prefix, nodes)
    x, nodes = unless(skips.attention[i], attention, x, nodes)
    (x,) = unless(skips.mlp[i], lambda x: (mlp_block(layer, config, x),), x)
    return x, nodes


@dataclasses.dataclass(frozen=True)
class LayerSkip:
    """Drafts with the target itself, some attention and MLP blocks left out (Draft & Verify)."""

    abstains: ClassVar[bool] = False

    @staticmethod
    def load_head(target: Checkpoint, path: Path, dtype: jnp.dtype) -> SkipSet:
        """Reads the set at `path`; raises CheckpointError where it is for another target. There are no weights."""
        return read_skip_set(path, target.config)

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
        positions, cached = prefix.length[:, None] - 1 + take(tree.depth, node), prefix.length - 1
        rows = kv.capacity(prefix.cache)
        attend = attend_to(target.config, positions, take(tree.ancestors, node), cached, rows, slots)
        x, nodes = embed(target, take(tree.token, node)), []
        for i, (cache, mine) in enumerate(zip(prefix.cache, state.nodes, strict=True)):
            x, new = run_layer(target, models.draft, i, x, attend, cache, mine)
            nodes.append(new)
        hidden = final_norm(target, x)
        return unembed(target, hidden), hidden, LayerSkipState(nodes=tuple(nodes))
