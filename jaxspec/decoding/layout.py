"""How the decoding state is sharded over a mesh: texts along `data`, KV heads along `kv`, cache rows along `rows`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, UInt

from jaxspec.decoding import decode_state
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.sampling import Sampling
from jaxspec.decoding.speculation import Speculation
from jaxspec.model import kv_cache
from jaxspec.model.kv_cache import KV
from jaxspec.model.sharding import AnyMesh, constrain, placed_leaf


def place_state(state: DecodeState, mesh: AnyMesh) -> DecodeState:
    """The state, real or abstract, as sharded `jax.ShapeDtypeStruct`s."""
    return _with_axes(lambda leaf, axes: placed_leaf(leaf, mesh, axes), state)


@partial(jax.jit, static_argnames=("spec", "device"))
def new_state(
    spec: Speculation,
    models: Models,
    device: jax.sharding.Sharding | None,
    seed: UInt[Array, " B"],
    index: UInt[Array, " B"],
    sampling: Mapping[str, Any],
    **begin: Any,
) -> DecodeState:
    """`decode_state.new_state` in one program; on a mesh each array has the sharding of `place_state`.

    Args:
        device: sharding of all arrays if there is no mesh; None: JAX's default.
        seed, index: those of each row's request, from which its key is made.
        sampling: the fields of `Sampling`.
        begin: the other arguments.
    """
    keys = jax.vmap(lambda seed, index: jax.random.fold_in(jax.random.key(seed), index))(seed, index)
    state = decode_state.new_state(spec, models, keys=keys, sampling=Sampling(**sampling), **begin)
    if device is not None:
        return jax.lax.with_sharding_constraint(state, device)
    return _with_axes(lambda leaf, axes: constrain(leaf, *axes), state)


def _with_axes(use: Callable[[Any, tuple[str | None, ...]], Any], state: DecodeState) -> DecodeState:
    """Applies `use` to every array of a state and its logical axes."""
    eos = jax.tree_util.GetAttrKey("eos")  # the only array without the axis B

    def of(path: tuple, leaf: Any) -> Any:
        if isinstance(leaf, KV):
            return jax.tree_util.tree_map_with_path(lambda path, part: use(part, kv_cache.axes(path)), leaf)
        return use(leaf, ("batch",) if leaf.ndim and path[0] != eos else ())

    return jax.tree_util.tree_map_with_path(of, state, is_leaf=lambda leaf: isinstance(leaf, KV))
