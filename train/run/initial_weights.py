"""Initial weights of a head that are copies of the target's."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxspec.model.config import LlamaConfig
from jaxspec.model.quantization import LM_HEAD, dense


def lm_head_of(target: LlamaConfig) -> str:
    """The target's parameter that an LM head begins with."""
    return "embedding" if target.tie_embeddings else LM_HEAD


def copies(params: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Array]:
    """Parameters of a head by their names, float32, each a copy of the target's that `sources` names.

    Copies, for training donates its arrays and the target needs its own. An embedding that is to be an LM head is
    turned.

    Args:
        params: the target's, quantised or not.
    """
    found = dense(params, set(sources.values()))
    is_turned = lambda name, source: source == "embedding" and name.endswith(".kernel")
    one = lambda name, source: found[source].T if is_turned(name, source) else found[source]
    return {name: jnp.array(one(name, source), jnp.float32, copy=True) for name, source in sources.items()}
