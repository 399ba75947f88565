"""Initial weights of a head that are copies of the target's."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxspec.model.config import LlamaConfig
from jaxspec.model.quantization import LM_HEAD, dense


def lm_head_of(target: LlamaConfig) -> str:
    """The name of the target's parameter that initialises an LM head."""
    return "embedding" if target.tie_embeddings else LM_HEAD


def copies(params: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Array]:
    """Parameters of a head by name, float32, copied from the target's.

    They are copies because training donates its arrays. An embedding that becomes an LM head is transposed.

    Args:
        params: the target's parameters, quantised or not.
        sources: the name of the target's parameter, by the head's name.
    """
    found = dense(params, set(sources.values()))
    is_turned = lambda name, source: source == "embedding" and name.endswith(".kernel")
    one = lambda name, source: found[source].T if is_turned(name, source) else found[source]
    return {name: jnp.array(one(name, source), jnp.float32, copy=True) for name, source in sources.items()}
