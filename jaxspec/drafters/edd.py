"""EDD: a separate one-layer LLaMA drafts, with the target's hidden states as a soft prompt.

From "Faster Speculative Decoding via Effective Draft Decoder with Pruned Candidate Tree", §3.1. For a verified token,
the target's hidden state takes the place of the token's embedding: it passes the layer's input norm, and its keys and
values are stored at the token's position. The rest of the layer is not computed for it. The root is committed but has
no hidden state yet. So each round starts with the root's embedding, and the cache holds only the tokens before the
root.
"""

import dataclasses
from typing import ClassVar, final

import chex
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, Drafts, HeadShape, Models, Prefix, positions, slots_of
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take, tree_mask
from jaxspec.drafters.draft_vocabulary import drafts_of, with_lm_head
from jaxspec.model import kv_cache as kv
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama, forward
from jaxspec.model.rope import rotary


class EddHead(nnx.Module):
    """An EDD head: a LLaMA of one layer, which reads the output of the target's layer `tap` (from 0)."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        rngs: nnx.Rngs,
        tap: int,
        draft_vocabulary: str | None = None,
        dtype: jnp.dtype = FLOAT32,
    ):
        self.config, self.tap = config, tap
        self.decoder = with_lm_head(Llama(config, rngs=rngs, dtype=dtype), draft_vocabulary, rngs, dtype)

    def soft_prompt(self, hidden: Float[Array, "B W D"], positions: Int[Array, "B W"]) -> kv.KV:
        """Keys and values of verified tokens, computed from the target's hidden states."""
        return self.decoder.layers[0].keys_and_values(hidden, rotary(self.config, positions))


@chex.dataclass(frozen=True)
class EddState:
    """Keys and values of verified tokens, computed from hidden states; during drafting also of this round's nodes."""

    cache: tuple[kv.KV, ...]  # one layer, one row for each committed token, except the root
    nodes: tuple[kv.KV, ...] | None = None  # keys and values of expanded nodes, the root included


def default_tap(num_layers: int) -> int:
    """The fourth-to-last layer, the best in the paper (§4.3.1); the first if there are fewer than four.

    For LLaMA2-7B with 32 layers it is layer 28, counted from 0. Its output is Hugging Face's `hidden_states[-4]`.
    """
    return max(0, num_layers - 4)


@final
@dataclasses.dataclass(frozen=True)
class Edd(Drafter):
    """EDD: a one-layer LLaMA that reads the target's hidden states.

    If the tap is the target's last layer, it reads the features, after the final norm, like Hugging Face's
    `hidden_states[-1]`.
    """

    name: ClassVar[str] = "edd"
    rank: ClassVar[int | None] = 20
    has_head: ClassVar[bool] = True

    def head_for(self, target: LlamaConfig, tap: int | None = None) -> HeadShape:
        """One layer of the target's shape. `tap` is the layer (from 0) whose output it reads; None: `default_tap`."""
        tap = default_tap(target.num_layers) if tap is None else tap
        return HeadShape(dataclasses.replace(target, num_layers=1), {"tap": tap})

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> EddHead:
        return EddHead(shape.model, rngs=rngs, dtype=dtype, **shape.settings)

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        if not 0 <= (tap := shape.settings["tap"]) < target.num_layers:
            raise ValueError(f"reads layer {tap} (from 0) and this target has {target.num_layers}: it is for another")

    def taps(self, models: Models) -> tuple[int, ...]:
        after = models.draft.tap + 1
        return (after,) if after < models.target.config.num_layers else ()

    def init(self, models: Models, batch: int, cache_len: int) -> EddState:
        return EddState(cache=kv.allocate(models.draft.config, batch, cache_len, models.target.dtype))

    def observe(self, models: Models, state: EddState, committed: Committed) -> EddState:
        (hidden,) = committed.taps or (committed.hidden,)
        new = models.draft.soft_prompt(hidden, committed.position)
        return EddState(cache=kv.append(state.cache, (new,), committed.start, after=hidden[:, 0].argmax(-1)))

    def root(self, models: Models, state: EddState, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, EddState]:
        batch, size = tree.token.shape
        nodes = kv.allocate(models.draft.config, batch, size, models.target.dtype)
        return self.expand(models, dataclasses.replace(state, nodes=nodes), prefix, tree, root_frontier(batch))

    def expand(
        self, models: Models, state: EddState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, EddState]:
        decoder: Llama = models.draft.decoder
        node = frontier.node
        out = forward(
            decoder, take(tree.token, node), positions(prefix, take(tree.depth, node)), tree_mask(tree, node),
            state.cache, prefix.length - 1, nodes=state.nodes, slots=slots_of(tree, frontier),
        )  # fmt: skip
        logits = decoder.logits(out.hidden)
        drafts = drafts_of(decoder.draft_vocabulary, decoder.config.vocab_size, logits, out.hidden)
        return drafts, dataclasses.replace(state, nodes=out.nodes)
