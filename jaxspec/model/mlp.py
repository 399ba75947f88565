"""The second half of a decoder layer: a gated MLP, or a mixture of experts.

The mixture is Mixtral's (arXiv:2401.04088, §2.1). A forward pass over few tokens, as in plain decoding, reads only the
experts that these tokens select. One over more tokens runs all experts, because together the tokens select nearly all
of them.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import Linear, fusion_barrier


class MLP(nnx.Module):
    """down(silu(gate(x)) * up(x)) (arXiv:2002.05202).

    With `experts` it holds that many MLPs, whose kernels are stacked: [experts, in, out].
    """

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype, experts: int | None = None):
        lead, name = ((), ()) if experts is None else ((experts,), ("expert",))
        wide, narrow = (config.hidden_size, config.intermediate_size), (config.intermediate_size, config.hidden_size)
        make = lambda shape, axes: Linear(rngs, (*lead, *shape), (*name, *axes), bias=config.mlp_bias, dtype=dtype)
        self.gate = make(wide, ("embed", "mlp"))
        self.up = make(wide, ("embed", "mlp"))
        self.down = make(narrow, ("mlp", "embed"))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The update of the residual stream, float32."""
        gated = jax.nn.silu(self.gate(x)) * self.up(x)
        return self.down(fusion_barrier(gated.astype(x.dtype)))


class MixtureOfExperts(nnx.Module):
    """The weighted sum of the outputs of each token's selected experts.

    The router selects them and their weights; it is never quantised.
    """

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype):
        self.count, self.per_token = config.num_experts, config.experts_per_token
        shape = (config.hidden_size, config.num_experts)
        self.router = Linear(rngs, shape, ("embed", "expert"), bias=False, dtype=dtype)
        self.experts = MLP(rngs, config, dtype, config.num_experts)

    def __call__(self, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
        tokens = x.reshape(-1, x.shape[-1])
        share, chosen = self.route(tokens)
        run = run_selected if chosen.size < self.count else run_all
        return run(self.experts, tokens, share, chosen).reshape(x.shape)

    def route(
        self, tokens: Float[Array, "tokens D"]
    ) -> tuple[Float[Array, "tokens selected"], Int[Array, "tokens selected"]]:
        """Weights (float32) and indices of the experts selected for each token.

        The weights are the router's softmax over all experts, renormalised over the selected ones.
        """
        probs = jax.nn.softmax(self.router(tokens), axis=-1)
        share, chosen = jax.lax.top_k(probs, self.per_token)
        return share / share.sum(axis=-1, keepdims=True), chosen


def run_selected(
    experts: MLP,
    tokens: Float[Array, "tokens D"],
    share: Float[Array, "tokens selected"],
    chosen: Int[Array, "tokens selected"],
) -> Float[Array, "tokens D"]:
    """Runs the selected experts only, token by token, so that no other expert's weights are read."""

    def run(token: int, choice: int) -> Float[Array, "1 D"]:
        take = lambda stack: jax.lax.dynamic_index_in_dim(stack, chosen[token, choice], 0, keepdims=False)
        out = jax.tree.map(take, experts)(tokens[token : token + 1])
        return out * share[token, choice]

    count, selected = chosen.shape
    return jnp.concatenate([sum(run(token, choice) for choice in range(selected)) for token in range(count)])


def run_all(
    experts: MLP,
    tokens: Float[Array, "tokens D"],
    share: Float[Array, "tokens selected"],
    chosen: Int[Array, "tokens selected"],
) -> Float[Array, "tokens D"]:
    """Runs every expert on every token; experts that a token did not select have weight 0."""
    outs = jax.vmap(lambda expert: expert(tokens))(experts)
    shares = (jax.nn.one_hot(chosen, outs.shape[0], dtype=jnp.float32) * share[..., None]).sum(axis=1)
    return jnp.einsum("end,ne->nd", outs, shares, precision="highest")
