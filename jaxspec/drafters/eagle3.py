"""EAGLE-3: one decoder layer drafts from the fused inputs of three target layers (arXiv:2503.01840).

The head reads pairs of (fused feature of token i, token i + 1); see `eagle_state`. The layer's output is the feature
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

from jaxspec.decoding.drafter import FLOAT32, Committed, HeadShape, Models
from jaxspec.drafters import draft_vocabulary
from jaxspec.drafters.eagle_state import PairDrafter
from jaxspec.host.arguments import integer
from jaxspec.model.attention import Attend
from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import Linear, RMSNorm
from jaxspec.model.llama import STREAM, Angles, Layer, Llama
from jaxspec.model.sharding import constrain

TapNorm = Literal["none", "each", "all"]


@dataclasses.dataclass(frozen=True)
class Eagle3Options:
    """Options of a head, besides the shape of its layer."""

    taps: tuple[int, ...]  # layers of the target whose inputs are fused, in order
    draft_vocabulary: str | None = None  # mask of the tokens that it can draft, from `to_mask`; None: all
    own_embedding: bool = False  # it has its own embedding instead of the target's
    tap_norm: TapNorm = "none"
    """RMSNorm of the taps before fusion: of each, or of all as one vector (`fc_norm`, `norm_before_fc`)."""
    norm_before_residual: bool = False  # the residual stream starts with the normed feature, not with the feature
    own_head: bool = True  # it has its own LM head instead of the target's; with a draft vocabulary always
    target_width: int | None = None  # width of the target's hidden states; None: the head's own
    window: int = 0  # positions that a pair sees, its own included; 0: all
    returns_normed: bool = False  # the next feature is the output of the norm before the LM head (`norm_output`)

    def __post_init__(self) -> None:
        if not self.taps:
            raise ValueError("an EAGLE-3 head reads at least one layer of its target")
        if self.target_width is not None and not self.own_embedding:
            raise ValueError("an EAGLE-3 head of another width than its target needs an embedding of its own")
        integer("window", self.window, 0)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "Eagle3Options":
        """The options in `HeadShape.settings`, where taps are a list, as in JSON."""
        kept = {name: value for name, value in settings.items() if name != "final_norm"}  # in earlier heads
        return cls(**{**kept, "taps": tuple(settings["taps"])})

    @property
    def settings(self) -> dict[str, Any]:
        """The options as JSON values."""
        return {**dataclasses.asdict(self), "taps": list(self.taps)}


class Eagle3Head(nnx.Module):
    """An EAGLE-3 head. Attention reads [embedding ; feature], of width 2D.

    `layer.attention_norm` normalises the token's embedding, and `feature_norm` the feature.
    """

    def __init__(self, config: LlamaConfig, options: Eagle3Options, *, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32):
        self.config, self.options, self.draft_vocabulary, self.shifted = config, options, options.draft_vocabulary, True
        self.window = options.window
        width, count, tapped = config.hidden_size, len(options.taps), options.target_width or config.hidden_size
        normed = {"none": [], "each": [tapped] * count, "all": [count * tapped]}[options.tap_norm]
        norm = lambda size: RMSNorm(size, config.norm_eps, dtype)
        self.tap_norms = nnx.List([norm(size) for size in normed])
        self.fc = Linear(rngs, (count * tapped, width), ("input", "embed"), bias=False, dtype=dtype)
        self.feature_norm = norm(width)
        self.layer = Layer(rngs, config, dtype, attention_reads=2 * width)
        self.norm = norm(width)
        mask, vocab = options.draft_vocabulary, config.vocab_size
        own = options.own_head or mask is not None
        self.lm_head = draft_vocabulary.build_lm_head(width, mask, vocab, rngs, dtype) if own else None
        table = nnx.Param(jnp.zeros((config.vocab_size, width), dtype), axes=("vocab", "embed"))
        self.embedding = table if options.own_embedding else None

    @property
    def ids(self) -> np.ndarray:
        """Ids of the draft vocabulary, ascending, int32 [Vd]."""
        return draft_vocabulary.ids_of(self.options.draft_vocabulary, self.config.vocab_size)

    def fuse(self, taps: tuple[Float[Array, "B T D"], ...]) -> Float[Array, "B T E"]:
        """The fused feature: fc of the target's hidden states (width D), in order."""
        if self.options.tap_norm == "each":
            taps = tuple(norm(tap) for norm, tap in zip(self.tap_norms, taps, strict=True))
        joined = constrain(jnp.concatenate(taps, axis=-1), *STREAM)
        if self.options.tap_norm == "all":
            joined = self.tap_norms[0](joined)
        return constrain(self.fc(joined).astype(joined.dtype), *STREAM)

    def __call__(
        self,
        target: Llama,
        tokens: Int[Array, "B W"],
        features: Float[Array, "B W D"],
        angles: Angles,
        attend: Attend,
    ) -> tuple[Float[Array, "B W D"], Any]:
        """The next feature after each pair of (feature, token after it), and what `attend` keeps of the layer."""
        token = target.embed(tokens, self.embedding).astype(features.dtype)
        normed, token_norm = self.feature_norm(features), self.layer.attention_norm
        assert token_norm is not None, "the layer has a norm for the token's embedding"
        pair = constrain(jnp.concatenate([token_norm(token), normed], axis=-1), *STREAM)
        mixed, kept = self.layer.attention(pair, angles, attend)
        stream = normed if self.options.norm_before_residual else features
        out = self.layer.mlp_block(constrain(stream + mixed, *STREAM)).astype(features.dtype)
        return self.norm(out) if self.options.returns_normed else out, kept

    def logits(self, target: Llama, features: Float[Array, "*B D"]) -> Float[Array, "*B C"]:
        """Logits over the draft vocabulary, float32, from predicted features."""
        return target.logits(features if self.options.returns_normed else self.norm(features), self.lm_head)


def narrowed(layer: LlamaConfig, width: int) -> LlamaConfig:
    """The shape of a layer, scaled to another width: attention heads keep their width, their number changes.

    Raises ValueError if the width is not a multiple of a KV group's.
    """
    group = layer.num_heads // layer.num_kv_heads * layer.head_dim
    if width < group or width % group:
        raise ValueError(f"width must be a multiple of {group}, the width of heads that share a KV head, not {width}")
    kv_heads, mlp = width // group, layer.intermediate_size * width // layer.hidden_size
    heads = kv_heads * (layer.num_heads // layer.num_kv_heads)
    return dataclasses.replace(layer, hidden_size=width, intermediate_size=mlp, num_heads=heads, num_kv_heads=kv_heads)


def official_taps(num_layers: int) -> tuple[int, ...]:
    """Layers 2, n/2 and n - 3, as in EAGLE's own code. If the target has fewer than 7 layers, some coincide."""
    return tuple(min(max(tap, 0), num_layers - 1) for tap in (2, num_layers // 2, num_layers - 3))


@final
@dataclasses.dataclass(frozen=True)
class Eagle3(PairDrafter):
    """EAGLE-3: one trained layer over features of three target layers."""

    name: ClassVar[str] = "eagle3"
    rank: ClassVar[int | None] = 15
    has_head: ClassVar[bool] = True

    def head_for(
        self,
        target: LlamaConfig,
        ids: Iterable[int] | None = None,
        taps: Iterable[int] | None = None,
        width: int | None = None,
        window: int = 0,
        tap_norm: TapNorm = "none",
    ) -> HeadShape:
        """One of `LlamaConfig.bare_layers`, without norms of queries and keys.

        Args:
            ids: ids of the draft vocabulary; None: the first 32,000.
            taps: layers of the target whose inputs it reads, from 0; None: the official three.
            width: width of its layer (see `narrowed`); None: the target's.
            window: positions that a pair sees, its own included; 0: all.
            tap_norm: see `Eagle3Options`.
        """
        chosen = range(min(draft_vocabulary.LARGEST, target.vocab_size)) if ids is None else ids
        mask = draft_vocabulary.to_mask(chosen, target.vocab_size)
        read = official_taps(target.num_layers) if taps is None else tuple(taps)
        layer = target.bare_layers(1, qk_norm=False)
        options = Eagle3Options(read, mask, tap_norm=tap_norm, window=window)
        if width not in (None, target.hidden_size):
            options = dataclasses.replace(options, own_embedding=True, target_width=target.hidden_size)
            layer = narrowed(layer, width)
        return HeadShape(layer, options.settings)

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> Eagle3Head:
        return Eagle3Head(shape.model, Eagle3Options.from_settings(shape.settings), rngs=rngs, dtype=dtype)

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        options = Eagle3Options.from_settings(shape.settings)
        if outside := [tap for tap in options.taps if not 0 <= tap < target.num_layers]:
            raise ValueError(
                f"reads the input of layer {outside[0]} (from 0) and this target has {target.num_layers}: it is for "
                "another target, or its layer numbers follow another convention (--taps)"
            )

    def taps(self, models: Models) -> tuple[int, ...]:
        return models.draft.options.taps

    def features(self, models: Models, committed: Committed) -> Float[Array, "B T D"]:
        return models.draft.fuse(committed.taps)
