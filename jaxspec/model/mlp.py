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
from jaxspec.model.linear import Linear, linear, settled


class MLP(nnx.Module):
    """A gated MLP; with `experts`, that many MLPs whose kernels are stacked: [experts, in, out]."""

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype, experts: int | None = None):
        lead, name = ((), ()) if experts is None else ((experts,), ("expert",))
        wide, narrow = (config.hidden_size, config.intermediate_size), (config.intermediate_size, config.hidden_size)

        def make(shape, axes):
            return Linear(rngs, (*lead, *shape), (*name, *axes), bias=config.mlp_bias, dtype=dtype)

        self.gate = make(wide, ("embed", "mlp"))
        self.up = make(wide, ("embed", "mlp"))
        self.down = make(narrow, ("mlp", "embed"))


class MixtureOfExperts(nnx.Module):
    """A mixture of experts. The router selects each token's experts and their weights; it is never quantised."""

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype):
        self.count, self.asked = config.num_experts, config.experts_per_token
        shape = (config.hidden_size, config.num_experts)
        self.router = Linear(rngs, shape, ("embed", "expert"), bias=False, dtype=dtype)
        self.experts = MLP(rngs, config, dtype, config.num_experts)


def mlp(p: MLP | MixtureOfExperts, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """The update that the layer adds to the residual stream."""
    return mixture(p, x) if isinstance(p, MixtureOfExperts) else swiglu(p, x)


def swiglu(p: MLP, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    """down(silu(gate(x)) * up(x)) (arXiv:2002.05202)."""
    return linear(settled(jax.nn.silu(linear(x, p.gate)) * linear(x, p.up)), p.down)


def mixture(p: MixtureOfExperts, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """The weighted sum of the outputs of each token's selected experts."""
    tokens = x.reshape(-1, x.shape[-1])
    share, chosen = route(p, tokens)
    few = chosen.size < p.count
    return (ask_each if few else run_all)(p.experts, tokens, share, chosen).reshape(x.shape)


def route(
    p: MixtureOfExperts, tokens: Float[Array, "tokens D"]
) -> tuple[Float[Array, "tokens asked"], Int[Array, "tokens asked"]]:
    """Weights (float32) and indices of the experts selected for each token.

    The weights are the router's softmax over all experts, renormalised over the selected ones.
    """
    probs = jax.nn.softmax(linear(tokens, p.router).astype(jnp.float32), axis=-1)
    share, chosen = jax.lax.top_k(probs, p.asked)
    return share / share.sum(axis=-1, keepdims=True), chosen


def ask_each(
    experts: MLP,
    tokens: Float[Array, "tokens D"],
    share: Float[Array, "tokens asked"],
    chosen: Int[Array, "tokens asked"],
) -> Float[Array, "tokens D"]:
    """Runs the selected experts only, token by token, so that no other expert's weights are read."""

    def ask(token: int, choice: int) -> Float[Array, "1 D"]:
        take = lambda stack: jax.lax.dynamic_index_in_dim(stack, chosen[token, choice], 0, keepdims=False)
        says = swiglu(jax.tree.map(take, experts), tokens[token : token + 1])
        return says * share[token, choice].astype(says.dtype)

    count, asked = chosen.shape
    return jnp.concatenate([sum(ask(token, choice) for choice in range(asked)) for token in range(count)])


def run_all(
    experts: MLP,
    tokens: Float[Array, "tokens D"],
    share: Float[Array, "tokens asked"],
    chosen: Int[Array, "tokens asked"],
) -> Float[Array, "tokens D"]:
    """Runs every expert on every token; experts that a token did not select have weight 0."""
    says = jax.vmap(swiglu, in_axes=(0, None))(experts, tokens)
    shares = (jax.nn.one_hot(chosen, says.shape[0]) * share[..., None]).sum(axis=1)
    return jnp.einsum("end,ne->nd", says, shares.astype(says.dtype))
