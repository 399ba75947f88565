"""Early exit: the target's first layers draft, with a trained layer and LM head after them (EESD, arXiv:2406.03853).

Drafting runs the target's own first layers and reads the target's cache for the prefix. Verification continues after
these layers: for every expanded node it reuses their keys, values and outputs. Leaves were not expanded, so
verification runs the first layers for them. Each live node thus passes each layer once. The exit layers have a cache of
their own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, final

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, Drafts, HeadShape, Models, Prefix, positions, slots_of
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take, tree_mask
from jaxspec.drafters.draft_vocabulary import build_lm_head, drafts_of
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import Attend, causal_mask, over_cache, visible
from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import RMSNorm
from jaxspec.model.llama import Angles, Layer, Output, run_layers
from jaxspec.model.rope import rotary


class EarlyExitHead(nnx.Module):
    """An exit after the target's first `first` layers: its own decoder layers, norm and LM head.

    Without a layer, norm and LM head read the output of the first layers (the paper's ablation, Table 4).
    """

    def __init__(
        self,
        config: LlamaConfig,
        *,
        rngs: nnx.Rngs,
        first: int,
        exit_layer: bool = True,
        draft_vocabulary: str | None = None,
        dtype: jnp.dtype = FLOAT32,
    ):
        """`config.num_layers` is the number of exit layers, usually one. If `exit_layer` is false there is none."""
        self.config, self.first, self.draft_vocabulary = config, first, draft_vocabulary
        width = config.hidden_size
        self.layers = nnx.List([Layer(rngs, config, dtype) for _ in range(config.num_layers * exit_layer)])
        self.norm = RMSNorm(width, config.norm_eps, dtype)
        self.lm_head = build_lm_head(width, draft_vocabulary, config.vocab_size, rngs, dtype)

    def __call__(
        self, x: Float[Array, "B W D"], angles: Angles, attends: Sequence[Attend]
    ) -> tuple[Float[Array, "B W C"], Float[Array, "B W D"], tuple[Any, ...]]:
        """Logits (float32, Eq. 1), the hidden states that gave them, and what attention keeps."""
        x, kept, _ = run_layers(self.layers, x, angles, attends)
        hidden = self.norm(x)
        return self.lm_head(hidden), hidden, kept


@chex.dataclass(frozen=True)
class LowerLayers:
    """Results of the target's first layers for the N nodes of the drafted tree."""

    nodes: tuple[kv.KV, ...]  # keys and values of each of these layers
    hidden: Float[Array, "B N D"]  # output of these layers, float32 as the residual stream is
    known: Bool[Array, "B N"]  # nodes with results: the expanded ones


@chex.dataclass(frozen=True)
class EarlyExitState:
    """The exit layers' cache of committed tokens, without the root, and during drafting this round's nodes."""

    cache: tuple[kv.KV, ...]  # one per exit layer
    nodes: tuple[kv.KV, ...] | None = None  # keys and values of expanded nodes, one per exit layer
    lower: LowerLayers | None = None


def default_first(num_layers: int) -> int:
    """Number of target layers before the exit: 6.5 % of them, but at least one; as in the paper 3 of 40 and 5 of 80."""
    return max(1, round(0.065 * num_layers))


@final
@dataclasses.dataclass(frozen=True)
class EarlyExit(Drafter):
    """EESD: the target's first layers, and one trained layer."""

    name: ClassVar[str] = "early-exit"
    rank: ClassVar[int | None] = 30
    has_head: ClassVar[bool] = True
    reuses_drafting: ClassVar[bool] = True

    def head_for(self, target: LlamaConfig, first: int | None = None, exit_layers: int = 1) -> HeadShape:
        """An exit of `exit_layers` (0 or more) decoder layers after `first` target layers (None: `default_first`)."""
        settings: dict[str, Any] = {"first": default_first(target.num_layers) if first is None else first}
        if exit_layers == 0:
            settings["exit_layer"] = False
        return HeadShape(dataclasses.replace(target, num_layers=max(exit_layers, 1)), settings)

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> EarlyExitHead:
        return EarlyExitHead(shape.model, rngs=rngs, dtype=dtype, **shape.settings)

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        if not 0 < (first := shape.settings["first"]) < target.num_layers:
            raise ValueError(f"exits after {first} layers and this target has {target.num_layers}: it is for another")

    def taps(self, models: Models) -> tuple[int, ...]:
        return (models.draft.first,) if models.draft.layers else ()

    def init(self, models: Models, batch: int, cache_len: int) -> EarlyExitState:
        head, dtype = models.draft, models.target.dtype
        return EarlyExitState(cache=kv.allocate(head.config, batch, cache_len, dtype, num_layers=len(head.layers)))

    def observe(self, models: Models, state: EarlyExitState, committed: Committed) -> EarlyExitState:
        head: EarlyExitHead = models.draft
        if not head.layers:
            return EarlyExitState(cache=())
        seen = visible(causal_mask(*committed.token.shape), committed.start, kv.capacity(state.cache))
        (x,), angles, *layers, last = committed.taps, rotary(head.config, committed.position), *head.layers
        x, new, _ = run_layers(layers, x, angles, over_cache(seen, state.cache[:-1]))
        new = (*new, last.keys_and_values(x, angles))  # the last exit layer's output is not needed
        return EarlyExitState(cache=kv.append(state.cache, new, committed.start, after=x[:, 0].argmax(-1)))

    def root(
        self, models: Models, state: EarlyExitState, prefix: Prefix, tree: DraftTree
    ) -> tuple[Drafts, EarlyExitState]:
        head: EarlyExitHead = models.draft
        batch, size = tree.token.shape
        config, dtype = models.target.config, models.target.dtype
        begun = EarlyExitState(
            cache=state.cache,
            nodes=kv.allocate(head.config, batch, size, dtype, num_layers=len(head.layers)),
            lower=LowerLayers(
                nodes=kv.allocate(config, batch, size, dtype, num_layers=head.first),
                hidden=jnp.zeros((batch, size, config.hidden_size), jnp.float32),
                known=jnp.zeros((batch, size), bool),
            ),
        )
        return self.expand(models, begun, prefix, tree, root_frontier(batch))

    def expand(
        self, models: Models, state: EarlyExitState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, EarlyExitState]:
        assert state.lower is not None and state.nodes is not None, "root comes before expand"
        head, old = models.draft, state.lower
        node, slots, cache_len = frontier.node, slots_of(tree, frontier), kv.capacity(prefix.cache)
        at, mask = positions(prefix, take(tree.depth, node)), tree_mask(tree, node)
        target, seen = models.target, visible(mask, prefix.length - 1, cache_len, slots)
        start, angles = target.embed(take(tree.token, node)), rotary(target.config, at)
        over_lower = over_cache(seen, prefix.cache[: head.first], old.nodes)
        x, lower_nodes, _ = run_layers(target.layers[: head.first], start, angles, over_lower)
        put = jax.vmap(lambda values, at, new: values.at[at].set(new, mode="drop"))
        known = put(old.known, slots, jnp.ones(slots.shape, bool))
        lower = LowerLayers(nodes=lower_nodes, hidden=put(old.hidden, slots, x), known=known)
        logits, hidden, nodes = head(x, angles, over_cache(seen, state.cache, state.nodes))
        drafts = drafts_of(head.draft_vocabulary, head.config.vocab_size, logits, hidden)
        return drafts, EarlyExitState(cache=state.cache, nodes=nodes, lower=lower)

    def target_forward(
        self,
        models: Models,
        state: EarlyExitState,
        prefix: Prefix,
        tree: DraftTree,
        slots: Int[Array, "B N"],
        leaves: int,
    ) -> Output:
        """Runs the target over all nodes of a tree, and reuses the known results of its first layers."""
        if state.lower is None:  # nothing was drafted
            return super().target_forward(models, state, prefix, tree, slots, leaves)
        model, drafted = models.target, state.lower
        first = len(drafted.nodes)
        lower_cache, upper_cache = prefix.cache[:first], prefix.cache[first:]
        at, cached, cache_len = positions(prefix, tree.depth), prefix.length - 1, kv.capacity(prefix.cache)
        missing = tree.live & ~take(drafted.known, slots)
        is_missing, leaf = jax.lax.top_k(missing.astype(jnp.float32), leaves)  # equal values keep their order
        put_at = jnp.where(is_missing > 0, leaf, tree.token.shape[1])
        known = tuple(kv.gather_path(layer, slots) for layer in drafted.nodes)
        seen, angles = visible(tree_mask(tree, leaf), cached, cache_len, put_at), rotary(model.config, take(at, leaf))
        start = model.embed(take(tree.token, leaf))
        new, lower, _ = run_layers(model.layers[:first], start, angles, over_cache(seen, lower_cache, known))
        put = jax.vmap(lambda old, at, row: old.at[at].set(row, mode="drop"))
        hidden = put(take(drafted.hidden, slots), put_at, new)
        seen, angles = visible(tree.ancestors, cached, cache_len), rotary(model.config, at)
        x, upper, inputs = run_layers(model.layers[first:], hidden, angles, over_cache(seen, upper_cache))
        taps = model.tapped(inputs[tap - first] for tap in self.taps(models))
        return Output(hidden=model.final_norm(x), nodes=(*lower, *upper), taps=taps)
