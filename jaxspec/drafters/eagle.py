"""EAGLE: one decoder layer predicts the target's next feature, and the target's LM head reads it (arXiv:2401.15077).

A feature is the target's last hidden state. `feature_pairs` describes how the head reads features and tokens.
"""

import dataclasses
from typing import ClassVar, final

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, HeadShape, Models, Prefix
from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.tree import DraftTree, Frontier
from jaxspec.drafters import draft_vocabulary as vocabulary
from jaxspec.drafters import feature_pairs
from jaxspec.drafters.feature_pairs import PairReader, PairState
from jaxspec.model.attention import Attend
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV
from jaxspec.model.linear import Linear, linear
from jaxspec.model.llama import STREAM, Layer, Llama, decoder_layer, lm_head, look_up, unembed
from jaxspec.model.mesh_rules import constrain

INPUTS = ("shifted", "unshifted", "feature", "token")


class EagleHead(nnx.Module):
    """Weights of a head: `fc` (2D → D) and a decoder layer without input norm.

    `inputs` names what `fc` reads, for the paper's ablation (its Figures 3 and 9): `shifted`, a feature and the token
    after its own, as EAGLE does; `unshifted`, a feature and its own token; or `feature` or `token` (the shifted one)
    alone, where there is no `fc`.
    `embedding` is its own table of tokens, where a published head comes with one that is not the target's; mostly None.
    `head` are the columns of the target's LM head that a draft vocabulary has; None: it is read with the target's.
    """

    def __init__(
        self,
        config: LlamaConfig,
        *,
        rngs: nnx.Rngs,
        bias: bool,
        own_embedding: bool = False,
        inputs: str = INPUTS[0],
        draft_vocabulary: str | None = None,
        dtype: jnp.dtype = FLOAT32,
    ):
        self.config, self.draft_vocabulary, self.inputs = config, draft_vocabulary, inputs
        width = config.hidden_size
        joins = inputs in ("shifted", "unshifted")
        self.fc = Linear(rngs, (2 * width, width), ("input", "embed"), bias=bias, dtype=dtype) if joins else None
        self.layer = Layer(rngs, config, dtype, input_norm=False)
        table = nnx.Param(jnp.zeros((config.vocab_size, width), dtype), axes=("vocab", "embed"))
        self.embedding = table if own_embedding else None
        cut = draft_vocabulary is not None
        self.head = vocabulary.build_lm_head(width, draft_vocabulary, config.vocab_size, rngs, dtype) if cut else None


def fuse(
    head: EagleHead, target: Llama, tokens: Int[Array, "B W"], features: Float[Array, "B W D"]
) -> Float[Array, "B W D"]:
    """The input of the head's layer: fc of (embedding of the token, feature before it), in that order.

    A head without fc reads one of them as it is.
    """
    if head.inputs == "feature":
        return features
    token = look_up(target.embedding if head.embedding is None else head.embedding, tokens).astype(features.dtype)
    if head.fc is None:
        return constrain(token, *STREAM)
    pair = constrain(jnp.concatenate([token, features], axis=-1), *STREAM)
    return constrain(linear(pair, head.fc), *STREAM)


def pair_tokens(head: EagleHead, own: Int[Array, "B T"], after: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Of the tokens of some features and those after them, the ones that the head pairs with the features."""
    return own if head.inputs == "unshifted" else after


def reader(models: Models) -> PairReader:
    """How a head reads pairs: by its layer, and by the target's LM head or the columns that it has of it."""
    head: EagleHead = models.draft

    def layer(
        tokens: Int[Array, "B W"], features: Float[Array, "B W D"], attend: Attend, cache: KV, nodes: KV | None
    ) -> tuple[Float[Array, "B W D"], KV]:
        x = fuse(head, models.target, tokens, features)
        return decoder_layer(head.layer, head.config, x, attend, cache, nodes)

    def logits(features: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        return unembed(models.target, features) if head.head is None else lm_head(features, head.head)

    return PairReader(config=head.config, layer=layer, logits=logits, shifted=head.inputs != "unshifted")


def drafts_of(head: EagleHead, logits: Float[Array, "B W V"], hidden: Float[Array, "B W D"]) -> Drafts:
    """What logits of the tokens that a head can draft say."""
    return vocabulary.drafts_of(head.draft_vocabulary, head.config.vocab_size, logits, hidden)


@final
@dataclasses.dataclass(frozen=True)
class Eagle(Drafter):
    """EAGLE: one trained layer that predicts the target's features."""

    name: ClassVar[str] = "eagle"
    rank: ClassVar[int | None] = 10
    has_head: ClassVar[bool] = True

    def head_for(self, target: LlamaConfig, bias: bool = False, inputs: str = INPUTS[0]) -> HeadShape:
        """One layer of the target's shape, as a LLaMA has it: without experts and without norms of queries and keys.

        Args:
            bias: of `fc`; some published heads have one.
            inputs: of `fc`; see `EagleHead`.
        """
        layer = dataclasses.replace(target.without_experts, num_layers=1, qk_norm=False)
        settings = {"bias": bias, "own_embedding": False}
        return HeadShape(layer, settings if inputs == INPUTS[0] else {**settings, "inputs": inputs})

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        if (inputs := shape.settings.get("inputs", INPUTS[0])) not in INPUTS:
            raise ValueError(f"has inputs {inputs!r}, which must be one of {', '.join(INPUTS)}")

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> EagleHead:
        return EagleHead(shape.model, rngs=rngs, dtype=dtype, **shape.settings)

    def init(self, models: Models, batch: int, rows: int) -> PairState:
        head: EagleHead = models.draft
        tokens = vocabulary.size_of(head.draft_vocabulary, head.config.vocab_size)
        return feature_pairs.empty(head.config, batch, rows, tokens, models.target.norm[...].dtype)

    def observe(self, models: Models, state: PairState, committed: Committed) -> PairState:
        return feature_pairs.observe(reader(models), state, committed, committed.hidden)

    def root(self, models: Models, state: PairState, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, PairState]:
        drafts = drafts_of(models.draft, state.logits[:, None], state.hidden[:, None])
        return drafts, feature_pairs.begin(reader(models), state, tree)

    def expand(
        self, models: Models, state: PairState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, PairState]:
        logits, hidden, state = feature_pairs.expand(reader(models), state, prefix, tree, frontier)
        return drafts_of(models.draft, logits, hidden), state
