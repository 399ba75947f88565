"""Which attention and MLP blocks of a target are skipped when it drafts for itself (arXiv:2309.08168)."""

import dataclasses
from collections.abc import Collection
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class SkipMask:
    """Whether each of L layers skips its attention, and its MLP. It is static, so each set has its own program."""

    attention: tuple[bool, ...]
    mlp: tuple[bool, ...]

    def traced(self) -> "TracedSkipMask":
        """The same set as traced arrays."""
        return TracedSkipMask(attention=jnp.asarray(self.attention), mlp=jnp.asarray(self.mlp))


@chex.dataclass(frozen=True)
class TracedSkipMask:
    """A `SkipMask` as traced arrays: one program serves all sets that a search tries."""

    attention: Bool[Array, " L"]
    mlp: Bool[Array, " L"]


def skip(num_layers: int, attention: Collection[int], mlp: Collection[int]) -> SkipMask:
    """The set that skips the attention and the MLP of these layers, counted from 0."""

    def among(chosen):
        return tuple(i in chosen for i in range(num_layers))

    return SkipMask(attention=among(attention), mlp=among(mlp))


def numbers(switches: Collection[bool]) -> list[int]:
    """The indices of true values."""
    return [i for i, skipped in enumerate(switches) if skipped]


def layers_of(skips: SkipMask) -> dict[str, list[int]]:
    """The layers whose attention, and whose MLP, is skipped."""
    return {"attention": numbers(skips.attention), "mlp": numbers(skips.mlp)}


def spread(num_layers: int, attention_share: float, mlp_share: float) -> SkipMask:
    """The set that skips these shares of attention and of MLP blocks, evenly spread over the layers."""

    def chosen(share):
        return [i for i in range(num_layers) if int((i + 1) * share) > int(i * share)]

    return skip(num_layers, chosen(attention_share), chosen(mlp_share))


def check_layers(settings: dict[str, Any], num_layers: int) -> None:
    """Raises ValueError if a head's settings are not a skip set of a target with this number of layers."""
    found = {"trained": False, "draft_vocabulary": None, **settings}
    are_layers = lambda some: isinstance(some, list) and all(type(i) is int and 0 <= i < num_layers for i in some)
    lists = [found.get(name) for name in ("attention", "mlp")]
    if len(found) != 4 or not all(map(are_layers, lists)) or type(found["trained"]) is not bool:
        raise ValueError(
            f"must have the settings `attention` and `mlp`, lists of layers from 0 to {num_layers - 1}, and `trained` "
            f"where it has weights, and has {settings}"
        )
