"""EAGLE: one decoder layer predicts the target's next feature, and the target's LM head reads it (arXiv:2401.15077).

A feature is the target's last hidden state. `eagle_state` describes how the head reads features and tokens.
"""

import dataclasses
from typing import Any, ClassVar, final

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Committed, HeadShape, Models
from jaxspec.drafters.draft_vocabulary import build_lm_head
from jaxspec.drafters.eagle_state import PairDrafter
from jaxspec.model.attention import Attend
from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import Linear
from jaxspec.model.llama import STREAM, Angles, Layer, Llama
from jaxspec.model.sharding import constrain

INPUTS = ("shifted", "unshifted", "feature", "token")


class EagleHead(nnx.Module):
    """An EAGLE head: `fc` (2D → D) and a decoder layer without input norm.

    `inputs` selects the input, for the paper's ablation (its Figures 3 and 9). `shifted`: a feature and the next token,
    as in EAGLE; `unshifted`: a feature and its own token; `feature` or `token` (the next one): it alone, without `fc`.

    `embedding` is the head's own embedding; None: the target's, as for most published heads. `lm_head` has the draft
    vocabulary's columns of the target's LM head; None: the target's LM head is used.
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
        self.shifted, self.window = inputs != "unshifted", 0
        width, joins = config.hidden_size, inputs in ("shifted", "unshifted")
        self.fc = Linear(rngs, (2 * width, width), ("input", "embed"), bias=bias, dtype=dtype) if joins else None
        self.layer = Layer(rngs, config, dtype, input_norm=False)
        table = nnx.Param(jnp.zeros((config.vocab_size, width), dtype), axes=("vocab", "embed"))
        self.embedding = table if own_embedding else None
        whole, size = draft_vocabulary is None, config.vocab_size
        self.lm_head = None if whole else build_lm_head(width, draft_vocabulary, size, rngs, dtype)

    def __call__(
        self,
        target: Llama,
        tokens: Int[Array, "B W"],
        features: Float[Array, "B W D"],
        angles: Angles,
        attend: Attend,
    ) -> tuple[Float[Array, "B W D"], Any]:
        """The predicted feature after each pair of (feature, token), and what `attend` keeps of the layer."""
        out, kept = self.layer(self.fuse(target, tokens, features), angles, attend)
        return out.astype(features.dtype), kept

    def fuse(self, target: Llama, tokens: Int[Array, "B W"], features: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
        """The input of the layer: fc of [embedding of the token ; feature]; without fc, one of the two."""
        if self.inputs == "feature":
            return features
        token = target.embed(tokens, self.embedding).astype(features.dtype)
        if self.fc is None:
            return constrain(token, *STREAM)
        pair = constrain(jnp.concatenate([token, features], axis=-1), *STREAM)
        return constrain(self.fc(pair), *STREAM)

    def logits(self, target: Llama, features: Float[Array, "*B D"]) -> Float[Array, "*B C"]:
        """Logits of the tokens that the head can draft, float32."""
        return target.logits(features, self.lm_head)


@final
@dataclasses.dataclass(frozen=True)
class Eagle(PairDrafter):
    """EAGLE: one trained layer that predicts the target's features."""

    name: ClassVar[str] = "eagle"
    rank: ClassVar[int | None] = 10
    has_head: ClassVar[bool] = True

    def head_for(self, target: LlamaConfig, bias: bool = False, inputs: str = INPUTS[0]) -> HeadShape:
        """One LLaMA layer of the target's shape, without experts and without norms of queries and keys.

        Args:
            bias: whether `fc` has a bias, as in some published heads.
            inputs: input of `fc`; see `EagleHead`.
        """
        layer = dataclasses.replace(target.without_experts, num_layers=1, qk_norm=False)
        settings = {"bias": bias, "own_embedding": False}
        return HeadShape(layer, settings if inputs == INPUTS[0] else {**settings, "inputs": inputs})

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        if (inputs := shape.settings.get("inputs", INPUTS[0])) not in INPUTS:
            raise ValueError(f"has inputs {inputs!r}, which must be one of {', '.join(INPUTS)}")

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> EagleHead:
        return EagleHead(shape.model, rngs=rngs, dtype=dtype, **shape.settings)

    def features(self, models: Models, committed: Committed) -> Float[Array, "B T D"]:
        return committed.hidden
