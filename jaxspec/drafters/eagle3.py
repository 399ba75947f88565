"""EAGLE-3: one decoder layer drafts from the fused inputs of three target layers (arXiv:2503.01840).

The head reads pairs of (fused feature of token i, token i + 1); see `feature_pairs`. The layer's output is the feature
of the next pair. It is not trained to equal the target's features. The head has its own LM head, over a draft
vocabulary.

Published heads differ in details, which `Eagle3Options` lists.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, final

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, Drafts, HeadShape, Models, Prefix
from jaxspec.decoding.tree import DraftTree, Frontier
from jaxspec.drafters import draft_vocabulary, feature_pairs
from jaxspec.drafters.feature_pairs import PairReader, PairState
from jaxspec.model.attention import Attend, attention
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV
from jaxspec.model.linear import Linear, linear, rms_norm
from jaxspec.model.llama import STREAM, Layer, Llama, lm_head, look_up, mlp_block
from jaxspec.model.sharding import constrain


@dataclasses.dataclass(frozen=True)
class Eagle3Options:
    """Options of a head, besides the shape of its layer.

    Attributes:
        taps: layers of the target whose inputs are fused, in order.
        draft_vocabulary: mask of the tokens that it can draft, from `draft_vocabulary.to_mask`; None: all.
        own_embedding: it has its own embedding instead of the target's.
        tap_norm: RMSNorm of the taps before fusion: of each, or of all as one vector (`fc_norm`, `norm_before_fc`).
        norm_before_residual: the residual stream starts with the normed feature, not with the feature itself.
        final_norm: there is an RMSNorm before the LM head.
        returns_normed: the next feature is that norm's output, not its input (`norm_output` of speculators and vLLM).
    """

    taps: tuple[int, ...]
    draft_vocabulary: str | None = None
    own_embedding: bool = False
    tap_norm: Literal["none", "each", "all"] = "none"
    norm_before_residual: bool = False
    final_norm: bool = True
    returns_normed: bool = False

    def __post_init__(self) -> None:
        if not self.taps:
            raise ValueError("an EAGLE-3 head reads at least one layer of its target")
        if self.returns_normed and not self.final_norm:
            raise ValueError("a head without a final norm cannot feed back that norm's output")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "Eagle3Options":
        """The options in `HeadShape.settings`, where taps are a list, as in JSON."""
        return cls(**{**settings, "taps": tuple(settings["taps"])})


class Eagle3Head(nnx.Module):
    """Weights of an EAGLE-3 head.

    `layer.attention_norm` normalises the token's embedding, and `feature_norm` the feature. Attention reads both, so
    its input has width 2D.
    """

    def __init__(self, config: LlamaConfig, options: Eagle3Options, *, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32):
        self.config, self.options = config, options
        width, count = config.hidden_size, len(options.taps)
        normed = {"none": [], "each": [width] * count, "all": [count * width]}[options.tap_norm]

        def norm(size: int) -> nnx.Param:
            return nnx.Param(jnp.ones((size,), dtype), axes=("embed",))

        self.tap_norms = nnx.List([norm(size) for size in normed])
        self.fc = Linear(rngs, (count * width, width), ("input", "embed"), bias=False, dtype=dtype)
        self.feature_norm = norm(width)
        self.layer = Layer(rngs, config, dtype, attention_reads=2 * width)
        self.norm = norm(width) if options.final_norm else None
        self.head = draft_vocabulary.build_lm_head(width, options.draft_vocabulary, config.vocab_size, rngs, dtype)
        table = nnx.Param(jnp.zeros((config.vocab_size, width), dtype), axes=("vocab", "embed"))
        self.embedding = table if options.own_embedding else None

    @property
    def ids(self) -> np.ndarray:
        """Ids of the draft vocabulary, ascending, int32 [Vd]."""
        return draft_vocabulary.ids_of(self.options.draft_vocabulary, self.config.vocab_size)


def fuse(head: Eagle3Head, taps: tuple[Float[Array, "B T D"], ...]) -> Float[Array, "B T D"]:
    """The fused feature: fc of the target's hidden states, in order."""
    eps, norms = head.config.norm_eps, [scale[...] for scale in head.tap_norms]
    if head.options.tap_norm == "each":
        taps = tuple(rms_norm(tap, scale, eps) for tap, scale in zip(taps, norms, strict=True))
    joined = constrain(jnp.concatenate(taps, axis=-1), *STREAM)
    if head.options.tap_norm == "all":
        joined = rms_norm(joined, norms[0], eps)
    return constrain(linear(joined, head.fc), *STREAM)


def layer_input(
    head: Eagle3Head, target: Llama, tokens: Int[Array, "B W"], features: Float[Array, "B W D"]
) -> tuple[Float[Array, "B W I"], Float[Array, "B W D"]]:
    """The input of attention for pairs, [embedding ; feature] with I = 2D, and the residual stream."""
    token = look_up(target.embedding if head.embedding is None else head.embedding, tokens).astype(features.dtype)
    normed = rms_norm(features, head.feature_norm[...], head.config.norm_eps)
    scale = head.layer.attention_norm
    assert scale is not None, "the layer has a norm for the token's embedding"
    pair = jnp.concatenate([rms_norm(token, scale[...], head.config.norm_eps), normed], axis=-1)
    return constrain(pair, *STREAM), normed if head.options.norm_before_residual else features


def layer_output(head: Eagle3Head, stream: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """The next feature, from the residual stream after attention."""
    out = mlp_block(head.layer, head.config, constrain(stream, *STREAM))
    return _normed(head, out) if head.options.returns_normed else out


def draft_logits(head: Eagle3Head, features: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Logits over the draft vocabulary (V here), float32, from the features of `layer_output`."""
    normed = features if head.options.returns_normed else _normed(head, features)
    return lm_head(normed, head.head)


def _normed(head: Eagle3Head, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    return x if head.norm is None else rms_norm(x, head.norm[...], head.config.norm_eps)


def official_taps(num_layers: int) -> tuple[int, ...]:
    """Layers 2, n/2 and n - 3, as in EAGLE's own code. If the target has fewer than 7 layers, some coincide."""
    return tuple(min(max(tap, 0), num_layers - 1) for tap in (2, num_layers // 2, num_layers - 3))


def reader(models: Models) -> PairReader:
    """The layer and the LM head with which an EAGLE-3 head reads pairs."""
    head: Eagle3Head = models.draft

    def layer(
        tokens: Int[Array, "B W"], features: Float[Array, "B W D"], attend: Attend, cache: KV, nodes: KV | None
    ) -> tuple[Float[Array, "B W D"], KV]:
        x, stream = layer_input(head, models.target, tokens, features)
        mixed, nodes = attention(head.layer.attention, head.config, x, attend, cache, nodes)
        return layer_output(head, stream + mixed), nodes

    return PairReader(config=head.config, layer=layer, logits=lambda out: draft_logits(head, out))


def drafts_of(head: Eagle3Head, logits: Float[Array, "B W V"], hidden: Float[Array, "B W D"]) -> Drafts:
    """Drafts from logits over the draft vocabulary."""
    return draft_vocabulary.drafts_of(head.options.draft_vocabulary, head.config.vocab_size, logits, hidden)


@final
@dataclasses.dataclass(frozen=True)
class Eagle3(Drafter):
    """EAGLE-3: one trained layer over features of three target layers."""

    name: ClassVar[str] = "eagle3"
    rank: ClassVar[int | None] = 15
    has_head: ClassVar[bool] = True

    def head_for(
        self, target: LlamaConfig, ids: Iterable[int] | None = None, taps: Iterable[int] | None = None
    ) -> HeadShape:
        """One of `LlamaConfig.bare_layers`, without norms of queries and keys.

        Args:
            ids: ids of the draft vocabulary; None: the first 32,000.
            taps: layers of the target whose inputs it reads, from 0; None: the official three.
        """
        chosen = range(min(draft_vocabulary.LARGEST, target.vocab_size)) if ids is None else ids
        mask = draft_vocabulary.to_mask(chosen, target.vocab_size)
        read = official_taps(target.num_layers) if taps is None else tuple(taps)
        options = Eagle3Options(read, draft_vocabulary=mask)
        layer = target.bare_layers(1, qk_norm=False)
        return HeadShape(layer, {**dataclasses.asdict(options), "taps": list(options.taps)})

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> Eagle3Head:
        return Eagle3Head(shape.model, Eagle3Options.from_settings(shape.settings), rngs=rngs, dtype=dtype)

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        try:
            options = Eagle3Options.from_settings(shape.settings)
        except (TypeError, KeyError) as error:
            raise ValueError(f"does not have the settings of an EAGLE-3 head: {error}") from error
        if outside := [tap for tap in options.taps if not 0 <= tap < target.num_layers]:
            raise ValueError(
                f"reads the input of layer {outside[0]} (from 0) and this target has {target.num_layers}: it is for "
                "another target, or its layer numbers follow another convention (--taps)"
            )

    def taps(self, models: Models) -> tuple[int, ...]:
        return models.draft.options.taps

    def init(self, models: Models, batch: int, rows: int) -> PairState:
        head: Eagle3Head = models.draft
        return feature_pairs.empty(head.config, batch, rows, len(head.ids), models.target.norm[...].dtype)

    def observe(self, models: Models, state: PairState, committed: Committed) -> PairState:
        return feature_pairs.observe(reader(models), state, committed, fuse(models.draft, committed.taps))

    def root(self, models: Models, state: PairState, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, PairState]:
        drafts = drafts_of(models.draft, state.logits[:, None], state.hidden[:, None])
        return drafts, feature_pairs.begin(reader(models), state, tree)

    def widen(self, state: PairState, width: int) -> PairState:
        return feature_pairs.widen(state, width)

    def expand(
        self, models: Models, state: PairState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, PairState]:
        logits, hidden, state = feature_pairs.expand(reader(models), state, prefix, tree, frontier)
        return drafts_of(models.draft, logits, hidden), state
